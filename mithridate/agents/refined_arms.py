"""What is known of an arm that was pulled so often that the grid of `mixture_ts` is too coarse.

The model is that of `mixture_arms.py`, rewards scaled to means in [0, 1]. Here an arm's (μ, φ) have
a list of cells for each ε, as fine as n rewards allow to tell apart (s / √n), and only where the
posterior is. They are found from coarse to fine: at each size of cells the likelihood is flattened
until no peak is narrower than a cell, what is then improbable is dropped, the rest is halved. All
this depends on the arm's own rewards only, so an arm can be made again from them, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mithridate.agents.mixture_grid import EVERY, FARTHEST, POINTS, TINY

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

STEP = 1 / (POINTS - 1)
LOW = -STEP / 2
"""Where the cell of the smallest mean begins."""
TOO_COARSE = 2.0
"""A grid will do while the standard error of a mean is at least its step divided by this."""
NEGLIGIBLE = 14.0
"""Cells are dropped whose likelihood is smaller than the largest by more, in logarithms."""
MOST_CELLS = 3000
"""Of each ε; what is least probable goes first."""
FEW = 256
"""Rewards after which an arm is not made again before there are so many more."""
FINE = 16
"""Rewards are put together within so small a part of their standard deviation."""
MOST_EDGES = 512


def needs_refining(noise: float, pulls: int) -> bool:
    """Whether the grid of `mixture_ts` is too coarse for so many rewards of an arm."""
    return noise / math.sqrt(max(pulls, 1)) * TOO_COARSE < STEP * (1 - 1e-12)


def first_refined(noise: float) -> int:
    """The smallest number of rewards for which that is so."""
    pulls = max(1, int((noise * TOO_COARSE / STEP) ** 2) - 2)
    while not needs_refining(noise, pulls):
        pulls += 1
    return pulls


def next_made(pulls: int) -> int:
    """With how many rewards an arm that was made with `pulls` is made again."""
    return pulls + max(min(pulls, FEW), pulls // 8)


def last_made(noise: float, pulls: int) -> int:
    """With how many rewards an arm that has `pulls` was made last; 0 if it never was."""
    made = first_refined(noise)
    if made > pulls:
        return 0
    while next_made(made) <= pulls:
        made = next_made(made)
    return made


@dataclass(frozen=True)
class ArmModel:
    """What is the same for all arms."""

    noise: float
    eps: tuple[float, ...]
    widths: Floats
    """(R,): standard deviations of poisoned rewards."""
    untouched: float
    scales: Floats
    """(W,)"""

    @classmethod
    def make(
        cls, noise: float, eps: Sequence[float], untouched: float, scales: Sequence[float],
        spreads: Sequence[float],
    ) -> ArmModel:  # fmt: skip
        widths = np.sqrt(np.square(np.array(spreads)) + noise**2)
        return cls(noise, tuple(eps), widths, untouched, np.array(scales))

    @property
    def kinds(self) -> int:
        """Pairs of ε and w."""
        return len(self.eps) * len(self.scales)

    def slab(self, offsets: Floats) -> Floats:
        """(M, W): the densities of offsets that are not 0, equal to the grid's at its points."""
        lattice = EVERY * STEP * np.arange(-FARTHEST, FARTHEST + 1)
        total = np.exp(-0.5 * (lattice[:, None] / self.scales) ** 2).sum(0) * EVERY * STEP
        found: Floats = np.exp(-0.5 * (offsets[:, None] / self.scales) ** 2) / total
        return found

    def parts(self, rewards: Floats, eps: Floats, means: Floats, offsets: Floats) -> Any:
        """What the rewards (N,) say of cells (M,): the densities of clean ones, (N, M), and of
        poisoned ones, (R, N, M), each times its share."""
        clean = (1 - eps) * density(rewards[:, None] - means, self.noise)
        away = np.square(rewards[:, None] - (means + offsets))
        widths = self.widths[:, None, None].astype(away.dtype)
        moved = np.exp(away * (-0.5 / widths**2))
        moved *= eps / widths
        moved += TINY
        return clean, moved


def density(away: Floats, width: float | Floats) -> Floats:
    """Up to a factor; as the grid has it."""
    found: Floats = np.exp(-0.5 / width**2 * np.square(away)) / width
    return found


def together(rewards: Floats, size: float, few: int = FEW) -> tuple[Floats, Floats]:
    """Rewards as means of groups that are no wider than `size`, and how many are in each; but as
    they are if they are few."""
    if len(rewards) <= few:
        return rewards, np.ones(len(rewards))
    _, group, counts = np.unique(np.floor(rewards / size), return_inverse=True, return_counts=True)
    return np.bincount(group.ravel(), rewards) / counts, counts.astype(np.float64)


class RefinedArm:
    """Cells (M,), in the order of ε and then of μ, with the logarithms of their likelihoods."""

    def __init__(self, model: ArmModel, rewards: Sequence[float]) -> None:
        self.model = model
        self.made_with = len(rewards)
        seen = np.asarray(rewards, dtype=np.float64)
        found = [_search(model, eps, seen) for eps in model.eps]
        self.level = found[0].level
        """Cells are STEP / 2^level wide along μ."""
        size = STEP / 2**self.level
        counts = [len(cells.places) for cells in found]
        places = np.concatenate([cells.places for cells in found])
        which = np.repeat(np.arange(len(found)), counts)
        self._which = which
        self.eps = np.array(model.eps)[which]
        self.means = LOW + (places + 0.5) * size
        self.offsets = np.concatenate([cells.offsets for cells in found])
        self.logs = np.concatenate([cells.logs for cells in found], 1)
        """(R, M)"""
        self.prior = size * np.concatenate([cells.prior for cells in found])
        """(M, W)"""
        # Runs of cells with the same ε and μ.
        key = which * (POINTS << self.level) + places
        self._starts = np.flatnonzero(np.diff(key, prepend=-1))
        self._run_place = places[self._starts]
        self._run_share = which[self._starts]
        self._shares = np.flatnonzero(np.diff(self._run_share, prepend=-1))  # each ε's first run
        self._last: tuple[float, Floats, Floats] | None = None
        self._refresh()

    @classmethod
    def again(cls, model: ArmModel, rewards: Sequence[float]) -> RefinedArm:
        """The arm as it is after these rewards came one by one."""
        made = last_made(model.noise, len(rewards))
        arm = cls(model, rewards[:made])
        for reward in rewards[made:]:
            arm.add(reward)
        arm._refresh()
        return arm

    def observe(self, reward: float) -> None:
        self.add(reward)
        self._refresh()

    def add(self, reward: float) -> None:
        clean, moved = self._parts(reward)
        self.logs += np.log(clean + moved)

    def _parts(self, reward: float) -> tuple[Floats, Floats]:
        if self._last is None or self._last[0] != reward:  # who judges a reward then learns from it
            one = np.array([reward])
            clean, moved = self.model.parts(one, self.eps, self.means, self.offsets)
            self._last = (reward, clean[0], moved[:, 0])
        return self._last[1:]

    def _refresh(self) -> None:
        self._likelihoods = np.exp(self.logs - self.logs.max())
        joint = self._likelihoods.sum(0)[:, None] * self.prior  # (M, W)
        masses = np.add.reduceat(joint, self._starts)  # (runs, W)
        totals = np.add.reduceat(masses, self._shares) + 1e-300  # (E, W)
        self.evidence: Floats = np.log(totals).ravel()
        """(E·W,), up to a number that is the same for all."""
        self._masses = masses / totals[self._run_share]

    @property
    def lowest(self) -> float:
        """No cell begins below."""
        return float(LOW + self._run_place.min() * (STEP / 2**self.level))

    def edges(self, level: int) -> Integers:
        """Of its cells along μ, in steps of the finest level's."""
        ends = np.concatenate([self._run_place, self._run_place + 1])
        found: Integers = np.unique(ends) << (level - self.level)
        return found

    def places(self, edges: Floats) -> list[tuple[slice, Integers, Floats]]:
        """Where these values of μ are among the runs of each ε, for `below`."""
        size = STEP / 2**self.level
        found = []
        for first, end in zip(self._shares, [*self._shares[1:], len(self._starts)], strict=True):
            begins = LOW + self._run_place[first:end] * size
            last = np.clip(np.searchsorted(begins, edges + 1e-9 * size, "right") - 1, 0, None)
            part = np.clip((edges - begins[last]) / size, 0.0, 1.0)
            found.append((slice(first, end), last, part[:, None]))
        return found

    def below(self, places: list[tuple[slice, Integers, Floats]]) -> Floats:
        """(E·W, X): how probable it is that μ is below each of the values."""
        found = []
        for mine, last, part in places:
            masses = self._masses[mine]
            before = masses.cumsum(0) - masses
            found.append(before[last] + part * masses[last])
        return np.concatenate(found, 1).T

    def poisoned(self, reward: float, weights: Floats) -> float:
        """How probable it is that a reward is poisoned which it has not heard of yet; `weights`
        (E, W) say what the other arms make of each kind."""
        clean, moved = self._parts(reward)
        joint = self._likelihoods * self._weighed(weights)
        bad, all_of_it = (joint * moved).sum(), (joint * (clean + moved)).sum()
        return float(bad / max(all_of_it, 1e-300))

    def cells(self, weights: Floats) -> tuple[Floats, ...]:
        """Its posterior as a list: weight, ε, μ, φ and the width of poisoned rewards."""
        joint = self._likelihoods * self._weighed(weights)  # (R, M)
        shape = joint.shape
        others = (self.eps, self.means, self.offsets, self.model.widths[:, None])
        return (joint.ravel(), *(np.broadcast_to(x, shape).ravel() for x in others))

    def _weighed(self, weights: Floats) -> Floats:
        found: Floats = (self.prior * weights[self._which]).sum(1)
        return found


@dataclass(frozen=True)
class _Cells:
    level: int
    places: Integers
    offsets: Floats
    logs: Floats
    prior: Floats


def _search(model: ArmModel, eps: float, rewards: Floats) -> _Cells:
    """The cells of one ε; those in which the arm is untouched, with the offset 0, come besides."""
    n, noise = len(rewards), model.noise
    level = max(0, math.ceil(math.log2(STEP * math.sqrt(n) / noise) - 1e-9))
    hit = max(1.0, n * eps)
    depth = max(0, math.ceil(math.log2(EVERY * STEP * math.sqrt(hit) / noise) - 1e-9))
    lines = _walk(model, eps, rewards, level, None)
    if eps == 0:
        parts = [(lines, np.ones((len(lines[0]), len(model.scales))))]
    else:
        cells = _walk(model, eps, rewards, level, depth)
        size = EVERY * STEP / 2**depth
        slab = (1 - model.untouched) * size * model.slab(cells[1])
        spike = np.full((len(lines[0]), len(model.scales)), model.untouched)
        parts = [(lines, spike), (cells, slab)]
    seen, counts = together(rewards, noise / FINE)
    places = np.concatenate([cells[0] for cells, _ in parts])
    offsets = np.concatenate([cells[1] for cells, _ in parts])
    prior = np.concatenate([share for _, share in parts])
    order = np.argsort(places, kind="stable")
    places, offsets, prior = places[order], offsets[order], prior[order]
    logs = _logs(model, eps, LOW + (places + 0.5) * STEP / 2**level, offsets, seen, counts)
    return _Cells(level, places, offsets, logs, prior)


def _walk(
    model: ArmModel, eps: float, rewards: Floats, level: int, depth: int | None
) -> tuple[Integers, Floats]:
    """Places of μ at this level, and offsets at this depth (all 0 without one), where the posterior
    is: from the cells of the grid down."""
    steps = np.arange(-FARTHEST, FARTHEST + 1) if depth is not None else np.zeros(1)
    places: Integers = np.repeat(np.arange(POINTS), len(steps))
    offsets: Floats = np.tile(EVERY * STEP * steps, POINTS)
    at, down, most = 0, 0, depth or 0
    while True:
        size, width = STEP / 2**at, EVERY * STEP / 2**down if depth is not None else 0.0
        sharp = max(size**2 * len(rewards), width**2 * eps * len(rewards), 1e-30)
        flat = min(1.0, 4 * model.noise**2 / sharp)
        seen, counts = together(rewards, max(model.noise / 4, size / 8, width / 8), 32)
        means = LOW + (places + 0.5) * size
        logs = _logs(model, eps, means, offsets, seen, counts, np.float32).max(0) * flat
        if depth is not None:
            logs = logs + np.log(model.slab(offsets).mean(1) + 1e-300)
        keep = np.flatnonzero(logs > logs.max() - NEGLIGIBLE)
        if len(keep) > MOST_CELLS:
            keep = np.sort(keep[np.argsort(-logs[keep], kind="stable")[:MOST_CELLS]])
        places, offsets = places[keep], offsets[keep]
        if (at, down) == (level, most):
            return places, offsets
        if at < level:
            places = np.concatenate([2 * places, 2 * places + 1])
            offsets, at = np.concatenate([offsets, offsets]), at + 1
        if down < most:
            places = np.concatenate([places, places])
            offsets = np.concatenate([offsets - width / 4, offsets + width / 4])
            down += 1


def _logs(
    model: ArmModel, eps: float, means: Floats, offsets: Floats, rewards: Floats, counts: Floats,
    kind: type[np.floating[Any]] = np.float64,
) -> Floats:  # fmt: skip
    """(R, M): logarithms of likelihoods, in numbers of this kind."""
    found = np.zeros((len(model.widths), len(means)))
    share = np.full(1, eps, kind)
    means, offsets, rewards, counts = (x.astype(kind) for x in (means, offsets, rewards, counts))
    rows = max(1, 50_000 // max(1, len(means)))
    for i in range(0, len(rewards), rows):
        clean, moved = model.parts(rewards[i : i + rows], share, means, offsets)
        for r, one in enumerate(moved):
            found[r] += counts[i : i + rows] @ np.log(clean + one)
    return found
