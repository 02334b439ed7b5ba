"""The picture of a room under attack (paper, "Interpretation of attack"): the goals, the mean
offset on every cell and action, the agent's path, and the cell where it settles."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Polygon, Rectangle

from mithridate.envs.darkroom_picture import Room
from mithridate.report.figures import literal, offset_colours

MIDDLE, REACH = 0.17, 0.44
"""From a cell's centre: the radius of `stay`, and how far the arrows reach."""


def draw(room: Room) -> Figure:
    figure, axes = plt.subplots(figsize=(6.4, 6.0), layout="constrained")
    colours = offset_colours()
    for cell in range(len(room.rewards)):
        _cell(axes, room, cell, colours.to_rgba)
    _path(axes, room)
    axes.set(xlim=(-0.55, room.size - 0.45), ylim=(room.size - 0.45, -0.55), aspect="equal")
    axes.set_axis_off()
    axes.set_title(literal(room.title), fontsize=10)
    bar = figure.colorbar(colours, ax=axes, shrink=0.7, pad=0.02)
    bar.set_label("mean offset of a poisoned reward", fontsize=9)
    seen = [
        Line2D([], [], color="black", lw=1.2, label="path of the agent"),
        Line2D([], [], color="crimson", lw=0, marker="o", mfc="none", mew=2, ms=11,
               label="where it settles"),
        Line2D([], [], color="black", lw=0, marker="s", mfc="none", mew=2, ms=10,
               label="goals, with their worth"),
    ]  # fmt: skip
    axes.legend(
        handles=seen, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, frameon=False,
        fontsize=9,
    )  # fmt: skip
    return figure


def _cell(axes: Any, room: Room, cell: int, colour: Any) -> None:
    """Four triangles that point where the action leads, a disc for staying, a frame for a goal."""
    y, x = divmod(cell, room.size)
    edge: dict[str, Any] = {"edgecolor": "0.75", "linewidth": 0.4}
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="0.6", linewidth=0.8))
    for action, (dy, dx) in enumerate(((-1, 0), (1, 0), (0, -1), (0, 1))):
        tip = (x + REACH * dx, y + REACH * dy)
        base = (x + 1.15 * MIDDLE * dx, y + 1.15 * MIDDLE * dy)
        side = (0.2 * dy, 0.2 * dx)
        corners = [
            tip,
            (base[0] + side[0], base[1] + side[1]),
            (base[0] - side[0], base[1] - side[1]),
        ]
        axes.add_patch(Polygon(corners, facecolor=colour(room.offsets[cell, action]), **edge))
    axes.add_patch(Circle((x, y), MIDDLE, facecolor=colour(room.offsets[cell, 4]), **edge))
    if room.rewards[cell] > 0:
        axes.add_patch(
            Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor="black", linewidth=2)
        )
        axes.text(
            x - 0.4, y - 0.4, f"{room.rewards[cell]:g}", fontsize=13, fontweight="bold",
            ha="left", va="top",
        )  # fmt: skip


def _path(axes: Any, room: Room) -> None:
    # Later visits are drawn a little aside, so that a way there and back is not one line.
    drift = np.linspace(-0.1, 0.1, len(room.path))
    x, y = room.path % room.size + drift, room.path // room.size + drift
    axes.plot(x, y, color="black", linewidth=1.2, alpha=0.75)
    axes.plot(x[0], y[0], marker="o", color="black", markersize=5)
    at = room.settled()
    axes.add_patch(
        Circle(
            (at % room.size, at // room.size), 0.33, fill=False, edgecolor="crimson", linewidth=2.5
        )
    )
