"""Put a finished run's model among those that ship: python scripts/ship.py RUN NAME.

Copies weights, card and log into mithridate/zoo, and the attackers that the model was trained along
with, if the run has kept any, after a look at whether they belong together.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

from mithridate.errors import UserError, shown
from mithridate.model.weights import ZOO, load_model
from mithridate.settings import parse
from mithridate.stage_config import AdversarialConfig, DistillConfig, PretrainConfig
from mithridate.training.attack_files import KEPT, beside, cotrained

NAME = r"[a-z][a-z0-9.-]*-s\d+"
FILES = {
    ".safetensors": "model.safetensors", ".json": "model.json", ".log.jsonl": "log.jsonl"
}  # fmt: skip
KINDS = {"dpt": PretrainConfig, "ad": DistillConfig, "at-dpt": AdversarialConfig}


def ship(run: Path, name: str, zoo: Path = ZOO) -> dict[str, Any]:
    """Copy a run's model to `zoo`, under this name; its card."""
    if not re.fullmatch(NAME, name):
        raise UserError(f"name '{shown(name)}': small letters, digits and hyphens, ending in -s<n>")
    _, card = load_model(str(run))  # damaged or unfinished runs are refused here
    config = parse(KINDS[card["kind"]], card["training"])
    if config.hash() != card["config_hash"]:
        raise UserError(f"the card's configuration is not the one its hash was made of: {run}")
    files = dict(FILES)
    if beside(run / "model.safetensors").exists():
        cotrained(run / "model.safetensors")
        files[f".{KEPT}"] = KEPT
    for suffix, file in files.items():
        shutil.copyfile(run / file, zoo / f"{name}{suffix}")
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    options = parser.parse_args()
    try:
        metrics = ship(options.run, options.name)["metrics"]
    except UserError as error:
        parser.error(str(error))
    print(f"{options.name}: clean {metrics['clean_mean']:.2f} ± {metrics['clean_ci95']:.2f}")


if __name__ == "__main__":
    main()
