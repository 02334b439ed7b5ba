"""Agents written for other bandit libraries, taken as they are: recognised by their methods, so that
the libraries themselves are not needed.

| library | methods | what is done with them |
|---|---|---|
| MABWiser | `fit`, `partial_fit`, `predict` | each arm is played once, `fit` learns from these pulls; then `predict()` and `partial_fit([arm], [reward])` |
| Open Bandit Pipeline | `select_action`, `update_params` | `select_action()` returns an array with one action; `update_params(action, reward)` |
| SMPyBandits | `startGame`, `choice`, `getReward` | `startGame()` at the beginning; `choice()`; `getReward(arm, reward)` |

Each task has an object of its own: what a class or a function without arguments returns, or a deep
copy. Contextual policies are refused: arms here have no contexts.
"""  # noqa: E501

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from mithridate.agents.any_bandit import RobustBandit
from mithridate.agents.many_bandits import RobustBandits
from mithridate.agents.single_task import SingleTaskAgents, as_agent
from mithridate.errors import UserError, shown
from mithridate.types import Agent
from mithridate.users_code import blaming, described, last_line

NO_CONTEXTS = "it needs contexts, and arms here have none: take a context-free policy"


class _Foreign:
    """A plain agent for one task around somebody's policy."""

    methods: tuple[str, ...]
    """That its kind is recognised by."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.name = type(policy).__name__

    def reset(self, n_actions: int) -> None:
        self.n_actions = n_actions

    def act(self, obs: Any) -> Any:
        raise NotImplementedError

    def observe(self, obs: Any, action: int, reward: float, next_obs: Any) -> None:
        raise NotImplementedError

    def arms(self, said: Any) -> None:
        """Refuse a policy that was made for another number of arms."""
        if isinstance(said, int) and said != self.n_actions:
            raise UserError(
                f"agent {self.name} was made for {said} arms, here are {self.n_actions}"
            )


class _MABWiser(_Foreign):
    methods = ("fit", "partial_fit", "predict")

    def reset(self, n_actions: int) -> None:
        super().reset(n_actions)
        if getattr(self.policy, "is_contextual", False):
            raise UserError(f"agent {self.name}: {NO_CONTEXTS}")
        self._labels = list(getattr(self.policy, "arms", range(n_actions)))
        self.arms(len(self._labels))
        self._first: list[float] = []

    def act(self, obs: Any) -> Any:
        if len(self._first) < self.n_actions:
            return len(self._first)
        chosen = self.policy.predict()
        try:
            return self._labels.index(chosen)
        except ValueError:
            raise UserError(
                f"agent {self.name}: predict() returned {shown(chosen, 40)}, which is none of its "
                "arms"
            ) from None

    def observe(self, obs: Any, action: int, reward: float, next_obs: Any) -> None:
        if len(self._first) == self.n_actions:
            self.policy.partial_fit([self._labels[action]], [reward])
            return
        self._first.append(reward)
        if len(self._first) == self.n_actions:
            self.policy.fit(list(self._labels), list(self._first))


class _OpenBandit(_Foreign):
    methods = ("select_action", "update_params")

    def reset(self, n_actions: int) -> None:
        super().reset(n_actions)
        if _needs(self.policy.select_action):
            raise UserError(f"agent {self.name}: {NO_CONTEXTS}")
        self.arms(getattr(self.policy, "n_actions", None))

    def act(self, obs: Any) -> Any:
        chosen = self.policy.select_action()
        size = getattr(chosen, "size", None)
        if size is None:
            return chosen
        if size != 1:
            raise UserError(
                f"agent {self.name}: select_action() returned {size} actions: make it with "
                "len_list=1"
            )
        return chosen.item()

    def observe(self, obs: Any, action: int, reward: float, next_obs: Any) -> None:
        self.policy.update_params(action, reward)


class _SMPyBandits(_Foreign):
    methods = ("startGame", "choice", "getReward")

    def reset(self, n_actions: int) -> None:
        super().reset(n_actions)
        self.arms(getattr(self.policy, "nbArms", None))
        self.policy.startGame()

    def act(self, obs: Any) -> Any:
        return self.policy.choice()

    def observe(self, obs: Any, action: int, reward: float, next_obs: Any) -> None:
        self.policy.getReward(action, reward)


CONVENTIONS: tuple[type[_Foreign], ...] = (_MABWiser, _OpenBandit, _SMPyBandits)
OURS = ("reset", "act", "observe")


def any_agent(thing: Any) -> Agent:
    """`thing` as a batched agent, whatever it was written for: see `as_agent`, and above. A
    function that needs no arguments makes one for each task."""
    if thing is RobustBandit or isinstance(thing, RobustBandit):
        return RobustBandits.like(thing)
    if inspect.isclass(thing) and _kind(thing) is None:
        return as_agent(thing)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        if inspect.isfunction(thing) and _needs(thing):
            raise UserError(f"agent {thing.__name__}(): a function that makes one takes nothing")
        return _adapted(_made(thing), lambda: _made(thing))
    return _adapted(thing, lambda: copy.deepcopy(thing))


def _adapted(first: Any, make: Callable[[], Any]) -> Agent:
    """`first`: one of those that `make` makes."""
    kind = _kind(first)
    if kind is None:
        return as_agent(first)
    return SingleTaskAgents(lambda: kind(make()), first, counts=True)


def _kind(thing: Any) -> type[_Foreign] | None:
    """Whose convention it follows, if not ours."""
    with blaming(thing):
        if _has(thing, OURS):
            return None
        return next((kind for kind in CONVENTIONS if _has(thing, kind.methods)), None)


def _has(thing: Any, methods: tuple[str, ...]) -> bool:
    return all(callable(getattr(thing, name, None)) for name in methods)


def _needs(function: Callable[..., Any]) -> bool:
    """Whether it must have arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters
    )


def _made(make: Callable[[], Any]) -> Any:
    name = make.__name__
    try:
        return make()
    except UserError:
        raise
    except TypeError as error:
        raise UserError(
            f"agent {name} cannot be made without arguments: {shown(error)}; write a function "
            "that makes one, or hand over an object"
        ) from error
    except (Exception, SystemExit) as error:
        raise UserError(
            f"agent {name} cannot be made: {described(error)} ({last_line(error)})"
        ) from error
