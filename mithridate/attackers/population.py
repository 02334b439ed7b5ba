"""Several attackers side by side: each has its own stretch of the batch of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mithridate.rng import TaskStreams
from mithridate.tables import AttackTables, TableAttacker, is_fixed, side_by_side, unchanged
from mithridate.types import Attacker, EnvSpec, Step, Tasks


class Population:
    """`parts`: how many tasks, and who attacks them (nobody, if None)."""

    def __init__(self, parts: Sequence[tuple[int, Attacker | None]]) -> None:
        self.parts = list(parts)

    def slices(self) -> list[slice]:
        ends = torch.tensor([n for n, _ in self.parts]).cumsum(0).tolist()
        return [slice(end - n, end) for end, (n, _) in zip(ends, self.parts, strict=True)]

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        if sum(n for n, _ in self.parts) != len(tasks):
            raise ValueError("a mixture of attackers needs as many tasks as its parts have")
        self._sizes = (spec.n_attack_keys, spec.n_actions)
        for part, (_, attacker) in zip(self.slices(), self.parts, strict=True):
            if attacker is not None:
                attacker.reset(spec, tasks.select(part), rng.select(part))

    def poison(self, step: Step) -> Tensor:
        proposed = step.true_rewards.clone()
        for part, (_, attacker) in zip(self.slices(), self.parts, strict=True):
            if attacker is not None:
                proposed[part] = attacker.poison(step.select(part))
        return proposed

    def has_tables(self) -> bool:
        return unchanged(self, Population, "poison") and all(
            a is None or is_fixed(a) for _, a in self.parts
        )

    def attack_tables(self, steps: int) -> AttackTables:
        parts = [
            (n, a.attack_tables(steps) if isinstance(a, TableAttacker) else None)
            for n, a in self.parts
        ]
        return side_by_side(parts, *self._sizes, steps)

    def cost(self) -> Tensor:
        return torch.cat(
            [torch.zeros(n) if attacker is None else attacker.cost() for n, attacker in self.parts]
        )
