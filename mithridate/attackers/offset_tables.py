"""Attacks that add −1, 0 or +1 to a reward, with probabilities for each key and action: what the
random, structured and learned attackers of rooms have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.budget import mixed, norm
from mithridate.capabilities import Added
from mithridate.errors import UserError
from mithridate.rng import TaskStreams
from mithridate.tables import AttackTables, unchanged
from mithridate.types import EnvSpec, Step, Tasks

OFFSETS = (-1.0, 0.0, 1.0)
SEVERAL = "several attack keys, as rooms have"


class OffsetTable:
    """The proposed reward is r − 1, r or r + 1, with probabilities (B, K, A, 3) for each task,
    key and action. Subclasses say what they are."""

    budget: float

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        if spec.n_attack_keys == 1:
            raise UserError(f"this attacker needs an environment with {SEVERAL}; here is one")
        self._rng = rng
        self._index = torch.arange(len(tasks), device=tasks.device)
        self._offsets = torch.tensor(OFFSETS, device=tasks.device)
        self.probabilities = mixed(self.choose(spec, tasks, rng), OFFSETS, self.budget)
        """(B, K, A, 3) of the tasks at hand."""
        self._edges = self.probabilities.cumsum(-1)[..., :-1]

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> Tensor:
        """Probabilities (B, K, A, 3), before they are brought into the budget."""
        raise NotImplementedError

    def poison(self, step: Step) -> Tensor:
        edges = self._edges[self._index, step.key, step.actions]  # (B, 2)
        which = (self._rng.uniform() >= edges).sum(1)
        return step.true_rewards + self._offsets[which]

    def adds(self) -> Added:
        mean = mean_offsets(self.probabilities)
        return Added(mean, (self.probabilities @ self._offsets**2 - mean**2).clamp(min=0.0).sqrt())

    def has_tables(self) -> bool:
        return unchanged(self, OffsetTable, "poison")

    def attack_tables(self, steps: int) -> AttackTables:
        shifts = self._offsets.expand_as(self.probabilities)
        return AttackTables(shifts, self._edges, self._rng.ahead("uniform", steps))

    def cost(self) -> Tensor:
        return norm(mean_offsets(self.probabilities))


def certain(offsets: Tensor) -> Tensor:
    """Probabilities (..., 3) of offsets −1, 0 or 1 (...) that are always the same."""
    choices = torch.tensor(OFFSETS, device=offsets.device)
    return (offsets[..., None] == choices).float()


def mean_offsets(probabilities: Tensor) -> Tensor:
    """(B, K, A): what is added on average."""
    return probabilities @ torch.tensor(OFFSETS, device=probabilities.device)
