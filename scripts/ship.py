"""Put a finished run's model among those that ship: python scripts/ship.py RUN NAME.

Copies weights, card and log into mithridate/zoo, after a look at whether they belong together.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from mithridate.model.weights import ZOO, load_model
from mithridate.settings import parse
from mithridate.stage_config import AdversarialConfig, DistillConfig, PretrainConfig

KINDS = {"dpt": PretrainConfig, "ad": DistillConfig, "at-dpt": AdversarialConfig}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    options = parser.parse_args()
    _, card = load_model(options.run)  # damaged or unfinished runs are refused here
    config = parse(KINDS[card["kind"]], card["training"])
    if config.hash() != card["config_hash"]:
        parser.error(f"the card's configuration is not the one its hash was made of: {options.run}")
    for suffix, file in ((".safetensors", "model.safetensors"), (".json", "model.json"),
                         (".log.jsonl", "log.jsonl")):  # fmt: skip
        shutil.copyfile(options.run / file, ZOO / f"{options.name}{suffix}")
    metrics = card["metrics"]
    print(f"{options.name}: clean {metrics['clean_mean']:.2f} ± {metrics['clean_ci95']:.2f}")


if __name__ == "__main__":
    main()
