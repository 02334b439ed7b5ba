"""Wrappers that put an attacker between an environment and an agent. With probability eps the
reward that is seen is the attacker's.

Around our own environments every attacker works: named, learned (it brings the tasks that it was
trained for), one that watches the episode, a user's. Around anybody's, with discrete actions, those
that need not know the task do: `uniform`, a table of offsets, and attacks that watch and are told
their target (`ace(target=0)`). What attackers tell situations apart by is there the observation,
if it is `Discrete`, or what the user's `key` makes of it.

`info` has "true_reward" and "poisoned", for whoever measures. With our environments and seed 0 an
episode is what `rollout` under the same attacker gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from mithridate.errors import UserError
from mithridate.gym.anybodys import AnybodysRewards
from mithridate.gym.attack import PoisonConfig
from mithridate.gym.episodes import Array
from mithridate.gym.ours import OurRewards
from mithridate.gym.tasks import TaskEnv, TaskVectorEnv
from mithridate.settings import parse

OURS = "mithridate.gym.tasks:TaskEnv"
Key = Callable[[Any], int]


class PoisonReward(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Around one environment. `attacker`: a name with its parameters, "swap" or "ace(target=0)"; a
    file or run of trained attackers; offsets, one for each action or for each key and action; or an
    object. `eps`, `budget`, `seed`, `renew`: see PoisonConfig. `key` and `keys`, for others'
    environments: which of how many situations an observation is; keys=1: there is but one."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        attacker: Any,
        eps: float = 0.4,
        budget: float | None = None,
        seed: int = 0,
        *,
        key: Key | None = None,
        keys: int | None = None,
        renew: bool | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(
            self, attacker=attacker, eps=eps, budget=budget, seed=seed, key=key, keys=keys,
            renew=renew,
        )  # fmt: skip
        if not isinstance(env, gymnasium.Env):
            raise UserError("PoisonReward takes one environment; for vectors: PoisonRewardVector")
        _resets_by_itself(env)
        gymnasium.Wrapper.__init__(self, env)
        config = parse(
            PoisonConfig, {"eps": eps, "budget": budget, "seed": seed, "renew": renew},
            "PoisonReward",
        )  # fmt: skip
        self.poison = _rewards_of(env, env.action_space, env.observation_space, 1)(
            attacker, config, key, keys
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        self.poison.begin([seen], seed, [0])
        return seen, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.poison.before()
        seen, reward, terminated, truncated, info = self.env.step(action)
        ended = np.array([terminated or truncated])
        shown, hit = self.poison.after([action], np.array([reward]), [seen], ended)
        poisoned = bool(hit[0]) or info.get("poisoned", False)
        info = {"true_reward": reward, **info, "poisoned": poisoned}
        return seen, float(shown[0]) if hit[0] else reward, terminated, truncated, info


class PoisonRewardVector(VectorWrapper, RecordConstructorArgs):  # type: ignore[type-arg]
    """The same around a vector environment. The step that only resets a row (NEXT_STEP) is neither
    poisoned nor shown to the attacker nor charged. In others' environments, all rows have the same
    task, and the same attack if it is fixed."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        attacker: Any,
        eps: float = 0.4,
        budget: float | None = None,
        seed: int = 0,
        *,
        key: Key | None = None,
        keys: int | None = None,
        renew: bool | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(
            self, attacker=attacker, eps=eps, budget=budget, seed=seed, key=key, keys=keys,
            renew=renew,
        )  # fmt: skip
        if not isinstance(env, VectorEnv):
            raise UserError("PoisonRewardVector takes a vector environment; for one: PoisonReward")
        VectorWrapper.__init__(self, env)
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise UserError(f"{env}: metadata['autoreset_mode'] must say how it resets")
        self._mode = mode
        config = parse(
            PoisonConfig, {"eps": eps, "budget": budget, "seed": seed, "renew": renew},
            "PoisonRewardVector",
        )  # fmt: skip
        self.poison = _rewards_of(
            env, env.single_action_space, env.single_observation_space, env.num_envs
        )(attacker, config, key, keys)
        self._ended = np.zeros(env.num_envs, dtype=bool)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")
        rows = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        seen, info = self.env.reset(seed=seed, options=options)
        self.poison.begin(self._each(seen), seed, rows.tolist())
        self._ended[rows] = False
        return seen, info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        self.poison.before()
        seen, rewards, terminated, truncated, info = self.env.step(actions)
        ended = np.logical_or(terminated, truncated)
        each = self._each(seen)
        resets = self._ended if self._mode == AutoresetMode.NEXT_STEP else np.zeros_like(ended)
        live = ~resets
        shown, hit = self.poison.after(
            list(np.asarray(actions)), np.asarray(rewards, dtype=np.float64), each, ended, live
        )
        begins = ended if self._mode == AutoresetMode.SAME_STEP else resets
        if begins.any():
            self.poison.begin(each, None, np.flatnonzero(begins).tolist())
        self._ended = ended.copy()
        true = {"true_reward": np.array(rewards), "_true_reward": live}
        poisoned = hit | info.get("poisoned", False)
        info = {**true, **info, "poisoned": poisoned, "_poisoned": live.copy()}
        return seen, np.where(hit, shown, rewards), terminated, truncated, info

    def _each(self, seen: Any) -> list[Any]:
        return list(iterate(self.env.observation_space, seen))


def _resets_by_itself(env: gymnasium.Env[Any, Any]) -> None:
    """An error, as nobody could tell which of its steps are none."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.Autoreset):
            raise UserError("PoisonReward must be inside of Autoreset")
        env = env.env


def _rewards_of(
    env: Any, actions: spaces.Space[Any], observations: spaces.Space[Any], batch: int
) -> Callable[..., OurRewards | AnybodysRewards]:
    """Who poisons the rewards of this environment, once it is told how."""
    if not isinstance(actions, spaces.Discrete):
        raise UserError(f"PoisonReward needs discrete actions, not {actions}")
    base = env.unwrapped
    if isinstance(base, TaskEnv | TaskVectorEnv):
        if actions != (
            base.action_space if isinstance(base, TaskEnv) else base.single_action_space
        ):
            raise UserError("PoisonReward must be inside of wrappers that change the actions")
        return lambda *told: OurRewards(base.episodes, *told)
    spec = env.spec
    if spec is not None and spec.entry_point == OURS:
        raise UserError(
            "PoisonRewardVector sees nothing of the tasks in this vector: make it without "
            "vectorization_mode, or put PoisonReward around each of its environments"
        )
    horizon = None if spec is None else spec.max_episode_steps
    name = type(base).__name__ if spec is None else spec.id
    return lambda *told: AnybodysRewards(name, actions, observations, horizon, batch, *told)
