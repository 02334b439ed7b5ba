"""Between batches and single tasks: users' plain agents in our loop, our agents in users' loops."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mithridate.errors import UserError
from mithridate.rng import Rng, TaskStreams
from mithridate.types import Agent, EnvSpec, Observation


def as_agent(thing: Any) -> Agent:
    """`thing` as a batched agent: itself, an instance of it if it is a class, or an adapter
    around it if its `reset` takes no arguments (a plain agent for one task)."""
    if inspect.isclass(thing):
        return as_agent(_call(thing))
    for method in ("reset", "act", "observe"):
        if not callable(getattr(thing, method, None)):
            raise UserError(f"agent {type(thing).__name__} has no method '{method}'")
    parameters = inspect.signature(thing.reset).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if required:
        agent: Agent = thing
        return agent
    return SingleTaskAgents(lambda: copy.deepcopy(thing), type(thing).__name__)


class SingleTaskAgents:
    """B copies of a plain agent with `reset()`, `act(obs)` and `observe(obs, action, reward,
    next_obs)`, driven as one batch. Slow, but it takes anybody's code as it is."""

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._make = make
        self._name = name

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self._device = rng.device
        self._agents = [self._make() for _ in range(batch)]
        for agent in self._agents:
            agent.reset()

    def act(self, obs: Observation) -> Tensor:
        actions = [agent.act(_row(obs, i)) for i, agent in enumerate(self._agents)]
        try:
            return torch.tensor([int(a) for a in actions], device=self._device)
        except (TypeError, ValueError):
            raise UserError(f"agent {self._name}: act() must return a number") from None

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        pairs = zip(self._agents, actions.tolist(), rewards.tolist(), strict=True)
        for i, (agent, action, reward) in enumerate(pairs):
            agent.observe(_row(obs, i), action, reward, _row(next_obs, i))

    def begin_episode(self) -> None:
        for agent in self._agents:
            getattr(agent, "begin_episode", lambda: None)()

    def end_episode(self) -> None:
        for agent in self._agents:
            getattr(agent, "end_episode", lambda: None)()


class Solo:
    """A batched agent in a loop of your own, one task at a time:

    solo = Solo(load("dpt-bandit-s0"), env.spec)
    action = solo.act()
    solo.observe(action, reward)
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
        return int(self._agent.act(_batch_of_one(obs))[0])

    def observe(self, action: int, reward: float, obs: Any = None, next_obs: Any = None) -> None:
        self._agent.observe(
            _batch_of_one(obs),
            torch.tensor([action]),
            torch.tensor([reward], dtype=torch.float32),
            _batch_of_one(next_obs),
        )


def _call(cls: type) -> Any:
    try:
        return cls()
    except TypeError as error:
        raise UserError(
            f"agent class {cls.__name__} cannot be made without arguments: {error}"
        ) from None


def _row(obs: Observation, i: int) -> Any:
    if obs is None:
        return None
    if isinstance(obs, dict):
        return {name: value[i].numpy() for name, value in obs.items()}
    return obs[i].numpy()


def _batch_of_one(obs: Any) -> Observation:
    if obs is None:
        return None
    if isinstance(obs, dict):
        return {name: torch.as_tensor(value)[None] for name, value in obs.items()}
    return torch.as_tensor(obs)[None]
