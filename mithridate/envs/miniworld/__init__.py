"""Miniworld (paper, MDP setting; DPT's variant of Chevalier-Boisvert et al., 2023): four boxes in a
room, seen through a camera.

Task: a layout of the room, 6 × 6, with a blue, a red, a green and a yellow box, each in its corner
but not at the same place in every layout; and which of them is the goal.
Actions: turn left, turn right (15°), forward (0.7), stay. Walls and the goal block a step forward;
the other boxes are walked through.
Observation: an image, 25 × 25, and the heading, a vector of two numbers; not the place.
Reward: 1 after every step at whose end the goal is nearer than 2.0157 and within 30° of the
heading, else 0. The episode starts near the middle of the room, looking east, and has a fixed
length; the score is the sum of the true rewards.
Oracle: turn to the goal until it is faced, go forward until it is near, stay.

States, observations and what contexts hold are *poses*, one int64 each (`room.py`); the observation
is a view (`observations.Views`). So dynamics, rewards, attacks and the oracle need neither pictures
nor the Miniworld package, and trajectories and contexts are small. How a model gets frames:

- `spec.observation.look(numbers)` gives {"image": (N, 25, 25, 3) uint8, "heading": (N, 2) float32}
  for numbers (N,). It draws what it has not got yet (`frames.py`): by the native ray-caster
  (`rays.py`), or, without kernels, by the package (`render.py`).
- `contexts.banked()` gives contexts with a bank of the numbers that are in them, each once, and
  places in it: a batch's distinct frames are fetched, and embedded, once. `ObservationEmbedding`
  takes numbers, or what `look` gives.
- A frame depends on layout and pose only, never on the goal. With few `layouts` in the
  configuration, all frames of the contexts for pretraining are made before a training's first step
  and kept on disk (`env.prepare()`).

A pose could be taken apart to learn the place; whoever does that sees more than the task gives.

Keys of attacks: which box the agent is at (the nearest one, unless another is near and faced),
whether that box is near, and whether it is faced: 4 × 2 × 2 = 16 keys. With the paper's budget of 5
a table of −1, 0 and +1 over 16 keys and 4 actions can have norm 8, so the budget binds; with "near
and facing which box, or none", five keys, it could not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from mithridate.config import EnvConfig, Positive
from mithridate.envs.darkroom_poison import RoomPoison
from mithridate.envs.miniworld import room
from mithridate.envs.miniworld.frames import SEEN, shared
from mithridate.envs.miniworld.picture import BoxRoom, drawn
from mithridate.envs.miniworld.walks import Library, contexts
from mithridate.envs.presets import SMOKE_PRETRAIN, SMOKE_TRAIN
from mithridate.observations import Views
from mithridate.registry import ENVS
from mithridate.rng import Rng
from mithridate.types import Contexts, EnvSpec, Metric, Poison, Tasks, Trajectory

BOXES = len(room.COLOURS)
KEYS = 4 * BOXES
PAPER_BUDGET = 5.0

BANKED = 2**20
"""Steps of walks whose frames are made beforehand, at most: 2 GB, if no pose recurs."""

SMALL: dict[str, Any] = {"env": {"horizon": 40, "layouts": 8, "walks": 2}, "threads": 1}
BANK: dict[str, Any] = {
    "env": {"layouts": 300},  # 178,608 frames: 335 MB in memory and on disk
    "batches": {"short_batch": 128, "short_length": 64},
}


class MiniworldConfig(EnvConfig):
    name: Literal["miniworld"] = "miniworld"
    horizon: Positive = 250
    """Steps per episode (H)."""
    layouts: Positive = room.LAYOUTS
    """Layouts of the room that tasks are drawn from, the first ones; few, so that their frames can
    be made beforehand."""
    walks: Positive = 4
    """Walks through each layout that contexts for pretraining are made of."""

    @model_validator(mode="after")
    def _there_are_so_many(self) -> MiniworldConfig:
        if self.layouts > room.LAYOUTS:
            raise ValueError(f"layouts must be at most {room.LAYOUTS}")
        if self.walks > 1000:
            raise ValueError("walks must be at most 1000")
        return self


@dataclass(frozen=True)
class MiniworldTasks(Tasks):
    layouts: Tensor
    """(B,) int64: the number of the layout."""
    goals: Tensor
    """(B,) int64: which box is the goal, as in room.COLOURS."""
    boxes: Tensor
    """(B, 4, 2) float64: where the boxes are."""
    start: Tensor
    """(B,) int64: the pose at which episodes begin."""

    @cached_property
    def goal(self) -> Tensor:
        """(B, 2): where the goal is."""
        return self.boxes[torch.arange(len(self), device=self.device), self.goals]

    @cached_property
    def worth(self) -> Tensor:
        """(B, K): 2 for the key at which the goal is near and faced, 1 for those of the other
        boxes, else 0."""
        key = torch.arange(KEYS, device=self.device)
        at = key % 4 == AT_BOX
        return at.long() * (1 + (key // 4 == self.goals[:, None]).long())

    @property
    def after(self) -> Tensor:
        """(K, A): the key that an action belongs to: the one it is taken at."""
        return torch.arange(KEYS, device=self.device)[:, None].expand(-1, room.ACTIONS)

    @cached_property
    def kinds(self) -> Tensor:
        """(B, K, A): entries of a table that attackers may see as alike have the same number. It
        says what being there is worth, and whether the action is no turn."""
        straight = torch.arange(room.ACTIONS, device=self.device) >= room.AHEAD
        return 2 * self.worth[..., None] + straight


AT_BOX = 3
"""Of a box's four keys, that of being near and facing it; the bits are near and faced."""


def keys(pose: Tensor, boxes: Tensor) -> Tensor:
    """(...): the keys of poses (...) among boxes (..., 4, 2)."""
    far = room.distances(pose[..., None], boxes)
    near, faced = far < room.NEAR, room.facing(pose[..., None], boxes)
    rank = far - 2 * room.SIZE * (near & faced)  # these come first, the nearest of them
    box = rank.argmin(-1, keepdim=True)
    bits = 2 * near.gather(-1, box).long() + faced.gather(-1, box).long()
    return (4 * box + bits).squeeze(-1)


@ENVS.register("miniworld")
class Miniworld:
    Config = MiniworldConfig

    attacks = ("uniform", "hide_goal", "raise_decoy", "swap_boxes", "all_decoys")
    learned_attack = "tabular"
    budget = PAPER_BUDGET
    peer = None

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "pretrain": {"smoke": {**SMOKE_PRETRAIN, **SMALL}, "laptop": {**BANK, "steps": 4000}},
        "distill": {
            "smoke": {**SMOKE_PRETRAIN, **SMALL, "tasks": 32, "refresh_every": 10, "pool": 2},
        },
        "train": {
            "smoke": {**SMOKE_TRAIN, **SMALL},
            "laptop": {
                **BANK,
                "temperature": 0.85,
                "acts_at": 1.0,
                "rounds": 50,
                "iterations": 30,
                "renew": 0.02,
                "synthetic": {"rounds": 40},
            },
            "paper": {"rounds": 100},
        },
        "attack": {
            "smoke": {**SMALL, "tasks": 20, "rounds": 3},
            "laptop": {"rounds": 60},
            "paper": {"rounds": 100},
        },
        "evaluate": {
            "smoke": {**SMALL, "tasks": 20, "rounds": 3},
            "laptop": {"rounds": 60},
            "paper": {"replications": 10, "rounds": 100},
        },
    }

    def __init__(self, config: MiniworldConfig | None = None) -> None:
        self.config = config or MiniworldConfig()
        self.frames = shared()
        self.spec = EnvSpec(
            name="miniworld",
            n_actions=room.ACTIONS,
            horizon=self.config.horizon,
            metric=Metric("episode reward", "higher"),
            observation=Views(SEEN, self.frames.look),
            n_attack_keys=KEYS,
        )
        self._walks = Library(self.config.layouts, self.config.walks, self.config.horizon)

    def sample_tasks(self, n: int, rng: Rng, first: int = 0) -> MiniworldTasks:
        ids = torch.arange(first, first + n)
        drawn = rng.child("layouts").streams(ids).uniform(2).double()
        layouts = (drawn[:, 0] * self.config.layouts).long()
        boxes, start = room.layout(layouts)
        return MiniworldTasks(ids, layouts, (drawn[:, 1] * BOXES).long(), boxes, start)

    def reset(self, tasks: MiniworldTasks) -> Tensor:
        return tasks.start

    def step(
        self, tasks: MiniworldTasks, state: Tensor, actions: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        reached = room.move(state, actions, tasks.goal[:, None])
        return reached, room.rewards(reached, tasks.goal)

    def observe(self, state: Tensor) -> Tensor:
        return state

    def attack_key(self, tasks: MiniworldTasks, state: Tensor) -> Tensor:
        return keys(state, tasks.boxes)

    def action_values(self, tasks: MiniworldTasks, state: Tensor) -> Tensor:
        """Minus the steps to the goal after each action; see room.values."""
        return room.values(state, tasks.goal)

    def optimal_action(self, tasks: MiniworldTasks, state: Tensor) -> Tensor:
        return room.oracle(state, tasks.goal)

    def score(self, tasks: MiniworldTasks, trajectory: Trajectory) -> Tensor:
        """The true rewards, (B, T)."""
        return trajectory.true_rewards

    def picture(
        self,
        tasks: MiniworldTasks,
        trajectory: Trajectory,
        offsets: Tensor,
        title: str,
        score: float,
    ) -> BoxRoom:
        boxes, goal = tasks.boxes[0], int(tasks.goals[0])
        return drawn(boxes, goal, trajectory, self.frames.look, offsets, title, score)

    def sample_contexts(
        self, tasks: MiniworldTasks, length: int, rng: Rng, poison: Poison | None = None
    ) -> Contexts:
        """Walks through the tasks' layouts, or their transitions in any order; see walks.py."""
        seen, done = self._walks.of(tasks.layouts, length)
        where = keys(seen, tasks.boxes[:, None, None])
        attack = None
        if poison is not None:
            attack = RoomPoison(tasks.worth.float(), tasks.after, length, poison)
        return contexts(seen, done, tasks.goal, where, rng.generator(), attack)

    def bank_poses(self) -> Tensor:
        """(N,): all poses that contexts for pretraining are made of."""
        return self._walks.poses()

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Have all frames of contexts for pretraining at hand, if layouts are few; otherwise they
        are made when they are needed."""
        if self._walks.steps <= BANKED:
            self.frames.prepare(self.bank_poses(), progress)
