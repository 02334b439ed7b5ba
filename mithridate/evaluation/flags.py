"""Flags: reasons not to trust an evaluation. Each is explained in docs/statistics.md.

They look at one table's records, the cells of all victims, attackers and replications.
"""

from __future__ import annotations

from dataclasses import dataclass

from mithridate.evaluation.cells import Cells
from mithridate.evaluation.kinds import heading_of
from mithridate.intervals import FEW_REPLICATIONS

FEW_TASKS = 100


@dataclass(frozen=True)
class Flag:
    code: str
    text: str


def flags(cells: Cells) -> list[Flag]:
    """What is suspicious about these cells."""
    found: list[Flag] = []
    counts = {len(cells.means(v, c)) for v in cells.victims for c in cells.columns} - {0}
    if counts and min(counts) < FEW_REPLICATIONS:
        number = "one replication" if min(counts) == 1 else f"{min(counts)} replications"
        found.append(Flag("few-replications", f"some cells rest on {number} only"))
    learned = [r for r in cells.records if r["target"] is not None]
    if learned and len({r["replication"] for r in learned}) == 1:
        found.append(
            Flag("not-crossed", "with one replication, a model meets the attackers trained on it")
        )
    few = [r for r in cells.records if r["tasks"] < FEW_TASKS]
    if few:
        said = f"replications have {min(r['tasks'] for r in few)} tasks only"
        where = dict.fromkeys(r["agent"] for r in few)
        if len(few) < len(cells.records):
            said = f"{', '.join(where)}: {said}"
        found.append(Flag("few-tasks", said))
    for r in cells.records:
        if r["norm"] > r["budget"] * (1 + 1e-6):
            said = f"used a norm of {r['norm']:.3g}, its budget is {r['budget']:g}"
            found.append(Flag("over-budget", f"{heading_of(r)} {said}"))
            break
    for victim in cells.victims:
        found += _about(cells, victim)
    return found


def _about(cells: Cells, victim: str) -> list[Flag]:
    found = []
    clean = cells.of_kind(victim, "clean")
    for column in cells.columns:
        cell = cells.cell(victim, column)
        if clean and cell and cells.attacked(column) and _clearly(cells, clean, cell):
            found.append(Flag("poison-helps", f"{victim} fares better under {column} than clean"))
    learned = [c for c, heading in cells.headings.items() if heading.described.trained]
    random = cells.of_kind(victim, "random")
    against = [cell for c in learned if (cell := cells.cell(victim, c))]
    if random and against and all(_clearly(cells, random, cell) for cell in against):
        found.append(
            Flag("random-beats-learned", f"the random attack hurts {victim} more than any learned")
        )
    return found


def _clearly(cells: Cells, a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether a is worse than b by more than both intervals."""
    margin = sum(x for x in (a[1], b[1]) if x == x)
    shifted = b[0] + margin if cells.better == "lower" else b[0] - margin
    return cells.worse(a[0], shifted)
