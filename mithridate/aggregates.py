"""Scores of several runs under several attacks as one number, with the habits of rliable (Agarwal,
Schwarzer, Castro, Courville and Bellemare, NeurIPS 2021): the interquartile mean, intervals by the
stratified bootstrap, and the probability of improvement. Scores are (R, C): R runs, for us
replications, in each of C columns, rliable's tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mithridate.rng import Rng

Scores = npt.NDArray[np.float64]
RESAMPLES = 2000
CONFIDENCE = 0.95


class Aggregate(NamedTuple):
    """A statistic and its interval; None if there is one run, which says nothing of others."""

    value: float
    low: float | None
    high: float | None


def interquartile_mean(scores: Scores) -> Any:
    """The mean of the middle half of all scores (..., R, C): a quarter of them, rounded down, is
    left out at either end."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return flat[..., cut : flat.shape[-1] - cut].mean(-1)


def probability_of_improvement(
    mine: Scores, others: Scores, better: Literal["lower", "higher"] = "higher"
) -> Any:
    """How probable it is that a run of one (..., R, C) is better than a run of the other
    (..., R', C) in the same column, mean over columns; ties count half."""
    x, y = mine[..., :, None, :], others[..., None, :, :]
    wins = (x > y) if better == "higher" else (x < y)
    return (wins + 0.5 * (x == y)).mean((-3, -2)).mean(-1)


def resampled(scores: Scores, rng: Rng, resamples: int = RESAMPLES) -> Scores:
    """(resamples, R, C): the runs of each column, a stratum, drawn anew with replacement."""
    runs, columns = scores.shape
    drawn = rng.generator().integers(0, runs, (resamples, runs, columns))
    return np.take_along_axis(scores[None], drawn, axis=1)


def bootstrap(
    statistic: Callable[..., Any], *samples: Scores, rng: Rng, resamples: int = RESAMPLES
) -> Aggregate:
    """`statistic` of the samples, (R, C) each, and its percentile interval. The same `rng` gives
    the same interval."""
    value = float(statistic(*samples))
    if any(len(sample) < 2 for sample in samples):
        return Aggregate(value, None, None)
    drawn = [resampled(s, rng.child("sample", i), resamples) for i, s in enumerate(samples)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistic(*drawn), (tail, 1 - tail))
    return Aggregate(value, float(low), float(high))


def improvement(
    mine: Scores, others: Scores, better: Literal["lower", "higher"], rng: Rng
) -> Aggregate:
    """The probability of improvement with its interval: both samples are drawn anew."""

    def statistic(x: Scores, y: Scores) -> Any:
        return probability_of_improvement(x, y, better)

    return bootstrap(statistic, mine, others, rng=rng)
