"""Put a finished run's model among those that ship: python scripts/ship.py RUN NAME.

Copies weights, card and log into mithridate/zoo, and the attackers that the model was trained along
with, if the run has kept any, after a look at whether they belong together.

    python scripts/ship.py --rename OLD NEW

gives a shipped model another name, on the cards of those that were trained from it or with it, too.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

from mithridate.config import hash_of
from mithridate.errors import UserError, shown
from mithridate.model.weights import ZOO, load_model, write_model
from mithridate.settings import parse
from mithridate.stage_config import AdversarialConfig, DistillConfig, PretrainConfig
from mithridate.tensor_files import tensors_sha256
from mithridate.training.attack_files import KEPT, beside, cotrained

NAME = r"[a-z][a-z0-9.-]*-s\d+"
ROLES = ("start", "rival")
KINDS = {"dpt": PretrainConfig, "ad": DistillConfig, "at-dpt": AdversarialConfig}


def ship(run: Path, name: str, zoo: Path = ZOO) -> dict[str, Any]:
    """Copy a run's model to `zoo`, under this name; its card."""
    if not re.fullmatch(NAME, name):
        raise UserError(f"name '{shown(name)}': small letters, digits and hyphens, ending in -s<n>")
    model, card = load_model(str(run))  # damaged or unfinished runs are refused here
    if hash_of(card["training"]) != card["config_hash"]:
        raise UserError(f"the card's configuration is not the one its hash was made of: {run}")
    if beside(run / "model.safetensors").exists():
        cotrained(run / "model.safetensors")
        shutil.copyfile(run / KEPT, zoo / f"{name}.{KEPT}")
    shutil.copyfile(run / "log.jsonl", zoo / f"{name}.log.jsonl")
    write_model(zoo / f"{name}.safetensors", model.state_dict(), by_name(card, zoo))
    return load_model(str(zoo / f"{name}.safetensors"))[1]


def rename(old: str, new: str, zoo: Path = ZOO) -> None:
    if not re.fullmatch(NAME, new) or (zoo / f"{new}.safetensors").exists():
        raise UserError(f"name '{shown(new)}' is taken, or is none")
    model, card = load_model(str(zoo / f"{old}.safetensors"))
    write_model(zoo / f"{new}.safetensors", model.state_dict(), _without_sha(card))
    for ending in ("log.jsonl", KEPT):
        if (zoo / f"{old}.{ending}").exists():
            (zoo / f"{old}.{ending}").rename(zoo / f"{new}.{ending}")
    for ending in ("safetensors", "json"):
        (zoo / f"{old}.{ending}").unlink()
    for path in sorted(zoo.glob("*-s*.json")):
        model, card = load_model(str(path.with_suffix(".safetensors")))
        if old in (card["training"].get(role) for role in ROLES):
            write_model(path.with_suffix(".safetensors"), model.state_dict(), by_name(card, zoo))


def _without_sha(card: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in card.items() if key != "sha256"}


def by_name(card: dict[str, Any], zoo: Path = ZOO) -> dict[str, Any]:
    """The card, with shipped models named where its training had their paths."""
    training = dict(card["training"])
    for role in ROLES:
        if training.get(role) is not None:
            training[role] = _shipped_as(training[f"{role}_sha256"], zoo) or role
    config = parse(KINDS[card["kind"]], training)  # fields that are new get their defaults
    return {**_without_sha(card), "training": config.to_json(), "config_hash": config.hash()}


def _shipped_as(sha256: str, zoo: Path) -> str | None:
    """The shipped model with these weights."""
    for path in sorted(zoo.glob("*.safetensors")):
        if not path.with_suffix(".json").exists():  # attackers
            continue
        if tensors_sha256(load_model(str(path))[0].state_dict()) == sha256:
            return path.stem
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rename", action="store_true")
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    options = parser.parse_args()
    try:
        if options.rename:
            return rename(str(options.run), options.name)
        metrics = ship(options.run, options.name)["metrics"]
    except UserError as error:
        parser.error(str(error))
    print(f"{options.name}: clean {metrics['clean_mean']:.2f} ± {metrics['clean_ci95']:.2f}")


if __name__ == "__main__":
    main()
