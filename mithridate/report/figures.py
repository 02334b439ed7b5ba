"""Figures. Each function is a pure function of its data and writes one file."""

from __future__ import annotations

import io
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch

from mithridate.errors import UserError
from mithridate.evaluation.crossplay import Evaluation
from mithridate.files import make_directory, reason, shown, write_atomic
from mithridate.intervals import over_replications

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


def check_figure(path: Path, option: str = "--figure") -> None:
    """Raise a UserError if no figure can be saved there."""
    known = plt.gcf().canvas.get_supported_filetypes()
    plt.close()
    if path.suffix[1:].lower() not in known:
        raise UserError(
            f"{option} {shown(path)}: the name must end in one of .{', .'.join(sorted(known))}"
        )
    make_directory(path.parent)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"{option} {shown(path)} is there, and is no file")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise UserError(f"{option} {shown(path)}: {reason(error)}") from None


def save(figure: Figure, path: Path) -> None:
    """Write the figure as what the path's name says, as a whole or not at all."""
    data = io.BytesIO()
    try:
        figure.savefig(data, format=path.suffix[1:].lower(), dpi=150)
    finally:
        plt.close(figure)
    make_directory(path.parent)
    write_atomic(path, data.getvalue())


def literal(text: str) -> str:
    """A text that is shown as it is: between dollars there would be formulas."""
    return text.replace("$", r"\$")


def offset_colours() -> ScalarMappable:
    """Of mean offsets, −1 … 1, wherever they are drawn."""
    return ScalarMappable(Normalize(-1, 1), "PuOr")


def score_curves(evaluation: Evaluation, path: Path) -> None:
    """The metric's growth over the episode, one panel for each attacker: mean and 95 % band
    (see `over_replications`)."""
    columns = evaluation.columns()
    wide = min(3, len(columns))
    high = -(-len(columns) // wide)
    size = (6.4, 4.0) if len(columns) == 1 else (4.4 * wide, 3.2 * high)
    figure, panels = plt.subplots(high, wide, figsize=size, layout="constrained", squeeze=False)
    for axes, column in zip(panels.flat, columns, strict=False):
        _score_panel(evaluation, column, axes)
    for axes in panels.flat[len(columns) :]:
        axes.set_visible(False)
    panels.flat[0].legend(frameon=False)
    save(figure, path)


def _score_panel(evaluation: Evaluation, column: str, axes: Any) -> None:
    for agent in evaluation.agents():
        replications = evaluation.curves[agent, column]
        middle, band = over_replications(
            torch.stack([curve.mean for curve in replications]),
            torch.stack([curve.ci95 for curve in replications]),
        )
        steps = torch.arange(1, len(middle) + 1)
        (line,) = axes.plot(steps, middle, label=literal(agent))
        axes.fill_between(
            steps, middle - band, middle + band, alpha=0.2, color=line.get_color(), linewidth=0
        )
    first = next(record for record in evaluation.records if record.column == column)
    attack = "clean" if first.kind == "clean" else f"{column} attack, ε = {first.eps:g}"
    title = f"{first.environment}, {attack}"
    if len(evaluation.columns()) == 1:
        count = f"{len({r.replication for r in evaluation.records})} × {first.tasks} tasks"
        title += f" ({count}, seed {first.seed}, mean ± 2 SEM)"
    axes.set(xlabel="step", ylabel=first.metric, title=literal(title))
    axes.title.set_fontsize(10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)


def training_curves(log: list[dict[str, Any]], path: Path, title: str, metric: str) -> None:
    """Score per round of training: one line for each column of the log that is a score."""
    lines_figure(training_lines(log), path, title, "round", metric)


TRAINING_LINES = (
    (r"score_mean", "target"),
    (r"score_\d+_none", "AT-DPT, clean tasks"),
    (r"score_0_.*", "AT-DPT"),
    (r"frozen_0_.*", "DPT (frozen)"),
    (r"ts_0_.*", "TS"),
    (r"linucb_0_.*", "LinUCB"),
)
"""What the columns of a training's log are called in figures; of several threats, the first."""


def training_lines(log: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Points (round, score) of each line that the log has; what was not measured is left out."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for line in log:
        for key, value in line.items():
            for pattern, label in TRAINING_LINES:
                if re.fullmatch(pattern, key):
                    if value is not None and abs(value) < 1e12 and not math.isnan(value):
                        lines.setdefault(label, []).append((float(line["step"]), float(value)))
                    break
    return lines


def x_range(lines: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Where the lines begin and end; from 0 if they begin near it."""
    xs = [x for line in lines.values() for x, _ in line] or [0.0]
    return min(xs) if min(xs) > 0.1 * max(xs) else 0.0, max(xs)


def lines_figure(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
    title: str,
    xlabel: str,
    ylabel: str,
) -> None:
    """Named lines through points (x, y); empty ones are left out. The names of many lines stand
    beside them."""
    beside = len(lines) > 5
    size = (8.4 if beside else 6.4, 4.0)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    for label, points in lines.items():
        if points:
            axes.plot(*zip(*points, strict=True), label=literal(label))
    axes.set(xlabel=xlabel, ylabel=ylabel, title=literal(title))
    axes.title.set_fontsize(10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(x_range(lines)[0], None)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if beside:
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axes.legend(frameon=False)
    save(figure, path)
