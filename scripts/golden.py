"""Golden records: what every recipe gives at its smallest, to hold a change of the code against.

    python scripts/golden.py --store STORE           compute what is missing there (many minutes)
    python scripts/golden.py --store STORE --write   and write the numbers to tests/golden/
    python scripts/golden.py --store STORE --check   and say where they differ from those
    python scripts/golden.py --store STORE --check --every 41     only every 41st cell

Everything runs on the PyTorch path, so that our kernels' instruction set does not matter. PyTorch
has its own, and on another processor the last digit of a number of single precision may differ. No
other digit may: a change that is not meant to change results changes none of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["MITHRIDATE_KERNELS"] = "reference"

from mithridate.evaluation.kinds import heading_of
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import Plan, plan
from mithridate.experiments.recipes import RECIPES
from mithridate.experiments.stages import Stage, in_order
from mithridate.experiments.store import Store

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
REPLICATIONS = 2
LAST_DIGIT = 3e-7
"""Of a number of single precision, relative to it; means over steps may add up a few."""
Numbers = dict[str, list[float]]


def planned(name: str) -> Plan:
    return plan(RECIPES[name], "smoke", REPLICATIONS)


def numbers(records: list[dict[str, Any]]) -> Numbers:
    """Mean and norm of each cell, by who met whom, where and in which replication."""
    return {
        f"{r['agent']} | {heading_of(r)} | {r['level']:g} | {r['level_budget']:g} | "
        f"{r['replication']}": [r["mean"], r["norm"]]
        for r in records
    }


def of_store(store: Store, cells: Sequence[Stage]) -> Numbers:
    found = (store.get(stage.name) for stage in cells)
    return numbers([record for artifact in found if artifact for record in artifact.records()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    options = parser.parse_args()
    store = Store.open(options.store)
    differing = 0
    for name in options.recipes:
        cells = planned(name).cells[:: options.every]
        run_graph(in_order(list(cells)), store)
        found = of_store(store, cells)
        path = GOLDEN / f"{name}.json"
        if options.write:
            path.parent.mkdir(exist_ok=True)
            lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items())
            path.write_text("{\n" + lines + "\n}\n")
        if options.check:
            golden: Numbers = json.loads(path.read_text())
            if options.every > 1:
                golden = {key: golden[key] for key in found}
            differing += _compare(name, found, golden)
        print(f"{name}: {len(found)} cells", flush=True)
    return 1 if differing else 0


def _differ(found: list[float], golden: list[float]) -> bool:
    pairs = zip(found, golden, strict=True)
    return not all(math.isclose(*pair, rel_tol=LAST_DIGIT) for pair in pairs)


def _compare(name: str, found: Numbers, golden: Numbers) -> int:
    common = found.keys() & golden.keys()
    keys = [*(found.keys() ^ golden.keys()), *(k for k in common if _differ(found[k], golden[k]))]
    for key in sorted(keys):
        print(f"{name}: {key}: was {golden.get(key)}, is {found.get(key)}")
    return len(keys)


if __name__ == "__main__":
    sys.exit(main())
