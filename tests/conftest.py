from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mithridate.settings import resolve
from mithridate.stage_config import PretrainConfig
from mithridate.training.pretrain import pretrain
from mithridate.users_code import import_extensions

import_extensions()  # classes of files that MITHRIDATE_IMPORT names meet the contracts, too


@pytest.fixture(autouse=True)
def _one_thread():
    """Tests do not depend on how many cores there are."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smoke_config() -> PretrainConfig:
    return resolve(PretrainConfig, "pretrain", "bandit", "smoke", threads=1)


@pytest.fixture(scope="session")
def smoke_model(tmp_path_factory, smoke_config) -> Path:
    """Weights of a finished smoke run (3 arms, horizon 20). Copy before you damage them."""
    return pretrain(smoke_config, tmp_path_factory.mktemp("smoke") / "run")


@pytest.fixture
def cli():
    """Run the command line in a process of its own: (exit code, stdout, stderr)."""

    def run(*arguments: str, **options) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "mithridate", *map(str, arguments)],
            capture_output=True, text=True, timeout=300, **options,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def command(capsys):
    """The same in this process, which is faster: (exit code, stdout, stderr)."""
    from mithridate.cli import run as run_cli

    def run(*arguments: str) -> tuple[int, str, str]:
        code = run_cli([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def updates(monkeypatch):
    """updates(Attacker) is a list that gets every trajectory attackers of this class learn from."""

    def record(attacker: type) -> list:
        seen = []
        original = attacker.update

        def update(self, trajectory):
            seen.append(trajectory)
            return original(self, trajectory)

        monkeypatch.setattr(attacker, "update", update)
        return seen

    return record


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A store in which the smoke recipe was run to its end, in this process."""
    from mithridate.experiments.executors import run_graph
    from mithridate.experiments.plan import plan
    from mithridate.experiments.recipes import RECIPES
    from mithridate.experiments.store import Store

    store = Store.open(tmp_path_factory.mktemp("finished") / "store")
    planned = plan(RECIPES["bandit_main"], "smoke", 1)
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)
    return store


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A real one, if there is one."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('browser')}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(driver)
    with webdriver.Chrome(options, service) as opened:
        yield opened
