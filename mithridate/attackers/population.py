"""Several attackers side by side: each has its own stretch of the batch of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mithridate.rng import TaskStreams
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
        for part, (_, attacker) in zip(self.slices(), self.parts, strict=True):
            if attacker is not None:
                attacker.reset(spec, tasks.select(part), rng.select(part))

    def poison(self, step: Step) -> Tensor:
        proposed = step.true_rewards.clone()
        for part, (_, attacker) in zip(self.slices(), self.parts, strict=True):
            if attacker is not None:
                proposed[part] = attacker.poison(step.select(part))
        return proposed

    def cost(self) -> Tensor:
        return torch.cat(
            [torch.zeros(n) if attacker is None else attacker.cost() for n, attacker in self.parts]
        )
