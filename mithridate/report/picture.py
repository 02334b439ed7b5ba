"""Pictures of episodes, as SVG or as files. Each kind is drawn by a module of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mithridate.capabilities import Picture
from mithridate.envs.darkroom_picture import Room
from mithridate.envs.miniworld.picture import BoxRoom
from mithridate.errors import UserError
from mithridate.report import picture_from_above, picture_of_cells
from mithridate.report.figures import save

DRAW: dict[type, Callable[[Any], Figure]] = {
    Room: picture_of_cells.draw,
    BoxRoom: picture_from_above.draw,
}


def room_svg(room: Picture) -> str:
    """The picture as SVG, the same for the same room."""
    text = io.StringIO()
    figure = _draw(room)
    with plt.rc_context({"svg.hashsalt": room.title}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()


def draw_room(room: Picture, path: Path) -> None:
    """One file, of whatever kind its name says (.svg, .png, .pdf)."""
    save(_draw(room), path)


def _draw(room: Picture) -> Figure:
    draw = DRAW.get(type(room))
    if draw is None:
        names = " or ".join(kind.__name__ for kind in DRAW)
        raise UserError(f"nobody can draw a {type(room).__name__}; a picture is a {names}")
    return draw(room)
