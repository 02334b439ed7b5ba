"""Models on disk: safetensors for the weights, a JSON card beside them. Nothing is unpickled.

The card says what the weights are (environment, architecture, temperature, training, seed,
versions, measured metrics). They belong together: the card holds the SHA-256 of the weights' file,
and that file a digest of the rest of the card. Another number of heads, or another temperature, is
another agent, so a card that was edited is refused like weights that were damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from mithridate.config import ModelConfig, Temperature
from mithridate.errors import UserError, unknown
from mithridate.files import read_bytes, read_json_object, shown, write_atomic
from mithridate.model.context_model import ContextModel
from mithridate.model.layouts import make_model
from mithridate.registry import ENVS
from mithridate.settings import parse
from mithridate.tensor_files import misfit, not_finite, packed, unpacked
from mithridate.versions import versions

ZOO = Path(__file__).parent.parent / "zoo"
CARD_FORMAT = 2
"""2: cards and weights know each other."""


class CardForm(BaseModel):
    """What a card must have, whatever else it says."""

    model_config = ConfigDict(strict=True, extra="allow")

    kind: str
    env: dict[str, Any]
    model: dict[str, Any]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    temperature: Temperature = 1.0
    metrics: dict[str, float | None] = {}
    training: dict[str, Any] = {}
    stage_version: int = 1


def save_model(path: Path, model: ContextModel, card: Mapping[str, Any]) -> None:
    """Write `path` (.safetensors) and its card (.json). The card must name env and kind."""
    about = {
        **card,
        "model": model.config.to_json(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": versions(),
    }
    write_model(path, model.state_dict(), about)


def write_model(path: Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Weights and card as they are, each with the digest of the other."""
    if (broken := not_finite(tensors)) is not None:
        raise UserError(f"'{broken}' is not finite: such a model is not written to {shown(path)}")
    about = {**card, "format": CARD_FORMAT}
    data = packed(tensors, {"card": _digest(about)})
    about["sha256"] = hashlib.sha256(data).hexdigest()
    write_atomic(path, data)
    write_atomic(path.with_suffix(".json"), json.dumps(about, indent=2) + "\n")


def _digest(card: Mapping[str, Any]) -> str:
    """Of all that a card says, but for the digest of the weights."""
    rest = {key: value for key, value in card.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def load_model(source: str | Path) -> tuple[ContextModel, dict[str, Any]]:
    """The model and its card, from a zoo name, a run's directory or a .safetensors file."""
    path = find(source)
    card = _read_card(path.with_suffix(".json"))
    data = read_bytes(path, "file of weights")
    if hashlib.sha256(data).hexdigest() != card["sha256"]:
        raise UserError(
            f"weights {shown(path)} are damaged: checksum differs from the card's; restore them"
        )
    tensors, metadata = unpacked(data, f"file of weights {shown(path)}")
    if metadata.get("card") != _digest(card):
        raise UserError(
            f"card {shown(path.with_suffix('.json'))} is damaged: it is not the one that its "
            "weights were saved with; restore it"
        )
    env = ENVS.create(str(card["env"].get("name", "")), **card["env"])
    config = parse(ModelConfig, card["model"], where=f"card of {shown(path)}")
    model = make_model(config, env.spec)
    if (difference := misfit(tensors, model.state_dict())) is not None:
        raise UserError(f"weights {shown(path)} do not fit their card: {difference}")
    model.load_state_dict(tensors)
    return model.eval(), card


def zoo_names() -> list[str]:
    """The models that ship with the package. Beside one may be the attackers that it was trained
    along with, <name>.attackers.safetensors."""
    found = (path.stem for path in ZOO.glob("*.safetensors"))
    return sorted(name for name in found if not name.endswith(".attackers"))


def find(source: str | Path) -> Path:
    """The .safetensors file that `source` means."""
    if isinstance(source, str) and source in zoo_names():
        return ZOO / f"{source}.safetensors"
    if not isinstance(source, str | Path):
        raise UserError(f"model: its name or path must be a string, not {shown(source, 40)}")
    path = Path(source)
    if os.path.isdir(path):
        path = path / "model.safetensors"
        if not os.path.exists(path):
            raise UserError(f"no model.safetensors in {shown(path.parent)}: is the run finished?")
    if path.suffix == ".safetensors":
        if not os.path.exists(path):
            raise UserError(f"weights {shown(path)} not found")
        return path
    raise unknown("model", str(source), zoo_names())


def _read_card(path: Path) -> dict[str, Any]:
    card = read_json_object(path, "card", nan=True)
    if card.get("format") == 1:
        raise UserError(
            f"card {shown(path)} is of an earlier edition: train the model again (with a store: in "
            "a new one), or, if you trust it, run scripts/upgrade_model.py"
        )
    if card.get("format") != CARD_FORMAT:
        raise UserError(
            f"card {shown(path)}: format {shown(card.get('format'), 40)}; this version reads "
            f"{CARD_FORMAT}"
        )
    try:
        CardForm.model_validate(card)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(
            f"card {shown(path)} is damaged: '{shown(place, 80)}': {shown(first['msg'])}"
        ) from None
    return card
