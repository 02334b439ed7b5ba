"""Pictures of the room by the Miniworld package, off-screen.

The package and its GL are an extra; nothing is imported before the first picture. One world with
the four boxes serves all layouts: the boxes are moved, and room and boxes drawn from a display list
of the layout. A frame is what the package's own `render_obs` gives, 80 × 60, resized (`resize.py`).
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from ctypes import POINTER
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from mithridate.envs.miniworld import room
from mithridate.envs.miniworld.resize import resized
from mithridate.errors import UserError, shown

WIDTH, HEIGHT = 80, 60
"""What the package draws."""
SIDE = 25
"""Of a frame."""
BLOCK = 256
"""Frames that are resized at once."""
EXTRA = "a frame of Miniworld needs the miniworld package: pip install 'mithridate[miniworld]'"
SYSTEM = (
    "a frame of Miniworld needs OpenGL (EGL); on Debian: "
    "apt-get install libegl1 libgl1 libglu1-mesa libfreetype6"
)

Array = np.ndarray[Any, Any]


def package() -> SimpleNamespace:
    """The parts of the package that are used, or a UserError that says what to install."""
    os.environ["PYGLET_HEADLESS"] = "1"
    os.environ.setdefault("LP_NUM_THREADS", "0")  # of Mesa: frames are too small for more
    try:
        pyglet = import_module("pyglet")
    except ImportError:
        raise UserError(EXTRA) from None
    pyglet.options["headless"] = True
    try:
        gl = import_module("pyglet.gl")  # who has no library finds out here
        import_module("pyglet.window")
    except Exception as error:
        raise UserError(f"{SYSTEM} ({shown(error, 80)})") from None
    try:
        names = ("entity", "miniworld", "params")
        entity, core, params = (import_module(f"miniworld.{name}") for name in names)
    except ImportError:
        raise UserError(EXTRA) from None
    return SimpleNamespace(
        gl=gl, Box=entity.Box, MiniWorldEnv=core.MiniWorldEnv, PARAMS=params.DEFAULT_PARAMS
    )


@cache
def world_class() -> Any:
    """A class for the world, of the package's: a room with four boxes, of which the solid ones
    block."""
    found = package()

    class World(found.MiniWorldEnv):  # type: ignore[misc,name-defined]
        entities: list[Any]

        def _gen_world(self) -> None:
            self.add_rect_room(min_x=0, max_x=room.SIZE, min_z=0, max_z=room.SIZE)
            middle = np.array([room.SIZE / 2, 0, room.SIZE / 2])
            self.boxes = [
                self.place_entity(found.Box(color=colour, size=room.SIDE), pos=middle, dir=0.0)
                for colour in room.COLOURS
            ]
            self.solid = list(self.boxes)
            self.place_agent(pos=middle, dir=0.0)

        def put(self, boxes: Array) -> None:
            """Boxes (4, 2) where they belong."""
            for box, (x, z) in zip(self.boxes, boxes, strict=True):
                box.pos = np.array([x, 0, z])

        def stand(self, x: float, z: float, heading: int) -> None:
            """The agent, too."""
            self.agent.pos = np.array([x, 0, z])
            self.agent.dir = heading * 2 * np.pi / room.HEADINGS

        def intersect(self, ent: Any, pos: Array, radius: float) -> Any:
            every = list(self.entities)
            self.entities = self.solid
            try:
                return super().intersect(ent, pos, radius)
            finally:
                self.entities = every

    return World


def world() -> Any:
    """A new world, with windows that nobody looks at as small as can be."""
    cls, params = world_class(), package().PARAMS.no_random()
    params.set("forward_step", room.FORWARD)
    params.set("turn_step", 360 // room.HEADINGS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # how many samples the driver has
            return cls(
                obs_width=WIDTH, obs_height=HEIGHT, window_width=8, window_height=8, params=params
            )
    except Exception as error:
        raise UserError(f"{SYSTEM} ({shown(error, 80)})") from None


class Renderer:
    """Frames of poses; the world is made once."""

    def __init__(self) -> None:
        self._world = world()
        self._gl = package().gl
        self._thread = threading.get_ident()
        self._list = int(self._gl.glGenLists(1))
        self._pixels = np.empty((BLOCK, HEIGHT, WIDTH, 3), dtype=np.uint8)

    def frames(self, poses: Tensor) -> Array:
        """(N, 25, 25, 3) uint8 of poses (N,). Those of a layout belong one after the other."""
        if threading.get_ident() != self._thread:  # OpenGL would show something else
            raise UserError("frames must be drawn in the thread that drew the first one")
        out = np.empty((len(poses), SIDE, SIDE, 3), dtype=np.uint8)
        layouts = room.layouts_of(poses).tolist()
        boxes = room.layout(room.layouts_of(poses))[0].numpy()
        places, headings = room.metres(poses).tolist(), room.headings_of(poses).tolist()
        self._begin()
        drawn = None
        for first in range(0, len(poses), BLOCK):
            block = range(first, min(first + BLOCK, len(poses)))
            for i in block:
                if layouts[i] != drawn:
                    drawn = layouts[i]
                    self._compile(boxes[i])
                x, z = places[i]
                self._draw(x, z, headings[i], self._pixels[i - first])
            pixels = self._pixels[: len(block), ::-1]  # rows come from below
            out[first : first + len(block)] = resized(pixels, SIDE, SIDE)
        return out

    def _begin(self) -> None:
        """What is the same for all frames."""
        gl, world = self._gl, self._world
        world.shadow_window.switch_to()
        gl.glClearColor(*world.sky_color, 1.0)
        gl.glClearDepth(1.0)
        gl.glMatrixMode(gl.GL_PROJECTION)
        gl.glLoadIdentity()
        gl.gluPerspective(world.agent.cam_fov_y, WIDTH / HEIGHT, 0.04, 100.0)
        gl.glMatrixMode(gl.GL_MODELVIEW)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)

    def _compile(self, boxes: Array) -> None:
        """Room and boxes as one list."""
        self._world.put(boxes)
        self._gl.glNewList(self._list, self._gl.GL_COMPILE)
        self._gl.glCallList(1)  # the package's own, of the room and the light
        for box in self._world.boxes:
            box.render()
        self._gl.glEndList()

    def _draw(self, x: float, z: float, heading: int, pixels: Array) -> None:
        gl, agent, buffer = self._gl, self._world.agent, self._world.obs_fb
        self._world.stand(x, z, heading)
        eye = agent.cam_pos
        buffer.bind()
        gl.glClear(gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT)
        gl.glLoadIdentity()
        gl.gluLookAt(*eye, *(eye + agent.cam_dir), 0.0, 1.0, 0.0)
        gl.glCallList(self._list)
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, buffer.multi_fbo)
        gl.glBindFramebuffer(gl.GL_DRAW_FRAMEBUFFER, buffer.final_fbo)
        whole = (0, 0, WIDTH, HEIGHT)
        gl.glBlitFramebuffer(*whole, *whole, gl.GL_COLOR_BUFFER_BIT, gl.GL_LINEAR)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, buffer.final_fbo)
        gl.glReadPixels(
            *whole, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, pixels.ctypes.data_as(POINTER(gl.GLubyte))
        )
