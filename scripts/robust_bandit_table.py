"""Measures `RobustBandit` beside others, and writes the tables of docs/robust_bandit.md.

    python scripts/robust_bandit_table.py                 measures what is missing, and writes
    python scripts/robust_bandit_table.py --show          writes what there is, measures nothing
    python scripts/robust_bandit_table.py --tasks 2 --only misjudged --out /tmp/try --doc page.md

Every cell (arms, horizon, attack, agent) is a file in --out, so it goes on where it was stopped.
All agents meet the same tasks with the same luck. It takes one thread. Up to 500 steps `mixture_ts`
plays for RobustBandit, in the kernels: there it is the same (part `equal`, and the tests).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from marked import written

from mithridate.agents.named import make_agent
from mithridate.attackers import make_attacker
from mithridate.envs import make_env
from mithridate.files import read_json_object, write_atomic
from mithridate.intervals import mean_ci95
from mithridate.rng import Rng
from mithridate.scores import step_scores

ROOT = Path(__file__).parent.parent
SEED = 2600
BUDGET = 3.0
NOISE = 0.3
OURS = {"short": "mixture_ts", "middle": "robust_bandit", "long": "robust_bandit"}
"""Who plays for RobustBandit."""
PEERS = {"ts": "TS", "ucb1": "UCB1.0", "crucb": "crUCB"}
ARMS = (2, 5, 10, 50)
POISON = {
    "short": (
        ("none", 0.0), ("mirror", 0.1), ("mirror", 0.2), ("mirror", 0.4), ("lower_best", 0.4),
        ("swap", 0.1), ("swap", 0.4),
    ),
    "middle": (("none", 0.0), ("mirror", 0.4), ("lower_best", 0.4), ("swap", 0.4)),
    "long": (("none", 0.0), ("mirror", 0.4)),
}  # fmt: skip
SIZES = {"short": (200, (200, 500)), "middle": (24, (2000,)), "long": (8, (10_000,))}
"""Tasks, and after how many steps the regret is read."""
FEW = {("long", 10): 4, ("long", 50): 4}
"""Where there are fewer tasks."""
DOUBT = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.48)
"""What it is told, where nothing is poisoned."""
MISJUDGED = {
    "all as it is": {},
    "noise × 1.5": {"noise": 1.5 * NOISE},
    "noise ÷ 1.5": {"noise": NOISE / 1.5},
    "corruption + 0.1": {"corruption": 0.4},
    "corruption − 0.1": {"corruption": 0.2},
    "corruption inferred": {"corruption": None},
}


@dataclass(frozen=True)
class Cell:
    part: str
    agent: str
    arms: int
    horizon: int
    attack: str
    eps: float
    tasks: int
    read: tuple[int, ...]
    """After how many steps the regret is read."""

    @property
    def file(self) -> str:
        agent = "".join(c if c.isalnum() else "-" for c in self.agent)
        size = f"{self.arms}x{self.horizon}-{self.attack}-{self.eps:g}-{self.tasks}"
        return f"{self.part}-{agent}-{size}.json"


def called(name: str, told: float, **others: float | None) -> str:
    """An agent that is told this share of poisoned steps."""
    settings: dict[str, float | None] = {}
    if name == "robust_bandit":
        settings = {"corruption": told, **others}
    elif name == "mixture_ts":
        settings = {"eps": told}
    elif name == "crucb":
        settings = {"alpha": told}
    inside = ",".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return f"{name}({inside})" if inside else name


def tells(part: str, eps: float) -> tuple[float, ...]:
    """What share of poisoned steps agents are told; without poison the worst, and none."""
    return (eps,) if eps else (0.4,) if part == "long" else (0.4, 0.0)


def cells() -> list[Cell]:
    found = [
        Cell("equal", called(name, 0.4), 5, 500, attack, eps, 100, (500,))
        for attack, eps in (("none", 0.0), ("mirror", 0.4), ("swap", 0.4))
        for name in ("robust_bandit", "mixture_ts")
    ]
    for part, ours in OURS.items():
        for arms in ARMS:
            for attack, eps in POISON[part]:
                for told in tells(part, eps):
                    for name in (ours, *PEERS):
                        found.append(beside(part, name, told, arms, attack, eps))
    found += [doubt(name, told) for told in DOUBT for name in ("mixture_ts", "ts")]
    for attack, eps in (("none", 0.0), ("mirror", 0.3), ("swap", 0.3)):
        for others in MISJUDGED.values():
            agent = called("robust_bandit", 0.3, **others)
            found.append(Cell("misjudged", agent, 5, 500, attack, eps, 100, (200, 500)))
    return list(dict.fromkeys(found))


def beside(part: str, name: str, told: float, arms: int, attack: str, eps: float) -> Cell:
    """A cell of the tables with several agents."""
    tasks, read = SIZES[part]
    tasks = FEW.get((part, arms), tasks)
    return Cell(part, called(name, told), arms, read[-1], attack, eps, tasks, read)


def doubt(name: str, told: float) -> Cell:
    return Cell("doubt", called(name, told), 5, 500, "none", 0.0, 2000, (500,))


def measure(cell: Cell) -> dict[str, object]:
    """The regrets of each task after so many steps."""
    begun = time.process_time()
    env = make_env("bandit", arms=cell.arms, horizon=cell.horizon)
    tasks = env.sample_tasks(cell.tasks, Rng(SEED).child("tasks"))
    attacker = None if cell.attack == "none" else make_attacker(cell.attack, BUDGET)
    agent = make_agent(cell.agent)[1]
    scores = step_scores(env, tasks, agent, attacker, cell.eps, rng=Rng(SEED).child("luck"))
    regret = scores.double().cumsum(1)
    read = {str(step): regret[:, step - 1].tolist() for step in cell.read}
    return {"cell": asdict(cell), "regret": read, "seconds": time.process_time() - begun}


# The page -----------------------------------------------------------------------------------------


class Found:
    def __init__(self, directory: Path, tasks: int | None) -> None:
        self.directory, self.tasks = directory, tasks
        self.seconds = 0.0

    def sized(self, cell: Cell) -> Cell:
        return cell if self.tasks is None else replace(cell, tasks=self.tasks)

    def regrets(self, cell: Cell, step: int) -> list[float] | None:
        path = self.directory / self.sized(cell).file
        if not path.exists():
            return None
        said = read_json_object(path, "cell")
        if said["cell"] != json.loads(json.dumps(asdict(self.sized(cell)))):
            return None
        found: list[float] = said["regret"][str(step)]
        return found

    def shown(self, cell: Cell, step: int) -> str:
        found = self.regrets(cell, step)
        if found is None:
            return "–"
        mean, ci95 = mean_ci95(found)
        return f"{mean:.1f} ± {ci95:.1f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def poison(cell: Cell) -> str:
    return "none" if cell.attack == "none" else f"{cell.attack} {cell.eps:g}"


def side_by_side(found: Found, part: str) -> str:
    steps = SIZES[part][1]
    names = {OURS[part]: "RobustBandit", **PEERS}
    header = ["arms", "poison", "told"]
    header += [f"{title} @ {step:,}" for step in steps for title in names.values()]
    rows = []
    for arms in ARMS:
        for attack, eps in POISON[part]:
            for told in tells(part, eps):
                row = [beside(part, name, told, arms, attack, eps) for name in names]
                shown = [found.shown(cell, step) for step in steps for cell in row]
                rows.append([str(arms), poison(row[0]), f"{told:g}", *shown])
    return table(header, rows)


def misjudged(found: Found) -> str:
    mine = [cell for cell in cells() if cell.part == "misjudged"]
    situations = list(dict.fromkeys(poison(cell) for cell in mine))
    header = ["what the user says"]
    header += [f"{one} @ {step:,}" for one in situations for step in mine[0].read]
    rows = []
    for name, others in MISJUDGED.items():
        agent = called("robust_bandit", 0.3, **others)
        row = [c for c in mine if c.agent == agent]
        rows.append([name, *(found.shown(c, step) for c in row for step in c.read)])
    return table(header, rows)


def equal(found: Found) -> str:
    rows = []
    mine = [cell for cell in cells() if cell.part == "equal"]
    for ours, theirs in zip(mine[::2], mine[1::2], strict=True):
        a, b = (found.regrets(cell, 500) for cell in (ours, theirs))
        apart = "–"
        if a is not None and b is not None:
            apart = f"{max(abs(x - y) for x, y in zip(a, b, strict=True)):g}"
        shown = [found.shown(cell, 500) for cell in (ours, theirs)]
        rows.append([poison(ours), *shown, apart])
    return table(["poison", "RobustBandit", "mixture_ts", "largest difference in a task"], rows)


def clean(found: Found) -> str:
    """Without poison, in units of Thompson sampling's regret."""
    rows = []
    for arms in ARMS:
        for part, (_, steps) in SIZES.items():
            for step in steps:
                row = [str(arms), f"{step:,}"]
                for told in (0.4, 0.0):
                    ours, ts = (
                        beside(part, name, told, arms, "none", 0.0) for name in (OURS[part], "ts")
                    )
                    row.append(ratio(found.regrets(ours, step), found.regrets(ts, step)))
                rows.append(row)
    return table(["arms", "steps", "told 0.4", "told 0"], rows)


def price(found: Found) -> str:
    """The same at 5 arms and 500 steps, for more shares that it is told."""
    ts = found.regrets(doubt("ts", 0.0), 500)
    shown = [ratio(found.regrets(doubt("mixture_ts", told), 500), ts) for told in DOUBT]
    return table(["told", *(f"{told:g}" for told in DOUBT)], [["regret, of TS's", *shown]])


def ratio(ours: list[float] | None, theirs: list[float] | None) -> str:
    """Of two means over the same tasks, ± 2 standard errors."""
    if ours is None or theirs is None:
        return "–"
    found = sum(ours) / sum(theirs)
    gaps = [x - found * y for x, y in zip(ours, theirs, strict=True)]
    error = mean_ci95(gaps)[1] / (sum(theirs) / len(theirs))
    return f"{found:.2f} ± {error:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "robust_bandit_table")
    parser.add_argument("--doc", type=Path, default=ROOT / "docs" / "robust_bandit.md")
    parser.add_argument("--tasks", type=int, help="of every cell; less than the table's, to try")
    parser.add_argument("--steps", type=int, help="measure no cells that are longer")
    parser.add_argument("--only", choices=("equal", *OURS, "doubt", "misjudged"))
    parser.add_argument("--arms", type=int, choices=ARMS, help="measure only cells with so many")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.out.mkdir(parents=True, exist_ok=True)
    found = Found(chosen.out, chosen.tasks)
    for cell in cells():
        cell = found.sized(cell)
        if chosen.show or chosen.only not in (None, cell.part):
            continue
        if chosen.arms not in (None, cell.arms):
            continue
        if chosen.steps is not None and cell.horizon > chosen.steps:
            continue
        if found.regrets(cell, cell.read[-1]) is None:
            said = measure(cell)
            write_atomic(chosen.out / cell.file, json.dumps(said))
            print(f"{said['seconds']:6.1f} s  {cell.file}", file=sys.stderr, flush=True)
    tables = {
        "equal": equal(found), "clean": clean(found), "doubt": price(found),
        "misjudged": misjudged(found),
        **{part: side_by_side(found, part) for part in OURS},
    }  # fmt: skip
    if chosen.doc.exists():
        page = chosen.doc.read_text()
        write_atomic(chosen.doc, written(page, tables, "robust_bandit_table.py"))
    else:
        print("\n\n".join(tables.values()))


if __name__ == "__main__":
    main()
