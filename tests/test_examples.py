"""The examples run in a small form: what is replaced must be there. The short ones share a process,
which is not this one, because some register classes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL: dict[str, dict[str, str]] = {
    "01_evaluate_your_own_agent": {"TASKS, ROUNDS = 100, 10": "TASKS, ROUNDS = 2, 1"},
    "02_stress_test_your_own_agent": {'"quick-v0"': '"smoke-v0"'},
    "03_load_a_robust_agent": {"STEPS = 500": "STEPS = 30"},
    "04_poison_a_gymnasium_environment": {"episodes=500": "episodes=5"},
    "05_train_on_your_own_tasks": {
        'PRESET, TASKS = "laptop", 200': 'PRESET, TASKS = "smoke", 4',
        '"arms": 8, "horizon": 300': '"arms": 3, "horizon": 20',
    },
    "06_reproduce_a_table": {'Path("store"), "laptop", 3': 'Path("store"), "smoke", 1'},
    "07_add_an_attacker": {"TASKS = 200": "TASKS = 4"},
    "08_use_a_cluster": {'None, "laptop", 2': 'None, "smoke", 1'},
    "09_train_with_stable_baselines": {
        "STEPS = 16_384": "STEPS = 1024",
        "n_eval_episodes=20": "n_eval_episodes=2",
    },
}


RUNNER = """
import contextlib, io, json, os, runpy, sys, traceback
found = {}
for name in sys.argv[1:]:
    said, error = io.StringIO(), None
    os.makedirs(name)
    os.chdir(name)
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(f"../{name}.py", run_name="__main__")
    except BaseException:
        error = traceback.format_exc()
    os.chdir("..")
    found[name] = [error, said.getvalue()]
print(json.dumps(found))
"""


def small(name: str, folder: Path, **more: str) -> Path:
    code = (EXAMPLES / f"{name}.py").read_text()
    for old, new in {**SMALL[name], **more}.items():
        assert old in code, f"{name} no longer has {old!r}"
        code = code.replace(old, new)
    path = folder / f"{name}.py"
    path.write_text(code)
    return path


def run(folder: Path, *arguments: str) -> str:
    """What it prints."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=280, cwd=folder,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_they_are_numbered():
    found = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert found == sorted(SMALL)
    assert [int(name[:2]) for name in found] == list(range(1, len(found) + 1))


SHORT = [name for name in SMALL if name[:2] not in ("06", "08")]


@pytest.fixture(scope="module")
def short_ones(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    for name in SHORT:
        small(name, folder)
    return json.loads(run(folder, "-c", RUNNER, *SHORT))


@pytest.mark.parametrize("name", SHORT)
def test_an_example(name, short_ones):
    error, said = short_ones[name]
    assert error is None, error
    assert "regret" in said


def test_reproducing_a_table(finished, tmp_path):
    """In a store in which all is done already."""
    path = small("06_reproduce_a_table", tmp_path, **{'Path("store")': f"Path('{finished.root}')"})
    said = run(tmp_path, str(path))
    assert "AT-DPT" in said and "interquartile mean over attackers" in said


@pytest.mark.ray
def test_a_cluster(tmp_path):
    pytest.importorskip("ray")
    said = run(tmp_path, str(small("08_use_a_cluster", tmp_path)))
    assert len(re.findall(r"regret \d", said)) == 3 * 4
