"""A stress test for the terminal: a short table, the two figures, the flags."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from mithridate.report.terminal import interval
from mithridate.stress.run import ENTRY, PAGE, StressTest
from mithridate.stress.suites import CLEAN
from mithridate.stress.worst import average


def stress_title(test: StressTest) -> str:
    entry = test.entry
    return (
        f"{entry.agent} in {entry.environment}, suite {entry.suite}: {entry.metric} ± 2 SEM over "
        f"{test.suite.tasks} tasks ({entry.better} is better)"
    )


def stress_table(test: StressTest) -> Table:
    """One row for each attack, one column for each level, and what it spent at the hardest."""
    entry, suite = test.entry, test.suite
    table = Table()
    table.add_column("attack")
    for eps in suite.eps:
        table.add_column(f"eps {eps:g}", justify="right")
    table.add_column(f"norm of {suite.budget:g}", justify="right")
    clean = interval(entry.clean, entry.clean_ci95, 1)
    table.add_row(CLEAN.name, *[clean] * len(suite.eps), "–")
    for attack in suite.attacks:
        cells = []
        for eps in suite.eps:
            found = average(entry.under(attack.name, eps).scores)
            worst = next(f.worst_attack for f in entry.figures if f.eps == eps)
            mark = " ◀" if attack.name == worst else "  "
            cells.append(interval(found.mean, found.ci95, 1) + mark)
        table.add_row(
            attack.name, *cells, f"{entry.under(attack.name, suite.hardest).norm_mean:.2f}"
        )
    return table


def stress_lines(test: StressTest) -> Iterator[str]:
    """What is said below the table."""
    for figure in test.entry.figures:
        yield (
            f"eps {figure.eps:g}: worst single attack ({figure.worst_attack}) "
            f"{interval(figure.single, figure.single_ci95, 1)}; each task under its worst attack "
            f"{interval(figure.case, figure.case_ci95, 1)} (a lower bound)"
        )
    for flag in test.flags:
        yield f"flag {flag.code}: {flag.text}"
    if test.left_out:
        yield f"left out of {test.suite.name}: {'; '.join(test.left_out)}"
    if test.directory is not None:
        yield f"{test.directory / PAGE}"
        yield f"{test.directory / ENTRY}"
