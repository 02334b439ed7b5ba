"""Our environments as Gymnasium's, one task at a time or many in one batched step.

- Actions: `Discrete`.
- Observations: where there is nothing to see (bandits), `Discrete(1)`; numbered states, `Discrete`;
  images and vectors, `Box`; several by name, `Dict`.
- Reward: the true one, unless `PoisonReward` is around it.
- End: after `horizon` steps, as a truncation; nothing terminates.
- A reset draws a task. `resample=False` keeps the first until a reset with a seed; `task=7` has
  that one only. A reset's options go before: {"task": 7}, {"same_task": True}.
- `info` is for whoever measures, never for the agent. After a reset: "task" and
  "episode_number", which select task and luck. After a step: "true_reward"; "score", the metric's
  share (regret in bandits); "optimal_action" where the action was taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mithridate.errors import UserError, shown
from mithridate.gym.episodes import Array, Episodes
from mithridate.observations import Array as Seen
from mithridate.observations import ObservationSpec, States, looked_at, parts


class TaskEnv(gymnasium.Env[Any, Any]):
    """One task at a time of a registered environment; `settings` are the fields of its
    configuration."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        environment: str = "bandit",
        *,
        task: int | None = None,
        resample: bool = True,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        _draws_nothing(render_mode)
        self.episodes = Episodes(environment, 1, task, resample, settings)
        spec = self.episodes.env.spec
        self.action_space = spaces.Discrete(spec.n_actions)
        self.observation_space = space_of(spec.observation)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        said = self.episodes.begin([self.np_random], options, seeded=seed is not None)
        return self._observed(), _first(said)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        said = self.episodes.step([action])
        reward = float(said["true_reward"][0])
        return self._observed(), reward, False, self.episodes.over, _first(said)

    def _observed(self) -> Any:
        batch = observed(self.episodes)
        if isinstance(batch, dict):
            return {name: value[0] for name, value in batch.items()}
        return batch[0]


class TaskVectorEnv(VectorEnv[Any, Any, Any]):
    """Many tasks at a time, each with luck of its own. With seed s, row i is what the single
    environment with seed s + i is. All episodes end together; the next step begins new ones,
    whatever the actions, with reward 0."""

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        environment: str = "bandit",
        num_envs: int = 1,
        *,
        task: int | Sequence[int] | None = None,
        resample: bool = True,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        _draws_nothing(render_mode)
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise UserError(f"num_envs: it must be a positive number, not {shown(num_envs, 40)}")
        self.num_envs = num_envs
        self.episodes = Episodes(environment, num_envs, task, resample, settings)
        spec = self.episodes.env.spec
        self.single_action_space = spaces.Discrete(spec.n_actions)
        self.single_observation_space = space_of(spec.observation)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._draws: list[np.random.Generator] = []

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
            if len(seeds) != self.num_envs:
                raise UserError(f"seed: it must be one number, or {self.num_envs}")
            super().reset(seed=int(seeds[0]))
            self._draws = [seeding.np_random(int(s))[0] for s in seeds]
        elif not self._draws:
            self._draws = self.np_random.spawn(self.num_envs)
        said = self.episodes.begin(self._draws, options, seeded=seed is not None)
        return observed(self.episodes), _masked(said)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        if self.episodes.began and self.episodes.over:
            seen, info = self.reset()
            rewards = np.zeros(self.num_envs)
        else:
            said = self.episodes.step(np.asarray(actions).reshape(-1))  # type: ignore[arg-type]
            rewards, info, seen = said["true_reward"].copy(), _masked(said), observed(self.episodes)
        ended = np.full(self.num_envs, self.episodes.over)
        return seen, rewards, np.zeros_like(ended), ended, info


def space_of(spec: ObservationSpec) -> spaces.Space[Any]:
    """What an environment's observations are, as Gymnasium says it."""
    if spec is None:
        return spaces.Discrete(1)
    if isinstance(spec, States):
        return spaces.Discrete(spec.count)
    boxes: dict[str, spaces.Space[Any]] = {name: _box(part) for name, part in parts(spec).items()}
    return boxes[""] if isinstance(spec, Seen) else spaces.Dict(boxes)


def _box(part: Seen) -> spaces.Box:
    if part.dtype == torch.uint8:
        return spaces.Box(0, 255, part.shape, np.uint8)
    kind = torch.empty(0, dtype=part.dtype).numpy().dtype
    return spaces.Box(-np.inf, np.inf, part.shape, kind.type)


def observed(episodes: Episodes) -> Any:
    """(B, ...): what there is to see, in memory of its own; zeros if there is nothing."""
    spec = episodes.env.spec.observation
    seen = looked_at(episodes.observation, spec)
    if seen is None:
        return np.zeros(episodes.batch, dtype=np.int64)
    if isinstance(seen, dict):
        return {name: value.numpy().copy() for name, value in seen.items()}
    return seen.numpy().copy()


def _first(said: Mapping[str, Array]) -> dict[str, Any]:
    return {name: value[0].item() for name, value in said.items()}


def _masked(said: Mapping[str, Array]) -> dict[str, Any]:
    """Gymnasium has, for each name in a vector's info, for which rows it is meant: all."""
    every = {f"_{name}": np.ones(len(value), dtype=bool) for name, value in said.items()}
    return {**said, **every}


def _draws_nothing(render_mode: str | None) -> None:
    if render_mode is not None:
        raise UserError("render_mode: there is none here; `mithridate picture` draws episodes")
