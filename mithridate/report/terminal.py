"""Tables for the terminal."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from mithridate.config import EnvConfig
from mithridate.evaluation.crossplay import Evaluation
from mithridate.report.paper import colour_range, orange, paper_clean, paper_value

ORANGE = (255, 128, 0)


def interval(mean: float | None, ci95: float | None, digits: int = 2) -> str:
    """'12.34 ± 0.56'; of a single value there is no interval."""
    if mean is None:
        return "–"
    if ci95 is None or math.isnan(ci95):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {ci95:.{digits}f}"


def evaluation_table(evaluation: Evaluation) -> Table:
    """One row per agent; with several attackers, one column for each."""
    if len(evaluation.columns()) > 1:
        return matrix_table(evaluation)
    first = evaluation.records[0]
    attack = "no attack"
    if first.kind != "clean":
        norm = max(record.norm for record in evaluation.records)
        attack = (
            f"{first.column} attack, eps {first.eps:g}, budget {first.budget:g} "
            f"(largest norm {norm:.2f})"
        )
    table = Table(title=f"{first.environment}: {first.metric}, {attack}", title_justify="left")
    table.add_column("agent")
    table.add_column(f"{first.metric} ± 2 SEM", justify="right")
    table.add_column("paper", justify="right")
    table.add_column("tasks", justify="right")
    table.add_column("seconds", justify="right")
    for agent, (mean, ci95) in evaluation.summary().items():
        rows = [record for record in evaluation.records if record.agent == agent]
        tasks = str(first.tasks) if len(rows) == 1 else f"{len(rows)} × {first.tasks}"
        table.add_row(
            agent, interval(mean, ci95), _paper(evaluation, agent, first.column, 2) or "–",
            tasks, f"{sum(row.seconds for row in rows):.1f}",
        )  # fmt: skip
    return table


def matrix_table(evaluation: Evaluation) -> Table:
    """Victims × attackers in the paper's colours (the more orange the better), the paper's value
    below ours, and each victim's worst attack."""
    first = evaluation.records[0]
    attacked = [record for record in evaluation.records if record.kind != "clean"]
    count = 1 + max(record.replication for record in evaluation.records)
    title = f"{first.environment}: {first.metric} ± 2 SEM"
    if attacked:
        norm = max(record.norm for record in attacked)
        title += (
            f", eps {attacked[0].eps:g}, budget {attacked[0].budget:g} (largest norm {norm:.2f})"
        )
    title += f"; {count} × {first.tasks} tasks, seed {first.seed}"
    pairs = [(agent, column) for agent in evaluation.agents() for column in evaluation.columns()]
    if any(_paper(evaluation, *pair, 2) for pair in pairs):
        title += "; below: the paper"
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("agent")
    for column, heading in evaluation.cells.headings.items():
        table.add_column("clean" if heading.kind == "clean" else column, justify="right")
    table.add_column("worst attack")
    for agent in evaluation.agents():
        cells = []
        for column in evaluation.columns():
            mean, ci95 = evaluation.cell(agent, column)
            text = Text(interval(mean, ci95, 1), style=_style(evaluation.env, column, mean))
            if paper := _paper(evaluation, agent, column, 1):
                text.append(f"\n{paper}", style="dim")
            cells.append(text)
        table.add_row(agent, *cells, worst_attack(evaluation, agent))
    return table


def worst_attack(evaluation: Evaluation, agent: str) -> str:
    """The attack under which an agent fares worst, and how it fares."""
    worst = evaluation.cells.worst(agent)
    return "–" if worst is None else f"{worst[0]}\n{worst[1]:.1f}"


def _paper(evaluation: Evaluation, agent: str, column: str, digits: int) -> str | None:
    attacked = next((r for r in evaluation.records if r.kind != "clean"), None)
    if attacked is None:
        value = paper_clean(evaluation.env, agent)
    else:
        eps, budget = attacked.eps, attacked.budget
        value = paper_value(evaluation.env, agent, column, eps=eps, budget=budget)
    return interval(*value, digits) if value else None


def _style(env: EnvConfig, column: str, value: float) -> str:
    """Black on orange, mixed with white as in the paper's tables."""
    scale = colour_range(env, column)
    if scale is None:
        return ""
    share = orange(value, scale)
    red, green, blue = (round(255 + share * (c - 255)) for c in ORANGE)
    return f"black on rgb({red},{green},{blue})"
