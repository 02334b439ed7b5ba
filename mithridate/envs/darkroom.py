"""Darkroom2 (paper, MDP setting): a dark room with two goals.

Task: two distinct cells of an n × n grid, one worth 1, the other worth 2.
Actions: up, down, left, right, stay; a move into a wall leaves the agent where it is.
Observation: the number of the agent's cell, row by row, from 0.
Reward: what the cell that was *reached* is worth; no noise. The episode starts in cell 0 and has a
fixed length; the score is the sum of the true rewards.
Oracle: the shortest way to the goal worth 2, through the other goal if that lies on one, then stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from mithridate.config import IN_ROOMS, EnvConfig, Fraction, Positive, Seed
from mithridate.envs.darkroom_goals import (
    Part,
    held_cells,
    independently,
    pairs_of,
    without_replacement,
)
from mithridate.envs.darkroom_picture import Room
from mithridate.envs.darkroom_poison import RoomPoison
from mithridate.envs.presets import (
    CONSTANT,
    PAPER_DISTILL,
    PAPER_PRETRAIN,
    PAPER_TRAIN,
    SMOKE_PRETRAIN,
    SMOKE_TRAIN,
)
from mithridate.observations import States
from mithridate.registry import ENVS
from mithridate.rng import Rng
from mithridate.tables import WorldTables, unchanged
from mithridate.types import Contexts, EnvSpec, Metric, Poison, Tasks, Trajectory

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))
"""Up, down, left, right, stay: change of row and column."""
STAY = 4
DISCOUNT = 0.99
"""Of the action values, which say what an action is worth; the score is not discounted."""


SMALL: dict[str, Any] = {"env": {"size": 3, "horizon": 20}, "threads": 1}
BATCHES = {
    "long_batch": 64, "long_every": 2, "short_batch": 64, "short_length": 100,
}  # fmt: skip
LONG = {**BATCHES, "long_every": 1}
PAPER_ATTACK = "tabular(discount=1,iterations=20)"
STRONG: dict[str, Any] = {
    # Bayes' rule for the room says what to do in contexts that the model has lived through.
    "teacher": "mixture_room(keep=0,temperature=0.3,nearness=4)",
    "widen": 2,
    "tasks": 160,
    "threats": [
        {"attacker": "tabular", "share": 0.15},
        {"attacker": "pooled", "share": 0.1},
        {"attacker": "uniform", "share": 0.2},
        {"attacker": "swap_goals", "share": 0.1},
        {"attacker": "decoys", "share": 0.1},
        {"attacker": "hide_best", "share": 0.08},
        {"attacker": "raise_lesser", "share": 0.06},
        {"attacker": "fake_goal", "share": 0.06},
        {"attacker": "none", "share": 0.15},
    ],
    "renew": 0.2,
    "memory": 20,
    "temperature": 0.7,
    "synthetic": {"rounds": 0, "share": 0.0},
    "rounds": 60,
    "compare_every": 0,
    "evaluate_every": 20,
    "final_tasks": 200,
    "batches": BATCHES,
}
SEEN: dict[str, Any] = {"held_out": 1 / 3, "part": "train"}
"""Of the environment, for trainings whose models are measured on pairs of goals that they never
met: 400 of the 600."""
HELD_OUT: dict[str, Any] = {"held_out": 1 / 3, "part": "test"}
"""And where they are measured: the other 200."""


class DarkroomConfig(EnvConfig):
    name: Literal["darkroom2"] = "darkroom2"
    horizon: Positive = 200
    """Steps per episode (H)."""
    size: Positive = 5
    """Cells on a side of the room."""
    which_tasks: ClassVar[tuple[str, ...]] = ("held_out", "part", "split_seed")
    held_out: Fraction = 0.0
    """Share of the pairs of goals that the `train` part leaves out; the `test` part has only
    these, and draws each of them once before any comes again."""
    part: Part = "all"
    """Which pairs of goals the tasks are drawn from."""
    split_seed: Seed = 0
    """Which pairs are held out."""

    def memory(self) -> tuple[float, float]:
        # All pairs of goals are listed; attackers have a table of cells, actions and offsets.
        cells = float(self.size) ** 2
        return 200 * cells**2, 4 * cells * len(MOVES) * (3 * 8 + 6)

    @model_validator(mode="after")
    def _there_are_tasks(self) -> DarkroomConfig:
        if self.size < 2:
            raise ValueError("size must be at least 2: two goals need two cells")
        held, every = (held_cells(self.size**2, share) for share in (self.held_out, 1.0))
        if self.part == "test" and held == 0:
            raise ValueError("part test is empty: raise held_out")
        if self.part == "train" and held == every:
            raise ValueError("part train is empty: lower held_out")
        return self


@dataclass(frozen=True)
class DarkroomTasks(Tasks):
    rewards: Tensor
    """(B, S) float32: what each cell is worth, 0, 1 or 2."""

    @cached_property
    def after(self) -> Tensor:
        """(S, A): the cell that each action leads to."""
        return transitions(int(self.rewards.shape[1] ** 0.5), self.rewards.device)

    @cached_property
    def kinds(self) -> Tensor:
        """(B, S, A): entries of a table that attackers may see as alike have the same number. It
        says what the cell that is reached is worth, and whether the agent stays where it is."""
        here = torch.arange(len(self.after), device=self.after.device)[:, None]
        return 2 * self.rewards[:, self.after].long() + (self.after == here)

    @cached_property
    def values(self) -> Tensor:
        """(B, S, A): Q*, the discounted worth of each action in each cell."""
        size, after = int(self.rewards.shape[1] ** 0.5), self.after
        v = torch.zeros_like(self.rewards)
        v[self.rewards == 2] = 2 / (1 - DISCOUNT)  # staying there
        for _ in range(2 * size):  # no way is longer
            v = (self.rewards + DISCOUNT * v)[:, after].amax(2)
        return (self.rewards + DISCOUNT * v)[:, after]

    @cached_property
    def best(self) -> Tensor:
        """(B, S): the best action in each cell. On the best goal, staying is as good as walking
        into a wall: stay."""
        staying = torch.arange(len(MOVES), device=self.rewards.device) == STAY
        return (self.values + 0.1 * staying).argmax(2)  # values that differ, differ by more


def transitions(size: int, device: torch.device | str = "cpu") -> Tensor:
    """(S, A): the cell that each action leads to."""
    rows, columns = np.divmod(np.arange(size * size), size)
    after = [
        np.clip(rows + down, 0, size - 1) * size + np.clip(columns + right, 0, size - 1)
        for down, right in MOVES
    ]
    return torch.from_numpy(np.stack(after, 1)).to(device)


@ENVS.register("darkroom2")
class Darkroom:
    Config = DarkroomConfig

    attacks = ("uniform", "hide_best", "raise_lesser", "swap_goals", "fake_goal", "decoys")
    learned_attack = "tabular"
    budget = IN_ROOMS
    peer = None

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "pretrain": {
            "smoke": {**SMOKE_PRETRAIN, **SMALL},
            "laptop": {"steps": 8000, "batches": BATCHES},
            "paper": {  # 150 epochs of 1,250 batches
                **PAPER_PRETRAIN, "steps": 187_500, "batches": LONG,
                "optimiser": {**CONSTANT, "learning_rate": 1e-4},
            },
        },
        "distill": {
            "smoke": {
                **SMOKE_PRETRAIN, **SMALL, "tasks": 32, "refresh_every": 10, "pool": 2,
            },
            "laptop": {"steps": 3000, "batches": BATCHES},
            "paper": {**PAPER_DISTILL, "batches": LONG},
        },
        "train": {
            "smoke": {**SMOKE_TRAIN, **SMALL},
            "laptop": STRONG,
            "laptop-v1": {
                "batches": BATCHES, "temperature": 0.85, "acts_at": 1.0, "rounds": 80,
                "renew": 0.02, "synthetic": {"rounds": 50},
            },
            "paper": {
                **PAPER_TRAIN, "threats": [{"attacker": PAPER_ATTACK}],
                "rounds": 400, "optimiser": {**CONSTANT, "learning_rate": 3e-5},
                "batches": LONG, "evaluate_every": 25,
            },
        },
        "attack": {
            "smoke": {**SMALL, "tasks": 20, "rounds": 3},
            "laptop": {"rounds": 60},
            "paper": {"attacker": PAPER_ATTACK, "rounds": 300},
        },
        "evaluate": {
            "smoke": {**SMALL, "tasks": 20, "rounds": 3},
            "laptop": {"rounds": 60},
            "paper": {"replications": 10, "rounds": 300},
        },
    }  # fmt: skip

    def __init__(self, config: DarkroomConfig | None = None) -> None:
        self.config = config or DarkroomConfig()
        self.states = self.config.size**2
        self.spec = EnvSpec(
            name="darkroom2",
            n_actions=len(MOVES),
            horizon=self.config.horizon,
            metric=Metric("episode reward", "higher"),
            observation=States(self.states),
            n_attack_keys=self.states,
        )
        self._after = transitions(self.config.size)

    def sample_tasks(self, n: int, rng: Rng, first: int = 0) -> DarkroomTasks:
        c = self.config
        pairs = torch.from_numpy(pairs_of(c.part, self.states, c.held_out, c.split_seed))
        draw = without_replacement if c.part == "test" else independently
        goals = pairs[draw(len(pairs), n, rng.child("goals"), first)]  # (B, 2)
        rewards = torch.zeros(n, self.states)
        rewards.scatter_(1, goals[:, :1], 1.0)
        rewards.scatter_(1, goals[:, 1:], 2.0)
        return DarkroomTasks(ids=torch.arange(first, first + n), rewards=rewards)

    def reset(self, tasks: DarkroomTasks) -> Tensor:
        return torch.zeros(len(tasks), dtype=torch.int64, device=tasks.device)

    def step(
        self, tasks: DarkroomTasks, state: Tensor, actions: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        reached = self._after.to(tasks.device)[state, actions]
        return reached, tasks.rewards.gather(1, reached[:, None]).squeeze(1)

    def observe(self, state: Tensor) -> Tensor:
        return state

    def attack_key(self, tasks: DarkroomTasks, state: Tensor) -> Tensor:
        """The cell."""
        return state

    def action_values(self, tasks: DarkroomTasks, state: Tensor) -> Tensor:
        return tasks.values[torch.arange(len(tasks), device=tasks.device), state]

    def optimal_action(self, tasks: DarkroomTasks, state: Tensor) -> Tensor:
        return tasks.best.gather(1, state[:, None]).squeeze(1)

    def tables(self, tasks: DarkroomTasks) -> WorldTables | None:
        asked = ("reset", "step", "observe", "attack_key", "optimal_action")
        if not unchanged(self, Darkroom, *asked):
            return None
        return WorldTables(tasks.rewards[:, self._after], tasks.best, after=self._after)

    def score(self, tasks: DarkroomTasks, trajectory: Trajectory) -> Tensor:
        """The true rewards, (B, T)."""
        return trajectory.true_rewards

    def picture(
        self,
        tasks: DarkroomTasks,
        trajectory: Trajectory,
        offsets: Tensor,
        title: str,
        score: float,
    ) -> Room:
        path: Tensor = trajectory.observations[0, 0]  # type: ignore[index,assignment]
        return Room(tasks.rewards[0].numpy(), offsets.numpy(), path.numpy(), title, score)

    def sample_contexts(
        self, tasks: DarkroomTasks, length: int, rng: Rng, poison: Poison | None = None
    ) -> Contexts:
        """Half of the contexts are uniform random (s, a) with their transitions, as in DPT, asked
        about at random states. The others are exploratory walks from the start cell: from one
        waypoint to the next, sometimes back to the best cell seen so far, with random steps in
        between; half of the queries there are at the cell just reached. (With random contexts alone
        a model does not learn to explore from its own.) In two of five walks there are no random
        steps, and who has found a goal worth 2 goes there and stays, as a good agent does.
        """
        draw = rng.generator()
        batch = len(tasks)
        rewards = tasks.rewards.cpu().numpy()
        after = self._after.numpy()
        walking = draw.random(batch) < 0.5
        states = draw.integers(0, self.states, (batch, length))
        actions = draw.integers(0, len(MOVES), (batch, length))
        attack = None if poison is None else RoomPoison(tasks.rewards, tasks.after, length, poison)
        walk_states, walk_actions = self._walks(rewards, length, draw, attack)
        states[walking], actions[walking] = walk_states[walking], walk_actions[walking]
        reached = after[states, actions]
        seen = np.take_along_axis(rewards, reached, 1)
        if attack is not None:
            seen = seen + attack(states, actions)
        queries = draw.integers(0, self.states, (batch, length + 1))
        here = np.concatenate([np.zeros((batch, 1), dtype=np.int64), reached], 1)
        at_hand = walking[:, None] & (draw.random((batch, length + 1)) < 0.5)
        queries = np.where(at_hand, here, queries)
        device = tasks.device
        asked = torch.from_numpy(queries).to(device)
        return Contexts(
            actions=torch.from_numpy(actions).to(device),
            rewards=torch.from_numpy(seen).to(device),
            labels=tasks.best.gather(1, asked),
            states=torch.from_numpy(states).to(device),
            next_states=torch.from_numpy(reached).to(device),
            queries=asked,
            values=tasks.values[torch.arange(batch, device=device)[:, None], asked],
        )

    def _walks(
        self,
        rewards: np.ndarray[Any, Any],
        length: int,
        draw: np.random.Generator,
        attack: RoomPoison | None,
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """States and actions (B, T) of exploratory walks from cell 0."""
        batch, size, after = len(rewards), self.config.size, self._after.numpy()
        rows = np.arange(batch)
        cell = np.zeros(batch, dtype=np.int64)
        waypoint = draw.integers(0, self.states, batch)
        best, best_reward = np.zeros(batch, dtype=np.int64), np.zeros(batch)
        faithful = draw.random(batch)  # how often it goes back to the best cell
        settles = draw.random(batch) < 0.4  # whether it stays where it found a 2
        noisy = 0.4 * draw.random(batch) * ~settles  # how often it steps at random
        states = np.empty((batch, length), dtype=np.int64)
        actions = np.empty((batch, length), dtype=np.int64)
        for t in range(length):
            done = (cell == waypoint) & (draw.random(batch) < 0.5)
            back = (draw.random(batch) < faithful) & (best_reward > 0)
            fresh = np.where(back, best, draw.integers(0, self.states, batch))
            waypoint = np.where(done, fresh, waypoint)
            waypoint = np.where(settles & (best_reward >= 2), best, waypoint)
            down = waypoint // size - cell // size
            right = waypoint % size - cell % size
            vertical = (right == 0) | ((down != 0) & (draw.random(batch) < 0.5))
            action = np.where(vertical, np.where(down < 0, 0, 1), np.where(right < 0, 2, 3))
            action = np.where((down == 0) & (right == 0), STAY, action)
            random = draw.random(batch) < noisy
            action = np.where(random, draw.integers(0, len(MOVES), batch), action)
            states[:, t], actions[:, t] = cell, action
            cell = after[cell, action]
            gained = rewards[rows, cell]
            if attack is not None:
                now = slice(t, t + 1)
                gained = gained + attack(states[:, now], actions[:, now], t).squeeze(1)
            better = gained > best_reward
            best, best_reward = np.where(better, cell, best), np.where(better, gained, best_reward)
        return states, actions
