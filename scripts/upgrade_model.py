"""Bring models of the first edition up to date: python scripts/upgrade_model.py FILE.safetensors …

Their cards were not bound to their weights (format 1). The weights must have the checksum that the
card says; what else the card says is believed, so upgrade only what you trust.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from mithridate.errors import UserError
from mithridate.files import read_json_object
from mithridate.model.weights import load_model, write_model
from mithridate.tensor_files import read_tensors


def upgrade(path: Path) -> None:
    card = read_json_object(path.with_suffix(".json"), "card", nan=True)
    if card.get("format") != 1:
        raise UserError(f"{path}: its card is not of format 1")
    tensors, _, data = read_tensors(path, "weights")
    if hashlib.sha256(data).hexdigest() != card.get("sha256"):
        raise UserError(f"{path}: the weights are damaged; restore them")
    write_model(path, tensors, {k: v for k, v in card.items() if k not in ("format", "sha256")})
    load_model(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    for path in options.files:
        try:
            upgrade(path)
        except UserError as error:
            parser.error(str(error))
        print(path)


if __name__ == "__main__":
    main()
