"""Arms that pay 0 or 1 (clicks), some of which are poisoned.

A poisoned click is the attacker's: 1 with a probability qₐ that it chooses for each arm. An arm
then pays 1 with probability ρₐ = (1 − ε)·μₐ + ε·qₐ, and ρₐ is all that its clicks tell: from one
arm alone μₐ and qₐ cannot be told apart, however many clicks there are. With both uniform on
[0, 1], what μₐ is expected to be grows with ρₐ. So arms are compared by ρₐ, which is Thompson
(1933) with uniform priors. The arm with the largest ρ is at most ε / (1 − ε) worse than the best
one, and no rule that sees only clicks can promise less than half of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

SPAN = 9.0
"""Standard deviations on either side of an arm's mean that are looked at."""


class ClickPosterior:
    """Of one task."""

    def __init__(self, arms: int, eps: Sequence[float]) -> None:
        self._eps = np.array(eps)
        """Equally probable, whatever is seen: clicks do not tell them apart."""
        self._clicks = np.zeros((2, arms))
        """How often each arm paid 0, and 1."""
        self._seen: list[list[float]] = [[] for _ in range(arms)]

    def observe(self, arm: int, reward: float) -> None:
        self._clicks[int(reward), arm] += 1
        self._seen[arm].append(reward)

    def replay(self, seen: Sequence[Sequence[float]]) -> None:
        for arm, clicks in enumerate(seen):
            for click in clicks:
                self.observe(arm, click)

    def draw(self, luck: np.random.Generator) -> int:
        return int(luck.beta(self._clicks[1] + 1, self._clicks[0] + 1).argmax())

    def best(self) -> Floats:
        """(A,): how probable it is that each arm has the largest ρ."""
        a, b = self._clicks[1] + 1, self._clicks[0] + 1
        mean, spread = a / (a + b), np.sqrt(a * b / (a + b + 1)) / (a + b)
        steps = np.linspace(-SPAN, SPAN, 65)
        near = (mean[:, None] + spread[:, None] * steps).ravel() if len(a) <= 100 else steps[:0]
        line = np.linspace(0, 1, 4001)
        x = np.unique(np.clip(np.concatenate([near, line]), 1e-12, 1 - 1e-12))
        below = np.empty((len(a), len(x) - 1))
        masses = np.empty_like(below)
        middle, width = (x[1:] + x[:-1]) / 2, np.diff(x)
        logs, other = np.log(middle), np.log1p(-middle)
        for arm in range(len(a)):
            density = (a[arm] - 1) * logs + (b[arm] - 1) * other
            mass = np.exp(density - density.max()) * width
            masses[arm] = mass / mass.sum()
            below[arm] = masses[arm].cumsum() - 0.5 * masses[arm]
        total = np.log(below + 1e-300)
        found: Floats = (masses * np.exp(total.sum(0) - total)).sum(1)
        found /= found.sum()
        return found

    def suspicion(self, arm: int, reward: float) -> float:
        """How probable it is that a click, of which nothing has been heard yet, is poisoned."""
        return float(self._poisoned(arm)[int(reward)])

    def suspicions(self, arm: int) -> Floats:
        """The same of each of the arm's clicks, given all that is known now."""
        found: Floats = self._poisoned(arm)[np.array(self._seen[arm], dtype=np.int64)]
        return found

    def _poisoned(self, arm: int) -> Floats:
        """Of a 0 and of a 1: ε·(1 − q) / (1 − ρ) and ε·q / ρ, with q what it is expected to be if
        ρ is the arm's: the middle of what is possible."""
        eps = self._eps[:, None]
        a, b = self._clicks[1, arm] + 1, self._clicks[0, arm] + 1
        steps = (np.arange(200) + 0.5) / 200
        mean, spread = a / (a + b), np.sqrt(a * b / (a + b + 1)) / (a + b)
        low, high = max(mean - SPAN * spread, 0.0), min(mean + SPAN * spread, 1.0)
        rate = low + (high - low) * steps  # (X,)
        logs = (a - 1) * np.log(rate) + (b - 1) * np.log1p(-rate)
        logs = logs + np.log(np.where(eps > 0, self._room(rate, eps), 1.0))
        weight = np.exp(logs - logs.max(1, keepdims=True))
        weight /= weight.sum(1, keepdims=True)
        least = np.clip((rate - (1 - eps)) / np.where(eps > 0, eps, 1.0), 0, 1)
        most = np.clip(rate / np.where(eps > 0, eps, 1.0), 0, 1)
        rates = (least + most) / 2
        ones = (weight * eps * rates / rate).sum(1).mean()
        zeros = (weight * eps * (1 - rates) / (1 - rate)).sum(1).mean()
        return np.array([zeros, ones])

    @staticmethod
    def _room(rate: Floats, eps: Floats) -> Floats:
        """The prior density of ρ, up to a factor: how many pairs of μ and q there are."""
        found: Floats = np.minimum(rate, eps) - np.maximum(rate - (1 - eps), 0)
        return np.maximum(found, 1e-300)
