"""The two figures: the worst single attack, and each task's worst case, without selection bias.

The largest of several noisy numbers is too large. So what is worst is chosen on one half of the
luck and measured on the other; then the halves change places, and the two are averaged. Equal
attacks then have the figure that each of them has. What is chosen may be the second worst, so the
expected figure is a lower bound of the true worst case over these attacks. That in turn is a lower
bound of what an attacker within the budget can do.

A task's few episodes are noisy. So its attack is chosen by the task's own score and the attack's
mean over all tasks, half and half: with the task's score alone, the choice is so often wrong that
the figure falls below that of the worst single attack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mithridate.intervals import mean_ci95

OWN = 0.5
"""The weight of a task's own score in the choice of its attack."""
Scores = Mapping[str, Sequence[Sequence[float]]]
"""By attack: (halves, tasks)."""


@dataclass(frozen=True)
class Figure:
    """A mean over tasks and 2 × SEM over tasks."""

    by_task: list[float]
    mean: float
    ci95: float

    @classmethod
    def of(cls, by_task: Tensor) -> Figure:
        values: list[float] = by_task.tolist()
        return cls(values, *mean_ci95(values))


def single_worst(scores: Scores, better: str) -> tuple[str, Figure]:
    """The attack whose mean over everything is worst, and what the worst attack costs. The figure
    is of the attack that is worst in one half, measured in the other."""
    names, table = _table(scores, better)
    chosen = table.mean(2).argmax(0)  # (halves,)
    crossed = (table[chosen[0], 1] + table[chosen[1], 0]) / 2
    named = names[int(table.mean((1, 2)).argmax())]
    return named, Figure.of(_sign(better) * crossed)


def worst_case(scores: Scores, better: str) -> tuple[dict[str, float], Figure]:
    """Each task under the attack that is worst for it: the share of the tasks that each attack is
    chosen for, and the figure."""
    names, table = _table(scores, better)
    chosen = (OWN * table + (1 - OWN) * table.mean(2, keepdim=True)).argmax(0)  # (halves, tasks)
    first = table[:, 1].gather(0, chosen[:1]).squeeze(0)
    second = table[:, 0].gather(0, chosen[1:]).squeeze(0)
    counts = torch.bincount(chosen.flatten(), minlength=len(names))
    shares = {
        name: count / chosen.numel()
        for name, count in zip(names, counts.tolist(), strict=True)
        if count
    }
    return shares, Figure.of(_sign(better) * (first + second) / 2)


def paired(mine: Figure, other: Figure) -> tuple[float, float]:
    """Mean ± 2 SEM over tasks of the difference; both met the same tasks with the same luck."""
    pairs = zip(mine.by_task, other.by_task, strict=True)
    return mean_ci95([a - b for a, b in pairs])


def average(scores: Sequence[Sequence[float]]) -> Figure:
    """Of one attack."""
    return Figure.of(torch.tensor(scores, dtype=torch.float64).mean(0))


def _table(scores: Scores, better: str) -> tuple[list[str], Tensor]:
    """Names, and what the agent suffers (attacks, halves, tasks): more is worse."""
    table = torch.tensor(list(scores.values()), dtype=torch.float64)
    return list(scores), _sign(better) * table


def _sign(better: str) -> float:
    return 1.0 if better == "lower" else -1.0
