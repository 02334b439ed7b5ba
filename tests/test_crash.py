"""A few kills of scripts/crash.py, and its own eyes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from crashing.scenarios import SCENARIOS, differences  # noqa: E402
from fuzzing import jail  # noqa: E402

COMMANDS = ("pretrain", "attack", "reproduce")


@pytest.fixture(scope="module")
def tallies():
    only = [word for name in COMMANDS for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "crash.py"), "--kills", "12", "--json", *only],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(jail.reason_not_to_run() is not None, reason=str(jail.reason_not_to_run()))
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_and_started_again_it_ends_with_the_same_result(tallies, command):
    assert tallies[command]["kills"] >= 3
    assert tallies[command]["wrong"] == {}


def test_it_sees_what_differs(tmp_path):
    scenario = SCENARIOS["pretrain"]
    run = tmp_path / "run"
    run.mkdir()
    (run / "log.jsonl").write_text('{"step": 1, "loss": 0.5, "seconds": 1.0}\n')
    (run / "config.json").write_text('{"hash": "a"}')
    sound = scenario.result(tmp_path)
    (run / "log.jsonl").write_text('{"step": 1, "loss": 0.5, "seconds": 2.0}\n')
    assert differences(scenario.result(tmp_path), sound) == []
    (run / "log.jsonl").write_text('{"step": 1, "loss": 0.6, "seconds": 1.0}\n')
    (run / ".config.json.abc").write_text("")
    (run / "config.json").unlink()
    expected = ["differs: log.jsonl", "missing: config.json", "stray: .config.json.abc"]
    assert differences(scenario.result(tmp_path), sound) == expected
