"""scripts/ship.py puts a finished run among the shipped models, or leaves everything as it was."""

import json
import os
import sys
from pathlib import Path

import pytest

from mithridate.errors import UserError
from mithridate.model.weights import ZOO, load_model
from mithridate.settings import parse, resolve
from mithridate.stage_config import AdversarialConfig
from mithridate.training.adversarial import train_adversarially
from mithridate.training.attack_files import cotrained

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from ship import rename, ship


def test_a_run_is_shipped_whole(smoke_model, tmp_path):
    card = ship(smoke_model.parent, "dpt-toy-s0", tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        "dpt-toy-s0.json", "dpt-toy-s0.log.jsonl", "dpt-toy-s0.safetensors"
    ]  # fmt: skip
    model, shipped = load_model(tmp_path / "dpt-toy-s0.safetensors")
    assert shipped == card
    different = {k for k, v in load_model(smoke_model)[1].items() if shipped[k] != v}
    assert not different
    assert len(model.state_dict()) == len(load_model(smoke_model)[0].state_dict())


def test_a_card_names_models_and_no_paths(smoke_model, tmp_path):
    config = resolve(
        AdversarialConfig, "train", "bandit", "smoke", ["rounds=1"], start=str(smoke_model)
    )
    weights = train_adversarially(config, tmp_path / "run")
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    assert ship(weights.parent, "at-dpt-toy-s0", zoo)["training"]["start"] == "start"
    ship(smoke_model.parent, "dpt-toy-s0", zoo)
    card = ship(weights.parent, "at-dpt-toy-s0", zoo)
    assert card["training"]["start"] == "dpt-toy-s0"
    assert parse(AdversarialConfig, card["training"]).hash() == card["config_hash"]
    assert str(tmp_path) not in (zoo / "at-dpt-toy-s0.json").read_text()
    cotrained(zoo / "at-dpt-toy-s0.safetensors")


def test_a_shipped_model_gets_another_name(smoke_model, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    ship(smoke_model.parent, "dpt-toy-s0", zoo)
    config = resolve(
        AdversarialConfig, "train", "bandit", "smoke", ["rounds=1"], start=str(smoke_model)
    )
    weights = train_adversarially(config, tmp_path / "run")
    ship(weights.parent, "at-dpt-toy-s0", zoo)
    before = load_model(zoo / "at-dpt-toy-s0.safetensors")[1]
    rename("dpt-toy-s0", "dpt-v1-toy-s0", zoo)
    rename("at-dpt-toy-s0", "at-dpt-v1-toy-s0", zoo)
    assert sorted(os.listdir(zoo)) == [
        "at-dpt-v1-toy-s0.attackers.safetensors", "at-dpt-v1-toy-s0.json",
        "at-dpt-v1-toy-s0.log.jsonl", "at-dpt-v1-toy-s0.safetensors", "dpt-v1-toy-s0.json",
        "dpt-v1-toy-s0.log.jsonl", "dpt-v1-toy-s0.safetensors",
    ]  # fmt: skip
    _, card = load_model(zoo / "at-dpt-v1-toy-s0.safetensors")
    assert card["training"]["start"] == "dpt-v1-toy-s0"
    assert card["metrics"] == before["metrics"]
    assert parse(AdversarialConfig, card["training"]).hash() == card["config_hash"]
    cotrained(zoo / "at-dpt-v1-toy-s0.safetensors")
    with pytest.raises(UserError, match="is taken"):
        rename("at-dpt-v1-toy-s0", "dpt-v1-toy-s0", zoo)


def test_no_shipped_card_has_a_path():
    for card in ZOO.glob("*.json"):
        training = json.loads(card.read_text())["training"]
        assert not any("/" in str(training.get(role)) for role in ("start", "rival")), card


def test_what_does_not_belong_together_is_refused(smoke_model, tmp_path):
    for name in ("", "../dpt-s0", "DPT-s0", "dpt"):
        with pytest.raises(UserError, match="name"):
            ship(smoke_model.parent, name, tmp_path)
    with pytest.raises(UserError, match="nowhere"):
        ship(tmp_path / "nowhere", "dpt-toy-s0", tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_card_with_another_configuration_is_refused(smoke_model, tmp_path):
    run, zoo = tmp_path / "run", tmp_path / "zoo"
    run.mkdir()
    zoo.mkdir()
    for name in ("model.safetensors", "log.jsonl"):
        (run / name).write_bytes((smoke_model.parent / name).read_bytes())
    card = json.loads((smoke_model.parent / "model.json").read_text())
    card["training"]["steps"] += 1
    (run / "model.json").write_text(json.dumps(card))
    with pytest.raises(UserError):
        ship(run, "dpt-toy-s0", zoo)
    assert os.listdir(zoo) == []
