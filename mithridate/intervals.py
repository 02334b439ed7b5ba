"""Means and intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

FEW_REPLICATIONS = 3


def mean_ci95(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval, 2 × SEM as in the paper (NaN for one value)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, 2 * statistics.stdev(values, mean) / math.sqrt(len(values))


def over_replications(means: Tensor, over_tasks: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ± 2 SEM over the first dimension, the replications, of their means (R, ...). Two that
    happen to agree say little: with fewer than three it is 2 SEM over the tasks of all, if that is
    more; `over_tasks` (R, ...) is 2 SEM over those of each."""
    count, mean = len(means), means.mean(0)
    if count == 1:
        return mean, over_tasks[0]
    ci95 = 2 * means.std(0) / math.sqrt(count)
    if count < FEW_REPLICATIONS:
        ci95 = torch.fmax(ci95, torch.linalg.vector_norm(over_tasks, dim=0) / count)
    return mean, ci95
