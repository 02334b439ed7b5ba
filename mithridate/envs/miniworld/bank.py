"""Frames on disk, so that they are rendered once on a machine.

A bank is kept in parts, one file each, named by a digest of what it is of: the poses, the
package's version, who draws (the kernels or OpenGL), and FORMAT. A part is believed only if it is
sealed and holds these poses; any other file is made anew. Parts are written as a whole or not at
all; after an interruption those that were finished are there. The directory is `MITHRIDATE_CACHE`,
or else `mithridate` in the user's cache; where it cannot be written, nothing is kept. When there is
more than LIMIT, parts that were not used for longest go.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate.envs.miniworld.render import SIDE
from mithridate.errors import UserError
from mithridate.files import make_directory
from mithridate.native import kernels
from mithridate.tensor_files import read_tensors, sealed, write_sealed
from mithridate.versions import installed

FORMAT = 1
"""Raised when frames, layouts or poses come to mean something else."""
PART = 16_384
"""Frames in a file: 31 MB."""
LIMIT = 4 * 2**30
"""Bytes of all files."""
PREFIX, SUFFIX = "miniworld-", ".safetensors"

Array = np.ndarray[Any, Any]


def directory() -> Path:
    if named := os.environ.get("MITHRIDATE_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mithridate"


def load_or_make(
    poses: Array,
    render: Callable[[Tensor], Array],
    progress: Callable[[int, int], None] | None = None,
) -> Array:
    """(N, 25, 25, 3) uint8: frames of poses (N,) in ascending order."""
    out = np.empty((len(poses), SIDE, SIDE, 3), dtype=np.uint8)
    where = _writable()
    for first in range(0, len(poses), PART):
        part = poses[first : first + PART]
        path = where / f"{PREFIX}{_digest(part)}{SUFFIX}" if where else None
        found = None if path is None else _read(path, part)
        if found is None:
            found = render(torch.from_numpy(part))
            if path is not None:
                _write(path, part, found)
        out[first : first + len(part)] = found
        if progress is not None:
            progress(first + len(part), len(poses))
    return out


def _writable() -> Path | None:
    try:
        where = directory()
        make_directory(where)
    except (UserError, RuntimeError):  # nobody's home
        return None
    return where


def _digest(poses: Array) -> str:
    by = "OpenGL" if kernels() is None else "kernels"
    what = f"{FORMAT} {installed('miniworld') or 'none'} {by} {len(poses)} ".encode()
    return hashlib.sha256(what + np.ascontiguousarray(poses).tobytes()).hexdigest()[:32]


def _read(path: Path, poses: Array) -> Array | None:
    """The frames, if the file is there and is what its name says."""
    if not path.is_file():
        return None
    try:
        tensors, header, _ = read_tensors(path, "frames")
    except UserError:
        return None
    if sealed(tensors, header) is None or tensors.keys() != {"poses", "frames"}:
        return None
    frames = tensors["frames"]
    if frames.dtype != torch.uint8 or frames.shape != (len(poses), SIDE, SIDE, 3):
        return None
    if not torch.equal(tensors["poses"], torch.from_numpy(poses)):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    found: Array = frames.numpy()
    return found


def _write(path: Path, poses: Array, frames: Array) -> None:
    tensors = {"poses": torch.from_numpy(poses), "frames": torch.from_numpy(frames)}
    with contextlib.suppress(UserError):  # a full disk: it is made anew next time
        write_sealed(path, tensors, {"format": FORMAT})
        _tidy(path)


def _tidy(newest: Path) -> None:
    """Remove what was not used for longest, until the rest is within the limit."""
    files = []
    for path in newest.parent.glob(f"{PREFIX}*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((path != newest, -status.st_mtime, status.st_size, path))
    total = 0
    for _, _, size, path in sorted(files):
        total += size
        if total > LIMIT:
            with contextlib.suppress(OSError):
                path.unlink()
