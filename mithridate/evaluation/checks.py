"""Flags: reasons not to trust an evaluation. Each is explained in docs/experiments.md.

They look at one table's records, the cells of all victims, attackers and replications.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mithridate.evaluation.kinds import Heading, heading_of
from mithridate.intervals import FEW_REPLICATIONS, mean_ci95, over_replications

FEW_TASKS = 100


@dataclass(frozen=True)
class Flag:
    code: str
    text: str


class Cells:
    """Records by victim and column, with each replication's mean."""

    def __init__(
        self, records: Sequence[dict[str, Any]], better: Literal["lower", "higher"]
    ) -> None:
        self.records = list(records)
        self.better = better
        self.victims: list[str] = list(dict.fromkeys(r["agent"] for r in records))
        self.headings: dict[str, Heading] = {}
        self._means: dict[tuple[str, str], dict[int, float]] = {}
        self._over_tasks: dict[tuple[str, str], list[float]] = {}
        for r in records:
            heading = heading_of(r)
            self.headings.setdefault(str(heading), heading)
            key = (r["agent"], str(heading))
            self._means.setdefault(key, {})[r["replication"]] = r["mean"]
            ci95 = math.nan if r["ci95"] is None else r["ci95"]
            self._over_tasks.setdefault(key, []).append(ci95)

    @property
    def columns(self) -> list[str]:
        return list(self.headings)

    def attacked(self, column: str) -> bool:
        return self.headings[column].kind != "clean"

    def means(self, victim: str, column: str) -> dict[int, float]:
        """By replication."""
        return self._means.get((victim, column), {})

    def cell(self, victim: str, column: str) -> tuple[float, float] | None:
        """See `over_replications`."""
        means = list(self.means(victim, column).values())
        if not means:
            return None
        known = torch.tensor([means, self._over_tasks[victim, column]], dtype=torch.float64)
        mean, ci95 = over_replications(known[0], known[1])
        return mean.item(), ci95.item()

    def of_kind(self, victim: str, kind: str) -> tuple[float, float] | None:
        """The cell in the first column of a kind."""
        columns = (column for column, heading in self.headings.items() if heading.kind == kind)
        return self.cell(victim, next(columns, ""))

    def worse(self, a: float, b: float) -> bool:
        """Whether a is a worse score than b."""
        return a > b if self.better == "lower" else a < b

    def worst(self, victim: str) -> tuple[str, float] | None:
        """The attack under which a victim fares worst."""
        found = [
            (column, cell[0])
            for column in self.columns
            if self.attacked(column) and (cell := self.cell(victim, column))
        ]
        if not found:
            return None
        pick = max if self.better == "lower" else min
        return pick(found, key=lambda pair: pair[1])


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
    tasks = min((r["tasks"] for r in cells.records), default=FEW_TASKS)
    if tasks < FEW_TASKS:
        found.append(Flag("few-tasks", f"replications have {tasks} tasks only"))
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


def paired_difference(
    cells: Cells, victim: str, other: str, column: str
) -> tuple[float, float] | None:
    """Mean ± 2 SEM over replications of victim minus other; both met the same tasks and luck."""
    mine, theirs = cells.means(victim, column), cells.means(other, column)
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        return None
    return mean_ci95([mine[r] - theirs[r] for r in common])


def best_other(cells: Cells, victim: str, column: str, leave_out: Sequence[str] = ()) -> str | None:
    """The best of the other victims in a column."""
    others = [
        (v, cell[0])
        for v in cells.victims
        if v != victim and v not in leave_out and (cell := cells.cell(v, column))
    ]
    if not others:
        return None
    pick = min if cells.better == "lower" else max
    return pick(others, key=lambda pair: pair[1])[0]
