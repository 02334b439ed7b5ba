"""Write the README's result table anew from results/: python scripts/readme_tables.py [--check].

The table is a pure function of what `mithridate report` wrote into results/report_files.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "results" / "report_files" / "bandit_main-laptop-3x-s0-eps0.4.csv"
BEGIN, END = "<!-- results: begin (scripts/readme_tables.py) -->", "<!-- results: end -->"
TITLES = {"none": "clean", "uniform": "uniform random"}


def table() -> str:
    rows = list(csv.DictReader(SOURCE.open()))
    columns = list(dict.fromkeys(row["attacker"] for row in rows))
    victims = list(dict.fromkeys(row["victim"] for row in rows))
    cells = {(row["victim"], row["attacker"]): row for row in rows}
    lines = [
        "| " + " | ".join(["algorithm", *(title(c) for c in columns)]) + " |",
        "|" + "---|" * (len(columns) + 1),
    ]
    for victim in victims:
        shown = [cell(cells[victim, column]) for column in columns]
        lines.append("| " + " | ".join([victim, *shown]) + " |")
    return "\n".join(lines)


def title(column: str) -> str:
    return TITLES.get(column, re.sub(r"learned\((.*)\)", r"\1", column).replace("_", " "))


def cell(row: dict[str, str]) -> str:
    text = f"{float(row['mean']):.1f} ± {float(row['ci95']):.1f}"
    return f"{text} ({float(row['paper_mean']):.1f})" if row["paper_mean"] else text


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "--check" in sys.argv:
        return 0 if made == text else 1
    readme.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
