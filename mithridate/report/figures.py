"""Figures. Each function is a pure function of its data and writes one file."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch

from mithridate.evaluation.crossplay import Evaluation
from mithridate.files import make_directory

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def score_curves(evaluation: Evaluation, path: Path) -> None:
    """The metric's growth over the episode: mean and 95 % band (over replications, or over the
    tasks of a single one)."""
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for agent, replications in evaluation.curves.items():
        means = torch.stack([curve.mean for curve in replications])  # (R, T)
        middle = means.mean(0)
        if len(replications) == 1:
            band = replications[0].ci95
        else:
            band = 2 * means.std(0) / len(replications) ** 0.5
        steps = torch.arange(1, len(middle) + 1)
        (line,) = axes.plot(steps, middle, label=agent)
        axes.fill_between(
            steps, middle - band, middle + band, alpha=0.2, color=line.get_color(), linewidth=0
        )
    first = evaluation.records[0]
    attack = "clean" if first.attacker == "none" else f"{first.attacker} attack, ε = {first.eps:g}"
    count = f"{len({r.replication for r in evaluation.records})} × {first.tasks} tasks"
    axes.set(
        xlabel="step",
        ylabel=first.metric,
        title=f"{first.environment}, {attack} ({count}, seed {first.seed}, mean ± 2 SEM)",
    )
    axes.title.set_fontsize(10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    axes.legend(frameon=False)
    make_directory(path.parent)
    figure.savefig(path, dpi=150)
    plt.close(figure)
