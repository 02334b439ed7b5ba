"""Who acts in the linear bandit's pretraining contexts: Thompson sampling of two kinds, and pulls
that are fixed beforehand. All of them see what they are shown, poisoned or not.

The agents `ts` and `lin_ts` do the same. Here it is NumPy and nothing else, as a small batch of
contexts is drawn at every step of training and each must be shown one actor's pulls."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mithridate.rng import Rng

Array = np.ndarray[Any, Any]


class Actor(Protocol):
    def choose(self, step: int, draw: np.random.Generator) -> Array:
        """(B,): the arms to pull."""

    def learn(self, arms: Array, rewards: Array) -> None:
        """What was pulled, and what was seen, (B,) each."""


class IndependentThompson:
    """Takes the arms for independent, with prior N(0, 1), and believes in the noise (B,)."""

    def __init__(self, arms: int, noise: Array) -> None:
        self._rows = np.arange(len(noise))
        self._known = noise.astype(np.float32) ** -2  # precision of one reward
        self._precision = np.ones((len(noise), arms), dtype=np.float32)
        self._sums = np.zeros_like(self._precision)

    def choose(self, step: int, draw: np.random.Generator) -> Array:
        luck = draw.standard_normal(self._sums.shape, dtype=np.float32)
        sampled = self._sums / self._precision + luck / np.sqrt(self._precision)
        return np.asarray(sampled.argmax(1))

    def learn(self, arms: Array, rewards: Array) -> None:
        self._precision[self._rows, arms] += self._known
        self._sums[self._rows, arms] += self._known * rewards


class LinearThompson:
    """Knows the features (A, D), the prior's and the noise's standard deviation."""

    def __init__(self, features: Array, batch: int, prior: float, noise: float) -> None:
        dimension = features.shape[1]
        self._features = features.astype(np.float64)
        self._variance = noise**2
        self._mean = np.zeros((batch, dimension))
        self._covariance = np.tile(prior**2 * np.eye(dimension), (batch, 1, 1))

    def choose(self, step: int, draw: np.random.Generator) -> Array:
        root = np.linalg.cholesky(self._covariance)
        luck = draw.standard_normal(self._mean.shape)
        sampled = self._mean + np.einsum("bij,bj->bi", root, luck)
        return np.asarray((sampled @ self._features.T).argmax(1))

    def learn(self, arms: Array, rewards: Array) -> None:
        x = self._features[arms]  # (B, D)
        along = np.einsum("bij,bj->bi", self._covariance, x)
        total = self._variance + (along * x).sum(1)
        surprise = rewards - (self._mean * x).sum(1)
        self._mean += along * (surprise / total)[:, None]
        self._covariance -= along[:, :, None] * along[:, None] / total[:, None, None]


class FixedPulls:
    """Pulls (B, T) that were decided beforehand."""

    def __init__(self, pulls: Array) -> None:
        self._pulls = pulls

    def choose(self, step: int, draw: np.random.Generator) -> Array:
        return np.asarray(self._pulls[:, step])

    def learn(self, arms: Array, rewards: Array) -> None:
        pass


def play(offered: Array, actors: list[Actor], who: Array, rng: Rng) -> tuple[Array, Array]:
    """Actions and rewards (B, T), given what each arm would yield (B, T, A) and `who` of the actors
    acts in each context (B,). Each has its own luck, whoever else is there."""
    draws = [rng.child(i).generator() for i in range(len(actors))]
    batch, length, _ = offered.shape
    rows = np.arange(batch)
    actions = np.empty((batch, length), dtype=np.int64)
    rewards = np.empty((batch, length), dtype=np.float32)
    for t in range(length):
        pulled = np.stack([a.choose(t, draw) for a, draw in zip(actors, draws, strict=True)])[
            who, rows
        ]
        seen = offered[rows, t, pulled]
        for actor in actors:
            actor.learn(pulled, seen)
        actions[:, t], rewards[:, t] = pulled, seen
    return actions, rewards
