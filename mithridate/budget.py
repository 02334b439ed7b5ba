"""The one place where an attack's budget is enforced or charged for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def norm(offsets: Tensor) -> Tensor:
    """(B,) Euclidean norm of each task's offsets (B, ...): what is held against the budget."""
    lengths: Tensor = torch.linalg.vector_norm(offsets.flatten(1), dim=1)
    return lengths


def project(offsets: Tensor, budget: float | Tensor) -> Tensor:
    """The nearest offsets (B, ...) whose norm is at most `budget`, a number or one for each task;
    those within are unchanged."""
    lengths = norm(offsets)
    scale = torch.where(lengths > budget, budget / lengths.clamp(min=1e-30), 1.0)
    # A scaled vector may come out a rounding error too long: shrink until it does not.
    result = offsets * scale.view(-1, *[1] * (offsets.dim() - 1))
    over = norm(result) > budget
    if over.any():
        result[over] *= 1 - 1e-6
    return result


def mixed(probabilities: Tensor, offsets: Sequence[float], budget: float) -> Tensor:
    """Probabilities (B, …, K) of K `offsets`, one of which is 0, mixed with the certainty of 0
    until the norm of the mean offsets is at most `budget`; those within are unchanged."""
    values = torch.tensor(offsets, device=probabilities.device)
    lengths = norm(probabilities @ values)
    # A hair below the budget, so that rounding does not lead out of it.
    share = torch.where(lengths > budget, budget * (1 - 1e-6) / lengths.clamp(min=1e-30), 1.0)
    share = share.view(-1, *[1] * (probabilities.dim() - 1))
    return share * probabilities + (1 - share) * (values == 0)


def excess(offsets: Tensor, budget: float) -> Tensor:
    """(B,) max(0, ‖offsets‖₂ − budget): the paper's c_μ and c_σ."""
    return (norm(offsets) - budget).clamp(min=0.0)


class Account:
    """What an attacker that watches the episode has spent: for each task and arm, the mean of the
    offsets at its pulls so far, of those too that were not shown. Their norm over arms is within
    `budget` at every step."""

    def __init__(self, batch: int, arms: int, budget: float, device: torch.device) -> None:
        self._budget = budget
        self._rows = torch.arange(batch, device=device)
        self._sums, self._counts = torch.zeros(2, batch, arms, device=device)

    def means(self) -> Tensor:
        """(B, A)."""
        means: Tensor = self._sums / self._counts.clamp(min=1)
        return means

    def state(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) each, of the arms that are pulled now: the mean offset so far, and the largest that
        it may come to."""
        means, arm = self.means(), (self._rows, actions)
        others = (means**2).sum(1) - means[arm] ** 2
        # A hair below the budget, so that rounding does not lead out of it.
        limit = (self._budget**2 * (1 - 1e-5) - others).clamp(min=0.0).sqrt()
        return means[arm], limit

    def bounds(self, actions: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) each: between these offsets, the arm's mean stays within the limit."""
        arm = (self._rows, actions)
        room, spent = limit * (self._counts[arm] + 1), self._sums[arm]
        return -room - spent, room - spent

    def charge(self, actions: Tensor, offsets: Tensor) -> None:
        arm = (self._rows, actions)
        self._sums[arm] += offsets
        self._counts[arm] += 1
