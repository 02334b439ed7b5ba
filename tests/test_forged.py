"""Files that somebody else made: whole, with the right checksums, and still not what they claim to
be. Nothing in them is believed that can be checked."""

import hashlib
import json
import os
import shutil

import pytest
import torch

from mithridate.errors import UserError
from mithridate.model.weights import load_model, write_model
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig, PretrainConfig
from mithridate.tensor_files import packed, read_tensors, write_sealed
from mithridate.training.attack import LearnedAttack, attack
from mithridate.training.pretrain import Pretraining, pretrain
from mithridate.training.run_directory import RunDirectory, read_log


@pytest.fixture
def model(smoke_model, tmp_path):
    for suffix in (".safetensors", ".json"):
        shutil.copy(smoke_model.with_suffix(suffix), tmp_path / f"model{suffix}")
    return tmp_path / "model.safetensors"


def forge(path, change, metadata=None):
    """Other weights, with a card that has their checksum."""
    tensors, found, _ = read_tensors(path, "weights")
    data = packed({**tensors, **change(tensors)}, metadata or found)
    path.write_bytes(data)
    card = json.loads(path.with_suffix(".json").read_text())
    card["sha256"] = hashlib.sha256(data).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(card))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers(model, value):
    forge(model, lambda t: {"head.weight": torch.full_like(t["head.weight"], value)})
    with pytest.raises(UserError, match="weights .* damaged: 'head.weight' is not finite"):
        load_model(model)


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float64, torch.float16])
def test_weights_of_another_type(model, kind):
    forge(model, lambda t: {"head.weight": t["head.weight"].to(kind)})
    with pytest.raises(
        UserError, match=r"do not fit their card: 'head.weight' should be \(3, 16\)"
    ):
        load_model(model)


CARDS = {
    "heads": {"model": {"layers": 2, "heads": 1, "width": 16}},
    "temperature": {"temperature": 0.1},
    "environment": {"env": {"name": "bandit", "arms": 3, "horizon": 20, "noise_std": 5.0}},
    "metrics": {"metrics": {"clean_mean": 0.0}},
    "training": {"training": {}},
}


@pytest.mark.parametrize("change", CARDS.values(), ids=CARDS)
def test_a_card_that_says_something_else(model, change):
    card = json.loads(model.with_suffix(".json").read_text())
    model.with_suffix(".json").write_text(json.dumps(card | change))
    with pytest.raises(UserError, match="not the one that its weights were saved with"):
        load_model(model)


def test_a_card_that_lacks_something(model):
    card = json.loads(model.with_suffix(".json").read_text())
    for key in card:
        rest = {k: v for k, v in card.items() if k != key}
        model.with_suffix(".json").write_text(json.dumps(rest))
        with pytest.raises(UserError, match="card "):
            load_model(model)


@pytest.mark.parametrize("key", ["kind", "env", "model", "sha256", "metrics", "training", "format"])
@pytest.mark.parametrize("value", [None, 3, "x", [], 1e300, {"name": {}}])
def test_a_card_of_wrong_types(model, key, value):
    card = json.loads(model.with_suffix(".json").read_text())
    model.with_suffix(".json").write_text(json.dumps(card | {key: value}))
    with pytest.raises(UserError) as error:
        load_model(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", [b"\xff\xfe{", b"[" * 100_000, b'{"format": 2' + b"9" * 5000 + b"}"]
)
def test_cards_that_are_no_text(model, text):
    model.with_suffix(".json").write_bytes(text)
    with pytest.raises(UserError, match="card .* is damaged"):
        load_model(model)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(model, suffix):
    path = model.with_suffix(suffix)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="is not a regular file"):
        load_model(model)


def test_cards_of_the_first_edition_are_refused_with_what_to_do(model):
    card = json.loads(model.with_suffix(".json").read_text())
    model.with_suffix(".json").write_text(json.dumps(card | {"format": 1}))
    with pytest.raises(UserError, match=r"of an earlier edition: .* scripts/upgrade_model.py"):
        load_model(model)


def test_a_model_that_is_not_finite_is_not_written(model, tmp_path):
    loaded, card = load_model(model)
    with torch.no_grad():
        loaded.head.bias.fill_(float("nan"))
    with pytest.raises(UserError, match="'head.bias' is not finite"):
        write_model(tmp_path / "other.safetensors", loaded.state_dict(), card)
    assert not list(tmp_path.glob("other*"))


# Attackers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = resolve(AttackConfig, "attack", "bandit", "smoke", target="ts", threads=1, rounds=1)
    return attack(config, tmp_path_factory.mktemp("attack") / "run")


def forge_attackers(trained, path, meta=None, **changes):
    tensors, metadata, _ = read_tensors(trained, "attackers")
    tensors = {k: changes.get(k.replace(".", "_"), lambda t: t)(t) for k, t in tensors.items()}
    write_sealed(path, tensors, json.loads(metadata["meta"]) | (meta or {}))
    return path


def test_an_honest_copy_is_accepted(trained, tmp_path):
    LearnedAttack(forge_attackers(trained, tmp_path / "a.safetensors"))
    for large in (1e12, float("inf")):  # steep gradients, where spreads are small
        steep = {"attacker_second": lambda t, large=large: t + large}
        LearnedAttack(forge_attackers(trained, tmp_path / "a.safetensors", **steep))


FORGED = {
    "huge": {"attacker_offsets": lambda t: t + 1e30},
    "large": {"attacker_offsets": lambda t: t + 1e10},
    "not finite": {"attacker_offsets": lambda t: t / 0},
    "no squares": {"attacker_second": lambda t: t + float("nan")},
    "whole numbers": {"attacker_offsets": lambda t: t.long()},
    "other arms": {"attacker_offsets": lambda t: t[:, :2]},
    "fewer tasks": {"attacker_offsets": lambda t: t[:3]},
    "ids twice": {"attacker_ids": lambda t: t * 0},
    "ids of floats": {"attacker_ids": lambda t: t.float()},
    "other tasks": {"tasks_means": lambda t: t + 0.5},
    "tasks twice": {"tasks_ids": lambda t: t * 0},
    "other ids": {"attacker_ids": lambda t: t + 1000},
    "flat": {"attacker_first": lambda t: t.reshape(-1)},
    "no tasks": {"tasks_ids": lambda t: t[:0], "tasks_means": lambda t: t[:0]},
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_forged_attackers_are_refused(trained, tmp_path, changes):
    path = forge_attackers(trained, tmp_path / "a.safetensors", **changes)
    with pytest.raises(UserError, match="attackers .* damaged"):
        LearnedAttack(path)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"format": 99}, "format 99; this version reads 2"),
        ({"format": None}, "format None"),
        ({"config": {}}, "is missing"),
        ({"config": 3}, "not a file of trained attackers"),
        ({"metrics": None}, "not a file of trained attackers"),
    ],
)
def test_attackers_that_say_something_else(trained, tmp_path, meta, message):
    path = forge_attackers(trained, tmp_path / "a.safetensors", meta)
    with pytest.raises(UserError, match=message):
        LearnedAttack(path)


def test_attackers_are_sealed_with_what_is_said_of_them(trained, tmp_path):
    tensors, metadata, _ = read_tensors(trained, "attackers")
    meta = json.loads(metadata["meta"])
    meta["metrics"]["final_mean"] = 0.0
    path = tmp_path / "a.safetensors"
    path.write_bytes(packed(tensors, {"meta": json.dumps(meta)}))
    with pytest.raises(UserError, match="checksum differs"):
        LearnedAttack(path)


@pytest.mark.parametrize("change", ["missing", "extra"])
def test_attackers_with_parts_too_many_or_too_few(trained, tmp_path, change):
    tensors, metadata, _ = read_tensors(trained, "attackers")
    if change == "extra":
        tensors["attacker.more"] = torch.zeros_like(tensors["attacker.first"])
    else:
        del tensors["attacker.first"]
    write_sealed(tmp_path / "a.safetensors", tensors, json.loads(metadata["meta"]))
    with pytest.raises(UserError, match="they do not fit their configuration"):
        LearnedAttack(tmp_path / "a.safetensors")


def test_attackers_with_another_configuration(trained, tmp_path):
    config = json.loads(read_tensors(trained, "x")[1]["meta"])["config"]
    for change in ({"attacker": "uniform"}, {"attacker": "adaptive"}, {"tasks": 3}, {"seed": 7}):
        path = forge_attackers(trained, tmp_path / "a.safetensors", {"config": config | change})
        with pytest.raises(UserError, match="damaged"):
            LearnedAttack(path)


# Runs ----------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path, smoke_config):
    """A run with a checkpoint, and its directory."""
    trainee = Pretraining(smoke_config)
    trainee.step(0)
    run = RunDirectory(tmp_path / "run", smoke_config)
    run.append_log({"step": 1, "loss": 1.0})
    run.save_checkpoint(trainee.tensors(), {"step": 1, "seconds": 1.0})
    run.close()
    return tmp_path / "run", trainee, run


def test_a_checkpoint_that_is_not_finite_does_not_become_a_model(begun, smoke_config):
    path, trainee, run = begun
    tensors = dict(trainee.tensors())
    tensors["model.head.weight"] = torch.full_like(tensors["model.head.weight"], float("nan"))
    run.save_checkpoint(tensors, {"step": 1, "seconds": 1.0})
    with pytest.raises(UserError, match="checkpoint .* is damaged; delete it"):
        pretrain(smoke_config, path)
    assert not (path / "model.safetensors").exists()


ODD = [{"step": "1"}, {"step": None}, {"step": 10**6}, {"seconds": "x"}, {"seconds": -1}]


@pytest.mark.parametrize("meta", ODD)
def test_a_checkpoint_with_odd_data(begun, smoke_config, meta):
    path, trainee, run = begun
    run.save_checkpoint(trainee.tensors(), {"step": 1, "seconds": 1.0} | meta)
    with pytest.raises(UserError, match="checkpoint .* is damaged"):
        pretrain(smoke_config, path)


STRANGE = {
    "something else": lambda tensors: {"model.x": torch.zeros(1)},
    "one more": lambda tensors: tensors | {"x": torch.zeros(1)},
    "doubles": lambda tensors: {k: t.double() for k, t in tensors.items()},
    "no moments": lambda tensors: {k: t for k, t in tensors.items() if "exp_avg" not in k},
    "flat": lambda tensors: {k: t.reshape(-1) for k, t in tensors.items()},
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_a_checkpoint_of_something_else(begun, smoke_config, change):
    path, trainee, run = begun
    run.save_checkpoint(change(trainee.tensors()), {"step": 1, "seconds": 1.0})
    with pytest.raises(UserError, match="checkpoint .* is damaged"):
        pretrain(smoke_config, path)


@pytest.mark.parametrize(
    "line", ["3", "[]", '{"step": "x"}', '{"loss": 1}', '{"step": 1, "x": {}}']
)
def test_logs_with_odd_lines(begun, line):
    log = begun[0] / "log.jsonl"
    log.write_text(line + "\n" + log.read_text())
    with pytest.raises(UserError, match="log .* is damaged in line 1"):
        read_log(log)


def test_a_runs_files_are_its_own(begun, smoke_config, tmp_path):
    """A log that is a link would be written to elsewhere."""
    path, _, _ = begun
    (tmp_path / "precious").write_text("mine\n")
    (path / "log.jsonl").unlink()
    (path / "log.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="is a link"):
        pretrain(smoke_config, path)
    assert (tmp_path / "precious").read_text() == "mine\n"


@pytest.mark.parametrize("name", [".lock", "log.jsonl", "config.json", "checkpoint.safetensors"])
def test_pipes_and_directories_in_a_run(begun, smoke_config, name):
    path = begun[0]
    for make in (os.mkfifo, os.mkdir):
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink(True)
        make(path / name)
        if name == ".lock" and make is os.mkfifo:
            continue  # a pipe can be locked as well as a file
        with pytest.raises(UserError):
            pretrain(smoke_config, path)


def test_config_json_of_wrong_content(begun, smoke_config):
    for text in ("[]", "{", "3", '{"hash": 3}', "\xff", "[" * 5000):
        (begun[0] / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match="choose another --out"):
            pretrain(smoke_config, begun[0])


def test_resolve_is_not_fooled_by_a_directory(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(UserError):
        load_model(tmp_path / "model.safetensors")
    resolve(PretrainConfig, "pretrain", "bandit")


def test_a_run_that_was_killed_before_it_said_what_it_is_goes_on(tmp_path, smoke_config):
    """Between the directory, its lock and its configuration; and in the middle of a file."""
    path = tmp_path / "run"
    path.mkdir()
    (path / ".lock").touch()
    (path / ".config.json.abcd1234").write_text("{")
    run = RunDirectory(path, smoke_config)
    (path / ".checkpoint.safetensors.abcd1234").write_text("half")
    (path / ".mine").write_text("kept")
    run.close()
    RunDirectory(path, smoke_config).close()
    assert sorted(p.name for p in path.iterdir()) == [".lock", ".mine", "config.json"]
