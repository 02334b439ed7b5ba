"""Luck of users' agents: who draws from Python's, NumPy's or PyTorch's own generators meets the
same numbers in every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate.rng import TaskStreams
from mithridate.types import Agent, EnvSpec, Observation
from mithridate.users_code import OURS


class Around:
    """An agent around another: it does what that one does, unless a subclass says otherwise."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.wraps = getattr(agent, "wraps", agent)
        """Whose code it is."""

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self._agent.reset(spec, batch, rng)

    def act(self, obs: Observation) -> Tensor:
        return self._agent.act(obs)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        self._agent.observe(obs, actions, rewards, next_obs)

    def __getattr__(self, name: str) -> Any:  # what it may do besides: capabilities.py
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._agent, name)


class Seeded(Around):
    """Seeds the global generators by the streams of each rollout."""

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        seed = rng.integer()
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        super().reset(spec, batch, rng)


def seeded(agent: Agent) -> Agent:
    """The agent, seeded if it is a user's; ours draw from their streams alone."""
    return Seeded(agent) if is_theirs(agent) else agent


def is_theirs(agent: Agent) -> bool:
    """Whether its code is a user's."""
    return type(getattr(agent, "wraps", agent)).__module__.partition(".")[0] != OURS


@contextmanager
def untouched() -> Iterator[None]:
    """The global generators are afterwards as they were before."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
