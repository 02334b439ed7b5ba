"""Pictures of the room by the native ray-caster, with the Miniworld package's textures: what
`render.py` gives, but for rounding, in less time and without OpenGL.

`native/raycast.cpp` says what is drawn. Textures are filtered as Mesa does it: a texel of a smaller
level is the mean of four, by twos, halves rounded up.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate.envs.miniworld import room
from mithridate.envs.miniworld.render import EXTRA, HEIGHT, SIDE, WIDTH
from mithridate.envs.miniworld.resize import matrix
from mithridate.errors import UserError
from mithridate.native import kernels

NAMES = ("floor_tiles_bw_1", "concrete_1", "concrete_tiles_1")
"""Of the floor, the walls and the ceiling."""

Array = np.ndarray[Any, Any]


def _halves(texels: Array) -> Array:
    """The next smaller level, which has half the size, rounded down."""
    size = len(texels) // 2
    if len(texels) % 2 == 0:
        across = (texels[:, 0::2] + texels[:, 1::2] + 1) // 2
        smaller: Array = (across[0::2] + across[1::2] + 1) // 2
        return smaller
    return texels[1::2, 1::2][:size, :size]  # 3 × 3, of which nobody sees anything


def levels(texels: Array) -> Array:
    """All levels (N, 4) float32 of a square texture (S, S, 3), the largest first."""
    found, level = [], texels.astype(np.int64)
    while True:
        flat = level.reshape(-1, 3).astype(np.float32)
        found.append(np.concatenate([flat, np.zeros((len(flat), 1), np.float32)], 1))
        if len(level) == 1:
            return np.concatenate(found)
        level = _halves(level)


@cache
def textures() -> tuple[tuple[Array, ...], tuple[int, ...]]:
    """Levels of the three textures, and their sizes. The package is not imported for it."""
    import matplotlib.image

    try:
        spec = find_spec("miniworld")
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise UserError(EXTRA)
    folder = Path(spec.origin).parent / "textures"
    found, sizes = [], []
    for name in NAMES:
        try:
            picture = matplotlib.image.imread(folder / f"{name}.png")[::-1, :, :3]  # from below
        except OSError:
            raise UserError(f"{EXTRA} (its texture {name} cannot be read)") from None
        found.append(levels(np.rint(picture * 255)))
        sizes.append(len(picture))
    return tuple(found), tuple(sizes)


def frames(poses: Tensor) -> Array:
    """(N, 25, 25, 3) uint8 of poses (N,)."""
    which, where = np.unique(room.layouts_of(poses).numpy(), return_inverse=True)
    boxes = room.layout(torch.from_numpy(which))[0].numpy()[where]
    cameras = torch.cat([room.metres(poses), room.looks(poses)], 1).numpy()
    out = np.empty((len(poses), SIDE, SIDE, 3), dtype=np.uint8)
    drawn, sizes = textures()
    kernels().room_frames(
        cameras, np.ascontiguousarray(boxes), list(drawn), list(sizes), matrix(HEIGHT, SIDE),
        matrix(WIDTH, SIDE), out, torch.get_num_threads(),
    )  # fmt: skip
    return out
