"""From 80 × 60 to 25 × 25 with anti-aliasing: a Gaussian filter, then linear interpolation, both
mirrored at the border, as skimage.transform.resize does. Both are linear, and each axis is for
itself; so it is a matrix for the rows and one for the columns."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _mirrored(places: Array, size: int) -> Array:
    """Places beyond the border, reflected about the middle of the outermost pixels."""
    period = 2 * (size - 1)
    folded = np.abs(places) % period
    inside: Array = np.minimum(folded, period - folded)
    return inside


@cache
def matrix(before: int, after: int) -> Array:
    """(after, before) float32."""
    factor = before / after
    sigma = max(0.0, (factor - 1) / 2)
    radius = math.floor(4 * sigma + 0.5)
    taps = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2) if sigma else np.ones(1)
    blur = np.zeros((before, before))
    rows = np.arange(before)[:, None]
    np.add.at(blur, (rows, _mirrored(rows + taps, before)), weights / weights.sum())
    place = (np.arange(after) + 0.5) * factor - 0.5
    low = np.floor(place).astype(int)
    pick = np.zeros((after, before))
    for corner, share in ((low, low + 1 - place), (low + 1, place - low)):
        np.add.at(pick, (np.arange(after), _mirrored(corner, before)), share)
    return (pick @ blur).astype(np.float32)


def resized(frames: Array, height: int, width: int) -> Array:
    """(N, height, width, C) uint8 of frames (N, H, W, C) uint8."""
    n, rows, columns, channels = frames.shape
    flat = frames.reshape(n, rows, columns * channels).astype(np.float32)
    fewer = np.matmul(matrix(rows, height), flat).reshape(n * height, columns, channels)
    small = np.matmul(matrix(columns, width), fewer)
    bytes_: Array = np.rint(small).clip(0, 255).astype(np.uint8)
    return bytes_.reshape(n, height, width, channels)
