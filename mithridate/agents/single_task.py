"""Between batches and single tasks: users' plain agents in our loop, our agents in users' loops.

This is the door for what others' code hands us. What is no action, no reward or no observation is
refused there, before an agent has seen it."""

from __future__ import annotations

import copy
import inspect
import math
import numbers
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mithridate.capabilities import is_episodic
from mithridate.config import LARGE
from mithridate.errors import UserError, shown
from mithridate.observations import Array, Views, looked_at, parts
from mithridate.rng import Rng, TaskStreams
from mithridate.types import Agent, EnvSpec, Observation
from mithridate.users_code import blaming, described, last_line


def as_agent(thing: Any) -> Agent:
    """`thing` as a batched agent: itself, an instance of it if it is a class, or an adapter
    around it if it is a plain agent for one task, whose `reset` takes nothing or the number of
    actions."""
    if inspect.isclass(thing):
        return as_agent(_call(thing))
    name = type(thing).__name__
    with blaming(thing):
        for method in ("reset", "act", "observe"):
            if not callable(getattr(thing, method, None)):
                raise UserError(f"agent {name} has no method '{method}'")
    needed = _needed(thing.reset, name)
    if needed == 3:
        agent: Agent = thing
        return agent
    if needed > 1:
        raise UserError(
            f"agent {name}: reset() must take nothing, the number of actions, or "
            "(spec, batch, rng) for all tasks at once"
        )
    return SingleTaskAgents(lambda: copy.deepcopy(thing), thing, counts=needed == 1)


def _needed(reset: Callable[..., Any], name: str) -> int:
    """How many arguments `reset` must have."""
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):
        raise UserError(f"agent {name}: nothing says what its reset() takes") from None
    return sum(
        p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters
    )


class SingleTaskAgents:
    """B copies of a plain agent with `reset()` or `reset(n_actions)`, `act(obs)` and `observe(obs,
    action, reward, next_obs)`, driven as one batch. Slow, but it takes anybody's code as it is."""

    def __init__(self, make: Callable[[], Any], wraps: Any, counts: bool = False) -> None:
        self._make = make
        self._counts = counts
        self.wraps = wraps
        """Whose code it is."""

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self._device = rng.device
        self._n_actions, self._observation = spec.n_actions, spec.observation
        self._agents = [self._make() for _ in range(batch)]
        for agent in self._agents:
            agent.reset(*[spec.n_actions] * self._counts)

    def act(self, obs: Observation) -> Tensor:
        obs = looked_at(obs, self._observation)
        name = f"agent {type(self.wraps).__name__}: act() must return"
        actions = [
            checked_action(agent.act(_row(obs, i)), self._n_actions, name)
            for i, agent in enumerate(self._agents)
        ]
        return torch.tensor(actions, dtype=torch.int64, device=self._device)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        obs, next_obs = (looked_at(o, self._observation) for o in (obs, next_obs))
        pairs = zip(self._agents, actions.tolist(), rewards.tolist(), strict=True)
        for i, (agent, action, reward) in enumerate(pairs):
            agent.observe(_row(obs, i), action, reward, _row(next_obs, i))

    def begin_episode(self) -> None:
        for agent in self._agents:
            if is_episodic(agent):
                agent.begin_episode()

    def end_episode(self) -> None:
        for agent in self._agents:
            if is_episodic(agent):
                agent.end_episode()


class Solo:
    """A batched agent in a loop of your own, one task at a time:

    solo = Solo(load("dpt-bandit-s0"), env.spec)
    action = solo.act()
    solo.observe(action, reward)

    What makes no sense (a reward that is no number, an action that does not exist, an observation
    of another environment) is a UserError, and the agent is as it was before.
    """

    def __init__(self, agent: Agent, spec: EnvSpec, seed: int = 0) -> None:
        self._agent = agent
        self._spec = spec
        self._rng = Rng(seed).child("solo")
        self._tasks = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything; a new task begins."""
        self._agent.reset(self._spec, 1, self._rng.streams([self._tasks]))
        self._tasks += 1

    def act(self, obs: Any = None) -> int:
        return int(self._agent.act(_batch_of_one(obs, self._spec, "obs"))[0])

    def observe(self, action: int, reward: float, obs: Any = None, next_obs: Any = None) -> None:
        chosen = checked_action(action, self._spec.n_actions, "action: it must be")
        paid = checked_reward(reward)
        before = _batch_of_one(obs, self._spec, "obs")
        after = _batch_of_one(next_obs, self._spec, "next_obs")
        self._agent.observe(before, torch.tensor([chosen]), torch.tensor([paid]), after)


def checked_action(value: Any, n_actions: int, what: str) -> int:
    """`value` as the number of an action, or a UserError that begins with `what`."""
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            if isinstance(value, numbers.Real) and float(value).is_integer():
                number = int(float(value))
    if number is None or isinstance(value, str) or not 0 <= number < n_actions:
        raise UserError(f"{what} a whole number in 0…{n_actions - 1}, not {shown(value, 40)}")
    return number


def checked_reward(value: Any) -> float:
    """`value` as a reward, or a UserError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str | bytes) or not abs(number) <= LARGE:
        raise UserError(
            f"reward: it must be a number within ±{LARGE:g}, not {shown(value, 40)}; "
            "scale your rewards if they are larger"
        )
    return number


def _call(cls: type) -> Any:
    try:
        return cls()
    except UserError:
        raise
    except TypeError as error:
        raise UserError(
            f"agent class {cls.__name__} cannot be made without arguments: {shown(error)}"
        ) from error
    except (Exception, SystemExit) as error:
        raise UserError(
            f"agent class {cls.__name__} cannot be made: {described(error)} ({last_line(error)})"
        ) from error


def _row(obs: Observation, i: int) -> Any:
    if obs is None:
        return None
    if isinstance(obs, dict):
        return {name: value[i].numpy() for name, value in obs.items()}
    return obs[i].numpy()


def _batch_of_one(obs: Any, spec: EnvSpec, name: str) -> Observation:
    """An observation as a batch, or a UserError if the environment has no such observation."""
    if spec.observation is None:
        if obs is not None:
            raise UserError(f"{name}: {spec.name} has nothing to observe; leave it out")
        return None
    if spec.n_states is not None:
        return torch.tensor([checked_action(obs, spec.n_states, f"{name}: it must be")])
    if isinstance(spec.observation, Mapping | Views):
        known = parts(spec.observation)
        if not isinstance(obs, Mapping) or obs.keys() != known.keys():
            raise UserError(f"{name}: it must have the keys {', '.join(known)}")
        return {key: _array(obs[key], part, f"{name}['{key}']") for key, part in known.items()}
    assert isinstance(spec.observation, Array)
    return _array(obs, spec.observation, name)


def _array(value: Any, part: Array, name: str) -> Tensor:
    shape = part.shape
    try:
        tensor = torch.as_tensor(value).clone()
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{name}: it must be an array, not {type(value).__name__}") from None
    if tuple(tensor.shape) != tuple(shape):
        raise UserError(f"{name}: its shape must be {tuple(shape)}, not {tuple(tensor.shape)}")
    if not torch.isfinite(tensor).all():
        raise UserError(f"{name}: it has entries that are not finite")
    return tensor[None].to(part.dtype)
