"""What is known of one bandit: the posterior of `mixture_ts`, finer where that is too coarse.

As long as no arm has been pulled too often for the grid (`refined_arms.needs_refining`; more than
900 times at the default noise), this is `mixture_ts` itself. Afterwards arms have cells of
different sizes. How probable it is that each is the best one is then summed over values of μ that
are close together where the best arm can be: not below all that some refined arm may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mithridate.agents.coarse_arms import CoarseArms
from mithridate.agents.mixture_grid import EVERY, OFFSETS, POINTS, TINY, make_grid
from mithridate.agents.refined_arms import (
    LOW,
    MOST_EDGES,
    STEP,
    ArmModel,
    Floats,
    RefinedArm,
    density,
    last_made,
    needs_refining,
    next_made,
)

CERTAIN = 1e-9
MOST_TOLD = 4000
"""Cells of a posterior that a history is judged by."""


def sharpened(best: Floats, uniform: float, temperature: float) -> int:
    """An arm, drawn by a uniform number."""
    logs = np.log(np.maximum(best, TINY)) / temperature
    shares = np.exp(logs - logs.max())
    edges = (shares / shares.sum()).cumsum()[:-1]
    return int((uniform >= edges).sum())


class ArmsPosterior:
    """Of one task; rewards are scaled to means in [0, 1]."""

    def __init__(
        self, arms: int, noise: float, eps: Sequence[float], untouched: float,
        scales: Sequence[float], spreads: Sequence[float], temperature: float,
    ) -> None:  # fmt: skip
        cpu = torch.device("cpu")
        self.model = ArmModel.make(noise, eps, untouched, scales, spreads)
        grid = make_grid(arms, noise, eps, untouched, scales, spreads, cpu)
        self._coarse = CoarseArms(grid)
        self._means, self._values = grid.means.numpy(), grid.places.numpy()
        self._share = grid.share[:, :, 0].numpy()
        self._arms, self._temperature = arms, temperature
        self._refined: dict[int, RefinedArm] = {}
        self._places: dict[int, Any] = {}
        self._seen: list[list[float]] = [[] for _ in range(arms)]

    # Learning ----------------------------------------------------------------------------------

    def observe(self, arm: int, reward: float) -> None:
        seen = self._seen[arm]
        seen.append(reward)
        fine = self._refined.get(arm)
        if fine is not None and len(seen) < next_made(fine.made_with):
            fine.observe(reward)
            self._below[arm] = fine.below(self._places[arm])
            self._evidence[arm] = fine.evidence
        elif fine is not None or needs_refining(self.model.noise, len(seen)):
            self._refined[arm] = RefinedArm(self.model, seen)
            self._lay_out()
        else:
            self._coarse.observe(arm, reward)
            if self._refined:
                self._below[arm] = self._coarsely_below(arm)
                self._evidence[arm] = self._coarse.evidence[arm]

    def replay(self, seen: Sequence[Sequence[float]]) -> None:
        """Bring a new one to where these rewards, one by one, brought another."""
        for arm, rewards in enumerate(seen):
            self._seen[arm] = list(rewards)
            if last_made(self.model.noise, len(rewards)):
                self._refined[arm] = RefinedArm.again(self.model, rewards)
            else:
                for reward in rewards:
                    self._coarse.observe(arm, reward)
        if self._refined:
            self._lay_out()

    # Acting ------------------------------------------------------------------------------------

    def best(self) -> Floats:
        """(A,): how probable it is that each arm is the best one."""
        if not self._refined:
            return self._coarse.best()
        weights = self._evidence.sum(0)
        weights = np.exp(weights - weights.max())
        inside = np.flatnonzero((self._below[:, :, 1] < 1 - CERTAIN).any(1))
        below = self._below[inside]  # (A', E·W, X)
        masses = np.diff(below, axis=2)
        middle = below[..., :-1] + 0.5 * masses
        before, after = np.ones_like(middle), np.ones_like(middle)
        np.cumprod(middle[:-1], axis=0, out=before[1:])
        np.cumprod(middle[:0:-1], axis=0, out=after[-2::-1])
        wins = (masses * before * after).sum(2)  # (A', E·W)
        wins /= np.maximum(wins.sum(0), TINY)
        found = np.zeros(self._arms)
        found[inside] = wins @ (weights / weights.sum())
        return found

    def draw(self, uniform: float) -> int:
        if not self._refined:
            return self._coarse.draw(uniform, self._temperature)
        return sharpened(self.best(), uniform, self._temperature)

    def _lay_out(self) -> None:
        """Values of μ at which arms are compared. They depend on which cells the refined arms have,
        and on nothing that changes between."""
        level = max(arm.level for arm in self._refined.values())
        lowest = max(arm.lowest for arm in self._refined.values())
        fine = [arm.edges(level) for arm in self._refined.values()]
        edges = np.unique(np.concatenate([*fine, np.arange(POINTS + 1) << level]))
        values = LOW + edges * (STEP / 2**level)
        inside = values[values > lowest - 1e-9 * STEP]
        while len(inside) > MOST_EDGES:
            inside = np.concatenate([inside[:-1:2], inside[-1:]])
        self._edges = np.concatenate([[LOW], inside]) if inside[0] > LOW else inside
        place = np.clip((self._edges - LOW) / STEP, 0, POINTS)
        self._cell = np.minimum(place.astype(np.int64), POINTS - 1)
        self._part = place - self._cell
        shape = (self._arms, self.model.kinds, len(self._edges))
        self._below = np.empty(shape)
        self._evidence = self._coarse.evidence.astype(np.float64)
        self._places = {}
        for arm in range(self._arms):
            fine_arm = self._refined.get(arm)
            if fine_arm is None:
                self._below[arm] = self._coarsely_below(arm)
                continue
            self._places[arm] = fine_arm.places(self._edges)
            self._below[arm] = fine_arm.below(self._places[arm])
            self._evidence[arm] = fine_arm.evidence

    def _coarsely_below(self, arm: int) -> Floats:
        beliefs = self._coarse.beliefs[arm].astype(np.float64)
        before = beliefs.cumsum(1) - beliefs
        found: Floats = before[:, self._cell] + self._part * beliefs[:, self._cell]
        return found

    # Suspicion ---------------------------------------------------------------------------------

    def suspicion(self, arm: int, reward: float) -> float:
        """How probable it is that this reward, of which nothing has been heard yet, is poisoned."""
        weights = self._kinds(arm)
        fine = self._refined.get(arm)
        if fine is not None:
            return fine.poisoned(reward, weights)
        model, eps = self.model, np.array(self.model.eps)
        table = self._coarse.table(arm)  # (E, O, R, G)
        kind = table.dtype
        clean = density(reward - self._means, model.noise).astype(kind)  # (G,)
        moved = density(reward - self._values, model.widths[:, None]).astype(kind)  # (R, places)
        strides = (EVERY * moved.strides[1], *moved.strides)
        shape = (OFFSETS, len(moved), POINTS)
        moved = np.lib.stride_tricks.as_strided(moved, shape, strides)  # (O, R, G)
        slab = weights @ self._share  # (E, O)
        fits = (table.reshape(-1, POINTS) @ clean).reshape(table.shape[:3]).sum(2)  # (E, O)
        good = (1 - eps) * (fits * slab).sum(1)
        bad = eps * (np.einsum("eorg,org->eo", table, moved) * slab).sum(1)
        fair, foul = float(good.sum()), float(bad.sum())
        if fair + foul < 1e9 * TINY * float(table.max()):  # from so far away that nothing fits
            foul += TINY * float((table.sum((2, 3)) * slab).sum())
        return foul / (fair + foul)

    def suspicions(self, arm: int) -> Floats:
        """The same of each of the arm's rewards, given all that is known now."""
        rewards = np.array(self._seen[arm])
        weight, eps, means, offsets, widths = self._cells(arm)
        order = np.argsort(-weight, kind="stable")[:MOST_TOLD]
        weight, eps, means, offsets, widths = (
            x[order] for x in (weight, eps, means, offsets, widths)
        )
        found = np.empty(len(rewards))
        rows = max(1, 400_000 // len(order))
        for i in range(0, len(rewards), rows):
            some = rewards[i : i + rows, None]
            good = (1 - eps) * density(some - means, self.model.noise)
            bad = eps * density(some - means - offsets, widths) + TINY
            found[i : i + rows] = bad / (good + bad) @ weight
        total: Floats = found / weight.sum()
        return total

    def _cells(self, arm: int) -> tuple[Floats, ...]:
        weights = self._kinds(arm)
        fine = self._refined.get(arm)
        if fine is not None:
            return fine.cells(weights)
        slab = weights @ self._share  # (E, O)
        table = self._coarse.table(arm) * slab[:, :, None, None]  # (E, O, R, G)
        offsets = EVERY * STEP * (np.arange(OFFSETS) - OFFSETS // 2)
        values = (
            np.array(self.model.eps)[:, None, None, None], self._means, offsets[:, None, None],
            self.model.widths[:, None],
        )  # fmt: skip
        return (table.ravel(), *(np.broadcast_to(x, table.shape).ravel() for x in values))

    def _kinds(self, arm: int) -> Floats:
        """(E, W): how probable the other arms make each ε and w."""
        if self._refined:
            logs = self._evidence.sum(0) - self._evidence[arm]
        else:
            evidence = self._coarse.evidence.astype(np.float64)
            logs = evidence.sum(0) - evidence[arm]
        shares = np.exp(logs - logs.max()) / len(logs)
        found: Floats = (shares / shares.sum()).reshape(len(self.model.eps), -1)
        return found
