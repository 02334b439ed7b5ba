"""One table's records as cells: victims × columns, each over its replications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from mithridate.aggregates import Scores
from mithridate.evaluation.kinds import Heading, heading_of
from mithridate.intervals import mean_ci95, over_replications


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

    def scores(self, victim: str, columns: Sequence[str]) -> Scores | None:
        """(replications, columns): of the replications that have all columns; None if none has."""
        means = [self.means(victim, column) for column in columns]
        runs = sorted(set.intersection(*map(set, means))) if means else []
        return np.array([[m[run] for m in means] for run in runs]) if runs else None

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
