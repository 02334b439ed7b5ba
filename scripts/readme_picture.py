"""Draw the README's picture of its short table: python scripts/readme_picture.py."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from readme_tables import ROOT, TABLES, short

OUT = ROOT / "docs/images/worst.png"
SERIES = (  # column of the table, words, colour
    (1, "no attack", "#8fa3b0"),
    (3, "learned attacks, as the paper's", "#e8a33d"),
    (4, "search against the row itself", "#b3261e"),
)


def main() -> None:
    rows = [
        line.strip("| ").split(" | ") for line in short(TABLES["README.md"]["short"]).split("\n")
    ]
    rows = [row for row in rows[2:] if row[4] != "–"]
    figure, axes = plt.subplots(figsize=(8, 2.9), dpi=150)
    for place, row in enumerate(rows):
        values = [float(row[column].split(" ± ")[0]) for column, _, _ in SERIES]
        axes.plot([values[0], values[-1]], [place, place], color="#d5d9dc", lw=5, zorder=1)
        for value, (_, _, colour) in zip(values, SERIES, strict=True):
            axes.scatter(value, place, s=90, color=colour, zorder=2)
        axes.annotate(
            f"{values[-1]:.0f}", (values[-1], place), xytext=(9, 0), textcoords="offset points",
            va="center", color=SERIES[-1][2], weight="bold",
        )  # fmt: skip
    for _, words, colour in SERIES:
        axes.scatter([], [], s=90, color=colour, label=words)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 330)
    axes.set_xlabel(
        "cumulative regret over 500 steps, 40 % of the rewards poisoned (lower is better)"
    )
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.45, 1.18), ncols=3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#eceff1", zorder=0)
    figure.tight_layout()
    figure.savefig(OUT)
    print(OUT.relative_to(ROOT))


if __name__ == "__main__":
    main()
