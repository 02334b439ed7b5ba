"""The posterior of `mixture_ts` for a single task, in NumPy: by the kernels, or else in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mithridate.agents.mixture_grid import (
    OFFSETS,
    POINTS,
    Grid,
    NativePosterior,
    ReferencePosterior,
    make_posterior,
)

Floats = np.ndarray[Any, np.dtype[np.float64]]


class CoarseArms:
    """What its methods mean is said in `Posterior`."""

    def __init__(self, grid: Grid) -> None:
        self._posterior = made = make_posterior(grid, 1)
        self._kernel: Any = None
        if isinstance(made, NativePosterior):
            self._kernel, self._tables, self._known = made.alone()
        self._shape = (len(grid.eps), OFFSETS, len(grid.widths), POINTS)
        self._arm = np.zeros(1, dtype=np.int64)
        self._number = np.zeros(1, dtype=np.float32)
        self._best = np.zeros((1, grid.arms), dtype=np.float32)
        self.beliefs = self._posterior.beliefs[0, :, :, :POINTS].numpy()
        """(A, E·W, G)"""
        self.evidence = self._posterior.evidence[0].numpy()
        """(A, E·W)"""

    def observe(self, arm: int, reward: float) -> None:
        self._arm[0], self._number[0] = arm, reward
        if self._kernel is not None:
            self._kernel.observe(self._tables, *self._known, self._arm, self._number, 1)
            return
        self._posterior.observe(torch.from_numpy(self._arm), torch.from_numpy(self._number))

    def best(self) -> Floats:
        """(A,)"""
        if self._kernel is None:
            found: Floats = self._posterior.best()[0].double().numpy()
            return found
        self._kernel.best(*self._known, self._best, 1)
        found = self._best[0].astype(np.float64)
        return found

    def draw(self, uniform: float, temperature: float) -> int:
        self._number[0] = uniform
        if self._kernel is None:
            return int(self._posterior.draw(torch.from_numpy(self._number)[:, None], temperature))
        self._kernel.act(*self._known, self._number, temperature, self._arm, 1)
        return int(self._arm[0])

    def table(self, arm: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(E, O, R, G): likelihoods, up to a factor."""
        if isinstance(self._posterior, ReferencePosterior):
            return self._posterior.table(arm).permute(0, 3, 1, 2).contiguous().numpy()
        found: np.ndarray[Any, np.dtype[np.float32]] = self._tables[0, arm].reshape(self._shape)
        return found
