"""Pretraining learns, survives being killed, and stops when it diverges."""

import json
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

from mithridate.errors import Interrupted, TrainingDiverged, UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.registry import ENVS
from mithridate.settings import resolve
from mithridate.stage_config import PretrainConfig
from mithridate.training.pretrain import Pretraining, pretrain
from mithridate.training.run_directory import RunDirectory, read_log

SMALL = ("steps=300", "checkpoint_every=7", "log_every=1", "threads=1")


def test_a_tiny_bandit_is_learned(tmp_path):
    """Two arms, 30 steps: from guessing to within reach of Thompson sampling."""
    config = resolve(
        PretrainConfig, "pretrain", "bandit", "smoke",
        [
            "env.arms=2", "env.horizon=30", "steps=500", "threads=1", "evaluate_every=500",
            "batches.long_batch=64", "batches.long_length=30", "batches.long_every=1",
        ],
    )  # fmt: skip
    weights = pretrain(config, tmp_path / "run")
    env = ENVS.create("bandit", arms=2, horizon=30)
    agents = {"dpt": str(weights), "ts": "ts", "uniform": "uniform"}
    result = evaluate(env, agents, tasks=500, seed=9, threads=1).summary()
    assert result["dpt"][0] < 0.5 * result["uniform"][0]
    assert result["dpt"][0] < 1.4 * result["ts"][0]


def test_logs_and_card(smoke_model, smoke_config):
    lines = read_log(smoke_model.parent / "log.jsonl")
    training = [line for line in lines if "loss" in line]
    assert [line["step"] for line in training] == [1, *range(5, 61, 5)]
    assert {"loss", "grad_norm", "learning_rate", "seconds"} <= training[0].keys()
    assert [line["step"] for line in lines if "clean_mean" in line] == [20, 40, 60]
    card = json.loads(smoke_model.with_suffix(".json").read_text())
    assert card["config_hash"] == smoke_config.hash()
    assert card["metrics"]["clean_tasks"] == smoke_config.final_tasks
    assert {"torch", "mithridate", "python"} <= card["versions"].keys()


def test_same_seed_same_weights(smoke_model, smoke_config, tmp_path):
    again = pretrain(smoke_config, tmp_path / "again")
    assert again.read_bytes() == smoke_model.read_bytes()
    other = pretrain(smoke_config.model_copy(update={"seed": 1}), tmp_path / "other")
    assert other.read_bytes() != smoke_model.read_bytes()


def test_a_finished_run_is_not_redone(smoke_config, tmp_path):
    weights = pretrain(smoke_config, tmp_path / "run")
    stamp = weights.stat().st_mtime_ns
    assert pretrain(smoke_config, tmp_path / "run") == weights
    assert weights.stat().st_mtime_ns == stamp


def start(out):
    sets = [word for s in SMALL for word in ("--set", s)]
    command = [sys.executable, "-m", "mithridate", "pretrain", "bandit", "--preset", "smoke"]
    return subprocess.Popen(
        [*command, *sets, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for_lines(process, log, count):
    while process.poll() is None:
        if log.exists() and log.read_text().count("\n") >= count:
            return
        time.sleep(0.002)


def test_killed_at_random_moments_and_resumed_is_bit_identical(tmp_path):
    config = resolve(PretrainConfig, "pretrain", "bandit", "smoke", SMALL)
    undisturbed = pretrain(config, tmp_path / "undisturbed")
    moments = random.Random(0)
    killed = 0
    for target in sorted(moments.sample(range(5, 290), 5)):
        process = start(tmp_path / "killed")
        wait_for_lines(process, tmp_path / "killed" / "log.jsonl", target)
        time.sleep(moments.random() * 0.02)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
    assert killed >= 4, "the kills came too late to mean anything"
    process = start(tmp_path / "killed")
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr.decode()
    resumed = tmp_path / "killed" / "model.safetensors"
    assert resumed.read_bytes() == undisturbed.read_bytes()

    def without_time(path):
        return [{k: v for k, v in line.items() if k != "seconds"} for line in read_log(path)]

    logs = [without_time(tmp_path / name / "log.jsonl") for name in ("killed", "undisturbed")]
    assert logs[0] == logs[1]


def test_an_interrupt_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path):
    process = start(tmp_path / "run")
    wait_for_lines(process, tmp_path / "run" / "log.jsonl", 30)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in stderr.decode()
    config = resolve(PretrainConfig, "pretrain", "bandit", "smoke", SMALL)
    run = RunDirectory(tmp_path / "run", config)
    _, meta = run.load_checkpoint()
    run.close()
    assert f"stopped after step {meta['step']} of 300" in stderr.decode()
    assert read_log(tmp_path / "run" / "log.jsonl")[-1]["step"] == meta["step"]


def test_a_nan_stops_the_run_and_keeps_the_checkpoint(smoke_config, tmp_path, monkeypatch):
    original = Pretraining.step

    def step(self, number):
        if number == 33:
            with torch.no_grad():
                self.model.head.weight[0, 0] = float("nan")
        return original(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Pretraining, "step", step)
        with pytest.raises(TrainingDiverged, match=r"loss nan at step 34.*checkpoint is kept"):
            pretrain(smoke_config, tmp_path / "run")
    run = RunDirectory(tmp_path / "run", smoke_config)
    tensors, meta = run.load_checkpoint()
    run.close()
    assert meta["step"] == 30
    assert all(t.isfinite().all() for t in tensors.values())
    pretrain(smoke_config, tmp_path / "run")  # and can be resumed


def test_an_exploding_loss_stops_the_run(tmp_path):
    sets = ["optimiser.learning_rate=1000", "optimiser.warmup_steps=0", "optimiser.clip_norm=null"]
    config = resolve(PretrainConfig, "pretrain", "bandit", "smoke", sets, threads=1)
    with pytest.raises(TrainingDiverged, match=r"lower optimiser\.learning_rate"):
        pretrain(config, tmp_path / "run")


def test_a_directory_belongs_to_one_configuration(smoke_config, tmp_path):
    pretrain(smoke_config, tmp_path / "run")
    with pytest.raises(UserError, match="another configuration"):
        pretrain(smoke_config.model_copy(update={"seed": 1}), tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="not a run's directory"):
        pretrain(smoke_config, tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_directory_belongs_to_one_process(smoke_config, tmp_path):
    run = RunDirectory(tmp_path / "run", smoke_config)
    with pytest.raises(UserError, match="another process"):
        pretrain(smoke_config, tmp_path / "run")
    run.close()


@pytest.mark.parametrize("damage", ["truncate", "flip"])
def test_a_damaged_checkpoint_is_refused(smoke_config, tmp_path, damage):
    with pytest.raises(Interrupted):
        interrupt_after(20, smoke_config, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[:-100]
    else:
        data[-50] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="checkpoint .* is damaged"):
        pretrain(smoke_config, tmp_path / "run")


def test_a_full_disk_keeps_the_earlier_checkpoint(smoke_model, tmp_path):
    """A real failing write: the process may not write files as large as a checkpoint."""
    out = tmp_path / "run"
    config = resolve(PretrainConfig, "pretrain", "bandit", "smoke", threads=1)
    with pytest.raises(Interrupted):
        interrupt_after(23, config, out)
    checkpoint = (out / "checkpoint.safetensors").read_bytes()
    limit = len(checkpoint) // 2
    command = [sys.executable, "-m", "mithridate", "pretrain", "bandit", "--preset", "smoke"]
    full = subprocess.run(
        [*command, "--set", "threads=1", "--out", str(out)], capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert full.returncode == 2
    assert full.stderr.startswith("error: cannot write") and full.stderr.count("\n") == 1
    assert (out / "checkpoint.safetensors").read_bytes() == checkpoint
    assert not [p.name for p in out.iterdir() if p.name.startswith(".checkpoint")]
    assert pretrain(config, out).read_bytes() == smoke_model.read_bytes()


def interrupt_after(step, config, out):
    class Stop:
        def started(self, step, total): ...

        def logged(self, step, values): ...

        def stepped(self, at, values):
            if at == step:
                signal.raise_signal(signal.SIGINT)

    pretrain(config, out, [Stop()])


def test_tensorboard_gets_what_the_log_gets(smoke_config, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from mithridate.training.tensorboard import TensorBoard

    pretrain(smoke_config, tmp_path / "run", [TensorBoard(tmp_path / "tb")])
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    seen = [(e.step, pytest.approx(e.value)) for e in events.Scalars("loss")]
    lines = read_log(tmp_path / "run" / "log.jsonl")
    assert [(x["step"], x["loss"]) for x in lines if "loss" in x] == seen
