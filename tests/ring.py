"""A small environment with images, for tests only: a ring of four cells, one of which pays.

Task: the cell that pays 1. Actions: left, stay, right. Observation: a picture of the ring, in which
the agent's cell is white, and a vector that says how often it has moved and stayed. The episode
starts in cell 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from mithridate.config import EnvConfig, Positive
from mithridate.observations import Array
from mithridate.types import Contexts, EnvSpec, Metric, Tasks

CELLS, MOVES = 4, torch.tensor([-1, 0, 1])
SMALL = {
    "threads": 1,
    "model": {"layers": 2, "heads": 2, "width": 16},
    "log_every": 50,
    "batches": {"long_batch": 32, "short_batch": 32, "short_length": 8},
}
SEEN = {"image": Array((8, 8, 3), torch.uint8), "place": Array((2,))}


class RingConfig(EnvConfig):
    name: Literal["ring"] = "ring"
    horizon: Positive = 12


@dataclass(frozen=True)
class RingTasks(Tasks):
    goals: Tensor  # (B,)


class Ring:
    registered_name = "ring"
    Config = RingConfig
    attacks = ("uniform",)
    learned_attack = "tabular"
    budget = 10.0
    peer = None
    presets: ClassVar[dict[str, Any]] = {
        "pretrain": {
            "smoke": {
                **SMALL, "steps": 400, "optimiser": {"warmup_steps": 20, "learning_rate": 3e-3},
                "evaluate_every": 400, "evaluate_tasks": 20, "final_tasks": 40,
                "checkpoint_every": 50,
            }
        },
        "train": {
            "smoke": {
                "threads": 1, "batches": SMALL["batches"], "tasks": 16, "rounds": 3,
                "iterations": 4, "synthetic": {"rounds": 1}, "evaluate_every": 4,
                "evaluate_tasks": 10, "final_tasks": 10, "checkpoint_every": 1, "budget": 2.0,
                "threats": [{"attacker": "tabular"}], "suboptimal": 0.2,
            }
        },
        "attack": {
            "smoke": {
                "threads": 1, "tasks": 10, "rounds": 3, "attacker": "tabular", "budget": 2.0,
            }
        },
        "evaluate": {"smoke": {"threads": 1, "tasks": 10, "rounds": 2, "budget": 2.0}},
    }  # fmt: skip

    def __init__(self, config: RingConfig | None = None) -> None:
        self.config = config or RingConfig()
        self.spec = EnvSpec(
            name="ring", n_actions=3, horizon=self.config.horizon,
            metric=Metric("episode reward", "higher"), observation=SEEN, n_attack_keys=CELLS,
        )  # fmt: skip
        frames = np.zeros((CELLS, 8, 8, 3), dtype=np.uint8)
        for cell in range(CELLS):
            row, column = divmod(cell, 2)
            frames[cell, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 255
        self._frames = torch.from_numpy(frames)

    def sample_tasks(self, n, rng, first=0):
        ids = torch.arange(first, first + n)
        drawn = rng.child("goals").streams(ids).uniform().squeeze(1)
        return RingTasks(ids=ids, goals=(drawn * CELLS).long())

    def reset(self, tasks):
        return {
            "cell": torch.zeros(len(tasks), dtype=torch.int64),
            "count": torch.zeros(len(tasks), 2),
        }

    def step(self, tasks, state, actions, noise):
        cell = (state["cell"] + MOVES[actions]) % CELLS
        moved = (actions != 1).float()
        count = state["count"] + torch.stack([moved, 1 - moved], 1) / self.config.horizon
        return {"cell": cell, "count": count}, (cell == tasks.goals).float()

    def observe(self, state):
        return {"image": self._frames[state["cell"]], "place": state["count"]}

    def attack_key(self, tasks, state):
        return state["cell"]

    def _values(self, goals, cells):
        """(..., A): minus how far it still is."""
        ahead = (goals[..., None] - cells[..., None] - MOVES) % CELLS
        return -torch.minimum(ahead, CELLS - ahead).float()

    def action_values(self, tasks, state):
        return self._values(tasks.goals, state["cell"])

    def optimal_action(self, tasks, state):
        return self.action_values(tasks, state).argmax(1)

    def score(self, tasks, trajectory):
        return trajectory.true_rewards

    def sample_contexts(self, tasks, length, rng, poison=None):
        """Walks at random, asked about where they are."""
        draw, batch = rng.generator(), len(tasks)
        actions = torch.from_numpy(draw.integers(0, 3, (batch, length)))
        states, rewards = [self.reset(tasks)], []
        for t in range(length):
            state, reward = self.step(tasks, states[-1], actions[:, t], None)
            states.append(state)
            rewards.append(reward)
        seen = [self.observe(state) for state in states]
        bank = {name: torch.stack([o[name] for o in seen], 1).flatten(0, 1) for name in SEEN}
        rewards = torch.stack(rewards, 1)
        if poison is not None:
            other = poison.rng.generator()
            hit = torch.from_numpy(other.random((batch, length))) < poison.eps[:, None]
            sign = torch.from_numpy(other.choice([-1.0, 1.0], (batch, length)))
            rewards = rewards + (hit & (poison.budget[:, None] > 0)) * sign.float()
        cells = torch.stack([state["cell"] for state in states], 1)  # (B, T + 1)
        values = self._values(tasks.goals[:, None], cells)
        places = torch.arange(cells.numel()).view(cells.shape)
        return Contexts(
            actions, rewards, labels=values.argmax(2), states=places[:, :-1],
            next_states=places[:, 1:], queries=places, values=values, bank=bank,
        )  # fmt: skip
