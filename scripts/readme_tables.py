"""Write the result tables of the READMEs anew: python scripts/readme_tables.py [--check].

The tables are a pure function of what `mithridate report` wrote beside the pages in results/.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from marked import written

from mithridate.evaluation.kinds import named

SCRIPT = "readme_tables.py"
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
TABLES = {
    "README.md": {"short": "bandit_files/bandit_main-laptop-3x-s0-eps0.4.csv"},
    "results/README.md": {
        "results": "bandit_files/bandit_main-laptop-3x-s0-eps0.4.csv",
        "adaptive": "report_files/bandit_adaptive-laptop-1x-s0-eps0.4.csv",
        "linear": "linear_files/linear_main-laptop-2x-s0-eps0.4.csv",
        "rooms": "darkroom2_files/darkroom2_main-laptop-2x-s0-eps0.4.csv",
        "boxes": "miniworld_files/miniworld_main-laptop-2x-s0-eps0.4.csv",
        **{
            f"{name} eps {eps}": f"{files}-eps{eps}.csv"
            for name, files in (
                ("bandit_full", "report_files/bandit_full-laptop-3x-s0"),
                ("linear_full", "linear_levels_files/linear_full-laptop-2x-s0"),
                ("darkroom2_full", "darkroom2_v1_files/darkroom2_full-laptop-1x-s0"),
            )
            for eps in ("0.1", "0.2", "0.4")
        },
        **{
            f"miniworld_full eps {eps}": f"miniworld_files/miniworld_full-laptop-1x-s0-eps{eps}.csv"
            for eps in ("0.1", "0.2")
        },
    },
}
"""By file, and the name between its markers."""
COLUMNS = {
    "results": (
        "paper(",
        "search(",
        "uniform",
        "raise_worst",
        "lower_best",
        "swap",
        "mirror",
        "none",
    ),
    "adaptive": ("adaptive(", "from_nothing(", "learned("),
    "linear": ("paper(", "search(", "uniform", "lower_best", "swap", "mirror", "none"),
    "rooms": ("learned(", "pooled(", "steady(", "uniform", "swap_goals", "decoys", "none"),
}
"""How the columns of a table begin that is not shown whole."""


SHORT = (
    "AT-DPT", "AT-DPT (as printed)", "mixture TS", "mixture TS (searched)", "DPT", "TS", "crUCB",
    "posterior oracle",
)  # fmt: skip
"""The rows of the short table."""


def short(source: str) -> str:
    """A few agents; the worst of the learned columns, and the search against the row itself."""
    cells = {(r["victim"], r["attacker"]): r for r in csv.DictReader((RESULTS / source).open())}
    lines = [
        "| algorithm | clean | random attack | learned, as the paper's | search: itself |",
        "|---|---|---|---|---|",
    ]
    for agent in SHORT:
        learned = [
            row for (who, column), row in cells.items() if (who, column[:6]) == (agent, "paper(")
        ]
        worst = max(learned, key=lambda row: float(row["mean"]))
        found = [cells[agent, "none"], cells[agent, "uniform"], worst]
        found.append(cells[agent, "search(itself)"])
        shown = [cell({**row, "paper_mean": ""}) for row in found]
        lines.append("| " + " | ".join([agent, *shown]) + " |")
    return "\n".join(lines)


def table(name: str, source: str) -> str:
    if name == "short":
        return short(source)
    rows = list(csv.DictReader((RESULTS / source).open()))
    wanted = COLUMNS.get(name, ("",))
    columns = list(dict.fromkeys(r["attacker"] for r in rows if r["attacker"].startswith(wanted)))
    victims = list(dict.fromkeys(row["victim"] for row in rows))
    cells = {(row["victim"], row["attacker"]): row for row in rows}
    lines = [
        "| " + " | ".join(["algorithm", *(title(c, name) for c in columns)]) + " |",
        "|" + "---|" * (len(columns) + 1),
    ]
    for victim in victims:
        shown = [cell(cells.get((victim, column))) for column in columns]
        lines.append("| " + " | ".join([victim, *shown]) + " |")
    return "\n".join(lines)


def title(column: str, name: str) -> str:
    heading = named(column)
    if name == "adaptive" and heading.kind == "learned":
        return f"non-adaptive: {heading.of}"  # the paper's word, in the paper's table
    return heading.described.line(heading.of)


def cell(row: dict[str, str] | None) -> str:
    if row is None or not row["mean"]:
        return "–"
    text = f"{float(row['mean']):.1f}"
    if row["ci95"]:
        text += f" ± {float(row['ci95']):.1f}"
    return f"{text} ({float(row['paper_mean']):.1f})" if row["paper_mean"] else text


def main() -> int:
    stale = False
    for file, tables in TABLES.items():
        path = ROOT / file
        text = path.read_text()
        made = written(text, {name: table(name, of) for name, of in tables.items()}, SCRIPT)
        stale = stale or made != text
        if "--check" not in sys.argv:
            path.write_text(made)
    return int("--check" in sys.argv and stale)


if __name__ == "__main__":
    sys.exit(main())
