"""A stage is prepared once: the weights it needs are read once, whatever is done with them."""

import pytest

from mithridate import files
from mithridate.model import weights

SIZES = ("--set", "env.arms=3", "--set", "env.horizon=20")


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The files of weights that were read."""
    found = []

    def reading(path, what):
        found.append(str(path))
        return files.read_bytes(path, what)

    monkeypatch.setattr(weights, "read_bytes", reading)
    return found


def test_train_reads_the_start_once(smoke_model, tmp_path, command, reads):
    out = tmp_path / "run"
    sets = ("--set", 'threats=[{"target":"start"},{"attacker":"none"}]', *SIZES)
    common = ("--preset", "smoke", "--from", smoke_model, "--out", out, *sets)
    code, _, stderr = command("train", "bandit", *common)
    assert code == 0, stderr
    assert reads.count(str(smoke_model)) == 1
    assert reads.count(str(out / "model.safetensors")) == 1, "for its card"


def test_attack_reads_the_target_once(smoke_model, tmp_path, command, reads):
    common = ("--preset", "smoke", "--target", smoke_model, "--out", tmp_path / "run", *SIZES)
    code, _, stderr = command("attack", "bandit", *common)
    assert code == 0, stderr
    assert reads == [str(smoke_model)]


def test_evaluate_reads_a_model_once(smoke_model, tmp_path, command, reads, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ("--preset", "smoke", "--agents", smoke_model, "--attackers", "none,learned", *SIZES)
    code, _, stderr = command("evaluate", "bandit", *common)
    assert code == 0, stderr
    assert reads == [str(smoke_model)]


def test_distill_reads_the_source_once(smoke_model, tmp_path, command, reads):
    common = ("--preset", "smoke", "--source", smoke_model, "--out", tmp_path / "run", *SIZES)
    code, _, stderr = command("distill", "bandit", *common)
    assert code == 0, stderr
    assert reads.count(str(smoke_model)) == 1
