"""The picture of an episode among boxes: the room from above with the agent's path, the mean offset
at every box and action, and some of what the agent saw. Letters say where it saw what."""

from __future__ import annotations

from itertools import pairwise
from string import ascii_lowercase
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle

from mithridate.envs.miniworld import room as world
from mithridate.envs.miniworld.picture import FRAMES, BoxRoom, Frame
from mithridate.report.figures import literal, offset_colours

WIDE, HIGH = 8.9, 7.5
"""Of the figure, in inches, as all that follows."""
ROOM = (0.15, 2.2, 4.9, 4.9)
"""Left, bottom, width and height."""
TABLE = (5.25, 2.2, 3.5, 4.9)
BAR = (6.55, 1.92, 2.2, 0.11)
STRIP = (0.1, 0.45, 8.7, 0.8)
FILLS = {"blue": "#4477cc", "red": "#cc4444", "green": "#44994f", "yellow": "#eecc44"}
ACTIONS = ("left", "right", "ahead", "stay")
SITUATIONS = ("far, looks away", "far, faces it", "near, looks away", "near, faces it")
"""Of a box's four keys."""
SHADES = 16
"""Of the path: the later, the darker."""
APART = 0.55
"""Letters of places that are nearer to each other stand together."""
ARROW, BESIDE = 0.42, 0.42
"""How long arrows are, and how far letters are from their place."""
POISONED = "crimson"


def draw(room: BoxRoom) -> Figure:
    figure = plt.figure(figsize=(WIDE, HIGH))
    size = min(10.5, 1100 / max(1, len(room.title)))
    figure.text(0.5, 1 - 0.22 / HIGH, literal(room.title), ha="center", va="center", fontsize=size)
    _from_above(_axes(figure, ROOM), room)
    _table(figure, room)
    _strip(figure, room)
    return figure


def _axes(figure: Figure, box: tuple[float, float, float, float]) -> Any:
    left, bottom, width, height = box
    axes = figure.add_axes((left / WIDE, bottom / HIGH, width / WIDE, height / HIGH))
    axes.set_axis_off()
    return axes


def _shade(room: BoxRoom, step: int) -> str:
    return f"{0.66 * (1 - step / max(1, len(room.path) - 1)):.3f}"


# The room ----------------------------------------------------------------------------------------


def _from_above(axes: Any, room: BoxRoom) -> None:
    wall = 0.08
    axes.set(xlim=(-wall, world.SIZE + wall), ylim=(world.SIZE + wall, -wall), aspect="equal")
    floor = Rectangle((0, 0), world.SIZE, world.SIZE, facecolor="#f4f2ee", edgecolor="0.25", lw=3)
    axes.add_patch(floor)
    near = Circle(room.boxes[room.goal], world.NEAR, fill=False, edgecolor="0.45", ls="--", lw=1)
    axes.add_patch(near)
    near.set_clip_path(floor)
    for number in range(len(room.boxes)):
        _box(axes, room, number)
    _path(axes, room)
    _letters(axes, room)
    seen = [
        Line2D([], [], color="0.3", lw=1.6, label="path, darker with time"),
        Line2D([], [], color=POISONED, lw=0, marker="o", mfc="none", mew=2, ms=11,
               label="where it settles"),
        Line2D([], [], color="black", lw=0, marker="o", ms=5, label="start"),
        Line2D([], [], color="0.45", lw=1, ls="--", label="reward within, if it faces the goal"),
    ]  # fmt: skip
    axes.legend(
        handles=seen, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False,
        fontsize=8.5, borderaxespad=0.3, columnspacing=1.5,
    )  # fmt: skip


def _box(axes: Any, room: BoxRoom, number: int) -> None:
    (x, z), side, colour = room.boxes[number], world.SIDE, world.COLOURS[number]
    corner, goal = (x - side / 2, z - side / 2), number == room.goal
    edge: dict[str, Any] = {"edgecolor": "0.35", "lw": 0.8}
    if goal:
        edge = {"edgecolor": "black", "lw": 3}
    axes.add_patch(Rectangle(corner, side, side, facecolor=FILLS[colour], **edge))
    if goal:
        ink = "black" if colour == "yellow" else "white"
        axes.text(x, z, "goal", color=ink, fontsize=12, fontweight="bold", ha="center", va="center")


def _path(axes: Any, room: BoxRoom) -> None:
    ends = np.linspace(0, len(room.path) - 1, SHADES + 1).round().astype(int)
    for first, last in pairwise(ends.tolist()):
        some = room.path[first : last + 1]
        axes.plot(*some.T, color=_shade(room, last), lw=1.6, solid_capstyle="round", zorder=3)
    axes.plot(*room.path[0], marker="o", color="black", ms=5, zorder=5)
    ring = Circle(room.settled(), 0.3, fill=False, edgecolor=POISONED, lw=2.5, zorder=4)
    axes.add_patch(ring)


def _letters(axes: Any, room: BoxRoom) -> None:
    """An arrow for where it looked, at each step whose frame is shown, and their letters."""
    tips = []
    groups: list[tuple[Any, list[int]]] = []
    for number, frame in enumerate(room.frames):
        place = room.path[frame.step]
        away = world.DIRECTIONS[room.headings[frame.step]].numpy()
        tips += [place + share * ARROW * away for share in (0.5, 1.0)]
        axes.annotate(
            "", tips[-1], place, zorder=4,
            arrowprops={"arrowstyle": "-|>", "color": _shade(room, frame.step), "lw": 1.4,
                        "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9},
        )  # fmt: skip
        near = [group for at, group in groups if np.linalg.norm(at - place) < APART]
        if near:
            near[0].append(number)
        else:
            groups.append((place, [number]))
    taken = [*room.path, *tips]
    for place, numbers in groups:
        at = _free(place, np.array(taken))
        taken.append(at)
        axes.text(
            *at, _ranges(numbers), fontsize=8.5, ha="center", va="center", zorder=6,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "0.6",
                  "lw": 0.6, "alpha": 0.9},
        )  # fmt: skip


def _free(place: Any, taken: Any) -> Any:
    """Where beside a place there is most room."""
    beside = place + BESIDE * world.DIRECTIONS[::2].numpy()
    far = np.linalg.norm(beside[:, None] - taken, axis=2).min(1)
    walls = np.minimum(beside, world.SIZE - beside).min(1)
    return beside[np.minimum(far, walls).argmax()]


def _ranges(numbers: list[int]) -> str:
    """0, 1, 2, 5 as 'a–c, f'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ends = [(ascii_lowercase[run[0]], ascii_lowercase[run[-1]]) for run in runs]
    return ", ".join(a if a == b else f"{a}–{b}" for a, b in ends)


# The attack --------------------------------------------------------------------------------------


def _table(figure: Figure, room: BoxRoom) -> None:
    """For each box a heading and four lines, one for each situation; the best one comes first."""
    axes, colours = _axes(figure, TABLE), offset_colours()
    lines = len(room.boxes) * 5 + 1
    axes.set(xlim=(-2.95, 4.03), ylim=(lines + 0.05, 0))
    for action, name in enumerate(ACTIONS):
        axes.text(action + 0.5, 0.55, name, fontsize=8.5, ha="center", va="center")
    for number, colour in enumerate(world.COLOURS):
        top = 1 + 5 * number
        square: dict[str, Any] = {"facecolor": FILLS[colour], "edgecolor": "0.35", "lw": 0.8}
        axes.add_patch(Rectangle((-2.9, top + 0.28), 0.3, 0.5, **square))
        name = f"{colour} box, the goal" if number == room.goal else f"{colour} box"
        axes.text(-2.45, top + 0.55, name, fontsize=9, fontweight="bold", va="center")
        for place, bits in enumerate((3, 2, 1, 0)):
            y = top + 1 + place
            axes.text(-0.12, y + 0.5, SITUATIONS[bits], fontsize=8, ha="right", va="center")
            for action, offset in enumerate(room.offsets[4 * number + bits]):
                _offset(axes, action, y, float(offset), colours)
    left, bottom, width, height = BAR
    bar = figure.add_axes((left / WIDE, bottom / HIGH, width / WIDE, height / HIGH))
    figure.colorbar(colours, cax=bar, orientation="horizontal", ticks=(-1, 0, 1))
    bar.tick_params(labelsize=8, length=2, pad=1)
    figure.text(
        (left - 0.12) / WIDE, (bottom + height / 2) / HIGH, "mean offset of\na poisoned reward",
        fontsize=8, ha="right", va="center",
    )  # fmt: skip


def _offset(axes: Any, x: int, y: int, offset: float, colours: Any) -> None:
    fill = colours.to_rgba(offset)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="0.7", lw=0.6))
    if abs(offset) >= 0.005:
        ink = "white" if abs(offset) > 0.6 else "black"
        said = f"{offset:+.2g}".replace("-", "−")
        axes.text(x + 0.5, y + 0.52, said, fontsize=8, color=ink, ha="center", va="center")


# What the agent saw ------------------------------------------------------------------------------


def _strip(figure: Figure, room: BoxRoom) -> None:
    left, bottom, width, height = STRIP
    pitch = width / FRAMES
    figure.text(
        left / WIDE, (bottom + height + 0.36) / HIGH, "What the agent saw, and its reward",
        fontsize=9, fontweight="bold", va="center",
    )  # fmt: skip
    for number, frame in enumerate(room.frames):
        at = left + number * pitch + (pitch - height) / 2
        axes = _axes(figure, (at, bottom, height, height))
        axes.imshow(frame.image, interpolation="nearest")
        edge = Rectangle((-0.5, -0.5), *frame.image.shape[1::-1], fill=False, clip_on=False)
        edge.set(edgecolor=_shade(room, frame.step), linewidth=2)
        axes.add_patch(edge)
        middle = (at + height / 2) / WIDE
        above = f"{ascii_lowercase[number]}: step {frame.step}" if frame.step else "a: start"
        over = (bottom + height + 0.12) / HIGH
        figure.text(middle, over, above, fontsize=8, ha="center", va="center")
        _reward(figure, middle, frame)


def _reward(figure: Figure, middle: float, frame: Frame) -> None:
    if frame.seen is None or frame.true is None:
        return
    said, ink = f"reward {frame.seen:g}", "black"
    if frame.seen != frame.true:
        said, ink = f"{said}\npoisoned, {frame.seen - frame.true:+g}", POISONED
    figure.text(
        middle, (STRIP[1] - 0.06) / HIGH, said.replace("-", "−"), fontsize=8, color=ink,
        ha="center", va="top",
    )  # fmt: skip
