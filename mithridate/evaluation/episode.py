"""One episode in a room, to look at: where the goals are, what the attacker does, where the agent
goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mithridate.capabilities import is_transparent
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.evaluation.columns import Column
from mithridate.evaluation.victims import Victim
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.stage_config import EvaluateConfig


@dataclass(frozen=True)
class Room:
    """One task's episode."""

    rewards: np.ndarray[Any, Any]
    """(S,): what each cell is worth."""
    offsets: np.ndarray[Any, Any]
    """(S, A): what the attacker adds on average, −1 … 1."""
    path: np.ndarray[Any, Any]
    """(T + 1,): the cells the agent was in."""
    title: str
    score: float = 0.0

    @property
    def size(self) -> int:
        return int(len(self.rewards) ** 0.5)

    def settled(self) -> int:
        """The cell where it was most often in the last quarter of the episode."""
        return int(np.bincount(self.path[-max(1, len(self.path) // 4) :]).argmax())

    def to_json(self) -> dict[str, Any]:
        return {
            "rewards": self.rewards.tolist(), "path": self.path.tolist(), "title": self.title,
            "offsets": [[round(x, 4) for x in row] for row in self.offsets.tolist()],
            "score": self.score,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Room:
        arrays = {name: np.array(data[name]) for name in ("rewards", "offsets", "path")}
        return cls(**arrays, title=data["title"], score=data["score"])


def watch(config: EvaluateConfig, victim: Victim, column: Column, task: int = 0) -> Room:
    """The victim's episode in one of the tasks of an evaluation's first replication."""
    env = env_of(config.env)
    if env.spec.n_states is None or env.spec.n_attack_keys != env.spec.n_states:
        raise UserError(f"'{config.env.name}' has no rooms to draw; try darkroom2")
    rng = Rng(config.seed).child("evaluate", 0)
    attacker, tasks = column.meet(0)
    if tasks is None:
        tasks = env.sample_tasks(config.tasks, rng.child("tasks"))
    if task >= len(tasks):
        raise UserError(f"--task {task}: there are {len(tasks)}, from 0 on")
    one = tasks.select(slice(task, task + 1))
    trajectory = rollout(env, one, victim.replication(0), attacker, config.eps, rng=rng)
    offsets = torch.zeros(env.spec.n_states, env.spec.n_actions)
    if attacker is not None:
        if not is_transparent(attacker):
            raise UserError(
                f"attacker '{column.name}' has no offset for each state and action to draw"
            )
        offsets = attacker.adds().mean[0]
    score = env.score(one, trajectory).sum().item()
    name = "no attack" if column.kind == "clean" else column.name
    return Room(
        one.rewards[0].numpy(),  # type: ignore[attr-defined]
        offsets.numpy(),
        trajectory.observations[0, 0].numpy(),  # type: ignore[index]
        f"{victim.label} under {name}, task {task}: {env.spec.metric.name} {score:g}",
        score,
    )
