"""The report's tables as CSV and LaTeX, its figures as PDF and PNG, its records as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

from mithridate.experiments.store import Store
from mithridate.files import make_directory, write_atomic
from mithridate.report.figures import lines_figure
from mithridate.report.picture import draw_room
from mithridate.report.views import CellView, SectionView, TableView, summarise


def export(store: Store, directory: Path) -> list[Path]:
    """Write everything into `directory`; the files written."""
    written = []
    for section in summarise(store):
        if not section.records and not section.curves:
            continue
        make_directory(directory)
        for table in section.tables:
            stem = f"{section.name}-eps{table.level.eps:g}"
            if len({level.budget for level in section.recipe.levels}) > 1:
                stem += f"-B{table.level.budget:g}"
            for suffix, text in (("csv", as_csv(table)), ("tex", as_latex(section, table))):
                path = directory / f"{stem}.{suffix}"
                write_atomic(path, text)
                written.append(path)
        path = directory / f"{section.name}.jsonl"
        write_atomic(path, "".join(json.dumps(record) + "\n" for record in section.records))
        written.append(path)
        for i, curve in enumerate(section.curves):
            name = _slug(curve.title)
            for suffix in ("pdf", "png"):
                path = directory / f"{section.name}-{i:02d}-{name}.{suffix}"
                lines_figure(curve.lines, path, curve.title, curve.xlabel, curve.ylabel)
                written.append(path)
        for i, room in enumerate(section.pictures):
            name = _slug(room.title.partition(",")[0])
            for suffix in ("svg", "png"):
                path = directory / f"{section.name}-picture-{i:02d}-{name}.{suffix}"
                draw_room(room, path)
                written.append(path)
    return written


def _slug(title: str) -> str:
    """As a part of a file's name, of a length that every file system can take."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:80]


def as_csv(table: TableView) -> str:
    """One line per cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["victim", "attacker", "eps", "budget", "mean", "ci95", "replications", "paper_mean",
         "paper_ci95", "difference", "verdict"]
    )  # fmt: skip
    for cell in table.cells():
        paper = cell.paper or (None, None)
        writer.writerow(
            [cell.victim, cell.column, table.level.eps, table.level.budget, cell.mean, cell.ci95,
             cell.replications, *paper, cell.difference, cell.verdict]
        )  # fmt: skip
    return text.getvalue()


def as_latex(section: SectionView, table: TableView) -> str:
    """A booktabs table in the paper's orange scale (needs booktabs and xcolor with [table])."""
    columns = " & ".join(_escape(c) for c in table.columns)
    lines = [
        f"% {section.recipe.title}; {section.replications} replications, seed {section.seed}",
        "\\begin{tabular}{l" + "c" * len(table.columns) + "}",
        "\\toprule",
        f"Algorithm & {columns} \\\\",
        "\\midrule",
    ]
    for victim, cells in table.rows:
        lines.append(" & ".join([_escape(victim), *(_latex_cell(c) for c in cells)]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _latex_cell(cell: CellView) -> str:
    if cell.mean is None:
        return "--"
    colour = f"\\cellcolor{{orange!{100 * cell.share:.0f}}}"
    interval = "" if cell.ci95 is None else f" $\\pm$ {cell.ci95:.1f}"
    return f"{colour}{cell.mean:.1f}{interval}"


def _escape(text: str) -> str:
    return re.sub(r"([_%&#])", r"\\\1", text)
