"""Damaged and mismatched weights are refused, in one line."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save

from mithridate.agents.in_context import load
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.model.weights import load_model, write_model, zoo_names


@pytest.fixture
def model(smoke_model, tmp_path):
    for suffix in (".safetensors", ".json"):
        shutil.copy(smoke_model.with_suffix(suffix), tmp_path / f"model{suffix}")
    return tmp_path / "model.safetensors"


def test_load_what_was_saved(model):
    loaded, card = load_model(model)
    tensors = load_file(model)
    assert all(torch.equal(t, tensors[name]) for name, t in loaded.state_dict().items())
    assert card["kind"] == "dpt"
    assert load(str(model.parent)).card == card, "the directory works as well as the file"


def test_truncated(model):
    model.write_bytes(model.read_bytes()[:-7])
    with pytest.raises(UserError, match="damaged: checksum"):
        load_model(model)


def test_every_flipped_bit_is_found(model):
    data = model.read_bytes()
    for position in range(0, len(data), len(data) // 23):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        model.write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            load_model(model)


def edit_card(weights, **changes):
    path = weights.with_suffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_weights_of_another_shape(model):
    loaded, card = load_model(model)

    def saved_with(**architecture):
        write_model(model, loaded.state_dict(), card | {"model": architecture})

    saved_with(layers=2, heads=2, width=32)
    with pytest.raises(UserError, match=r"do not fit their card: 'encoder.bias' should be \(32,\)"):
        load_model(model)
    saved_with(layers=3, heads=2, width=16)
    with pytest.raises(UserError, match="do not fit their card"):
        load_model(model)


def test_not_safetensors_at_all(model):
    import hashlib

    model.write_bytes(b"PK\x03\x04 a pickle, perhaps")
    edit_card(model, sha256=hashlib.sha256(model.read_bytes()).hexdigest())
    with pytest.raises(UserError, match="not a safetensors file"):
        load_model(model)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}'])
def test_damaged_cards(model, text):
    model.with_suffix(".json").write_text(text)
    with pytest.raises(UserError, match="card .* is damaged"):
        load_model(model)


def test_missing_files(model, tmp_path):
    with pytest.raises(UserError, match="not found"):
        load_model(tmp_path / "nothing.safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is the run finished"):
        load_model(tmp_path / "empty")
    with pytest.raises(UserError, match="unknown model 'nothing'"):
        load_model("nothing")
    model.with_suffix(".json").unlink()
    with pytest.raises(UserError, match="cannot read card"):
        load_model(model)


def test_a_model_in_the_wrong_environment(model):
    with pytest.raises(UserError, match="trained for 3 actions; the environment has 5"):
        evaluate("bandit", [str(model)], tasks=2)
    with pytest.raises(UserError, match="holds 20 transitions; the horizon is 21"):
        evaluate(make_env("bandit", arms=3, horizon=21), [str(model)], tasks=2)


def test_greedy_takes_the_mode(model):
    env = make_env("bandit", arms=3, horizon=20)
    results = evaluate(env, [str(model), f"{model}(greedy=true)"], tasks=50, threads=1).records
    assert results[0].mean != results[1].mean


def test_shipped_models_are_intact():
    for name in zoo_names():
        _, card = load_model(name)
        assert card["metrics"], name


def test_nothing_is_unpickled(model, monkeypatch):
    import pickle

    def never(*args, **kwargs):
        raise AssertionError("unpickled something")

    monkeypatch.setattr(pickle, "load", never)
    monkeypatch.setattr(pickle, "loads", never)
    monkeypatch.setattr(pickle, "Unpickler", never)
    load_model(model)
    assert save({"x": torch.zeros(1)})
