"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.table import Table

from mithridate.evaluation.crossplay import Evaluation


def interval(mean: float, ci95: float) -> str:
    return f"{mean:.2f}" if math.isnan(ci95) else f"{mean:.2f} ± {ci95:.2f}"


def evaluation_table(
    evaluation: Evaluation, paper: Mapping[str, tuple[float, float] | None] | None = None
) -> Table:
    """One row per agent, best known order kept; with `paper`, its value beside ours."""
    first = evaluation.records[0]
    attack = "no attack"
    if first.attacker != "none":
        attack = f"{first.attacker} attack, eps {first.eps:g}, budget {first.budget:g}"
    table = Table(title=f"{first.environment}: {first.metric}, {attack}", title_justify="left")
    table.add_column("agent")
    table.add_column(f"{first.metric} ± 2 SEM", justify="right")
    if paper is not None:
        table.add_column("paper", justify="right")
    table.add_column("tasks", justify="right")
    table.add_column("seconds", justify="right")
    for agent, (mean, ci95) in evaluation.summary().items():
        rows = [record for record in evaluation.records if record.agent == agent]
        cells = [agent, interval(mean, ci95)]
        if paper is not None:
            value = paper.get(agent)
            cells.append(interval(*value) if value else "–")
        tasks = str(first.tasks) if len(rows) == 1 else f"{len(rows)} × {first.tasks}"
        table.add_row(*cells, tasks, f"{sum(row.seconds for row in rows):.1f}")
    return table
