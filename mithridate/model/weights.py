"""Models on disk: safetensors for the weights, a JSON card beside them. Nothing is unpickled.

The card says what the weights are (environment, architecture, training, seed, versions, measured
metrics) and holds their SHA-256, so that damage is found before a model is used.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from mithridate.config import ModelConfig, parse
from mithridate.errors import UserError, unknown
from mithridate.files import write_atomic
from mithridate.model.context_model import ContextModel
from mithridate.model.layouts import make_model
from mithridate.registry import ENVS
from mithridate.versions import versions

ZOO = Path(__file__).parent.parent / "zoo"
CARD_FORMAT = 1


def save_model(path: Path, model: ContextModel, card: dict[str, Any]) -> None:
    """Write `path` (.safetensors) and its card (.json). The card must name env and kind."""
    data = save_tensors({name: t.detach().contiguous() for name, t in model.state_dict().items()})
    card = {
        "format": CARD_FORMAT,
        **card,
        "model": model.config.to_json(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": versions(),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    write_atomic(path, data)
    write_atomic(path.with_suffix(".json"), json.dumps(card, indent=2) + "\n")


def load_model(source: str | Path) -> tuple[ContextModel, dict[str, Any]]:
    """The model and its card, from a zoo name, a run's directory or a .safetensors file."""
    path = find(source)
    card = _read_card(path.with_suffix(".json"))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read weights {path}: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != card["sha256"]:
        raise UserError(
            f"weights {path} are damaged: checksum differs from the card's; restore them"
        )
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        raise UserError(f"weights {path} are not a safetensors file: {error}") from None

    env = ENVS.create(card["env"].get("name", ""), **card["env"])
    model = make_model(parse(ModelConfig, card["model"], where=f"card of {path}"), env.spec)
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"weights {path} do not fit their card: '{name}' should be "
                f"{expected.get(name, 'absent')}, is {found.get(name, 'absent')}"
            )
    model.load_state_dict(tensors)
    return model.eval(), card


def zoo_names() -> list[str]:
    """The models that ship with the package."""
    return sorted(path.stem for path in ZOO.glob("*.safetensors"))


def find(source: str | Path) -> Path:
    """The .safetensors file that `source` means."""
    if isinstance(source, str) and source in zoo_names():
        return ZOO / f"{source}.safetensors"
    path = Path(source)
    if path.is_dir():
        path = path / "model.safetensors"
        if not path.exists():
            raise UserError(f"no model.safetensors in {path.parent}: is the run finished?")
    if path.suffix == ".safetensors":
        if not path.exists():
            raise UserError(f"weights {path} not found")
        return path
    raise unknown("model", str(source), zoo_names())


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card: Any = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read the weights' card {path}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"card {path} is damaged: not JSON") from None
    if not isinstance(card, dict):
        raise UserError(f"card {path} is damaged: not a JSON object")
    missing = sorted({"format", "kind", "env", "model", "sha256"} - card.keys())
    if missing:
        raise UserError(f"card {path} is damaged: no {', '.join(missing)}")
    if card["format"] != CARD_FORMAT:
        raise UserError(f"card {path}: format {card['format']}; this version reads {CARD_FORMAT}")
    return card


def tensors_sha256(tensors: dict[str, torch.Tensor]) -> str:
    """A digest of names, types, shapes and contents, for checkpoints and bit-for-bit tests."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
