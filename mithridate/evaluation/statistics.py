"""Means and intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def mean_ci95(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval, 2 × SEM as in the paper (NaN for one value)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, 2 * statistics.stdev(values, mean) / math.sqrt(len(values))
