"""Attacks that add to an arm's reward an offset of its own: what uniform, structured and learned
attackers have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.budget import norm
from mithridate.capabilities import Added
from mithridate.errors import UserError
from mithridate.rng import TaskStreams
from mithridate.tables import AttackTables, unchanged
from mithridate.types import EnvSpec, Step, Tasks

NEEDS_ARMS = "needs an environment whose tasks are arms"


class ArmOffsets:
    """The proposed reward is r + N(offset(arm), spread(arm)²). Subclasses say what they are."""

    def __init__(self) -> None:
        self.offsets = torch.zeros(0, 0)
        """(B, A) of the tasks at hand."""
        self.spreads: Tensor | None = None
        """(B, A) standard deviations, if there are any."""

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        self._rng = rng
        self.offsets, self.spreads = self.choose(spec, tasks, rng)

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, Tensor | None]:
        """Offsets and spreads, (B, A) each, within the budget."""
        raise NotImplementedError

    def poison(self, step: Step) -> Tensor:
        index = step.actions[:, None]
        proposed = step.true_rewards + self.offsets.gather(1, index).squeeze(1)
        if self.spreads is not None:
            proposed = proposed + (self.spreads.gather(1, index) * self._rng.normal()).squeeze(1)
        return proposed

    def adds(self) -> Added:
        spread = None if self.spreads is None else self.spreads[:, None]
        return Added(self.offsets[:, None], spread)

    def has_tables(self) -> bool:
        return unchanged(self, ArmOffsets, "poison") and "offsets" in vars(self)

    def attack_tables(self, steps: int) -> AttackTables:
        shifts = self.offsets[:, None, :, None]  # (B, 1, A, 1)
        if self.spreads is None:
            return AttackTables(shifts)
        normals = self._rng.ahead("normal", steps)
        return AttackTables(shifts, spreads=self.spreads[:, None], normals=normals)

    def cost(self) -> Tensor:
        return norm(self.offsets)


def are_arms(spec: EnvSpec, tasks: Tasks) -> bool:
    """Whether an action is an arm: there is but one situation, and arms have means."""
    return spec.n_attack_keys == 1 and hasattr(tasks, "means")


def arm_means(spec: EnvSpec, tasks: Tasks, attacker: str) -> Tensor:
    """(B, A): what the arms are worth, or an error if there are none."""
    if not are_arms(spec, tasks):
        raise UserError(f"attacker '{attacker}' {NEEDS_ARMS}")
    means: Tensor = tasks.means  # type: ignore[attr-defined]
    return means
