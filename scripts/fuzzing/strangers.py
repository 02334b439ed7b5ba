"""Agents and attackers as users write them: honest, careless and malicious ones."""

from __future__ import annotations

import sys
from typing import Any

import mithridate as mi


class Plain:
    """For one task. It takes the actions in turn, whatever it sees."""

    answer: Any = None
    """What it does instead of an action, or None."""

    def reset(self) -> None:
        self.step = 0

    def act(self, obs: Any) -> Any:
        self.step += 1
        return self.step % 3 if self.answer is None else self.answer()

    def observe(self, obs: Any, action: int, reward: float, next_obs: Any) -> None:
        pass


class PlainSpoiler(Plain):
    """Changes what it is shown, in place."""

    def act(self, obs: Any) -> Any:
        if obs is not None:
            obs[...] = 8
        return super().act(obs)

    def observe(self, obs: Any, action: int, reward: float, next_obs: Any) -> None:
        for each in (obs, next_obs):
            if each is not None:
                each[...] = 8


class Batched:
    """For many tasks at once."""

    answer: Any = None

    def reset(self, spec: Any, batch: int, rng: Any) -> None:
        import torch

        self.step, self.batch, self.torch = 0, batch, torch
        self.n = spec.n_actions

    def act(self, obs: Any) -> Any:
        self.step += 1
        if self.answer is not None:
            return self.answer()
        return self.torch.full((self.batch,), self.step % 3)

    def observe(self, obs: Any, actions: Any, rewards: Any, next_obs: Any) -> None:
        pass


class BatchedSpoiler(Batched):
    """Changes observations, actions and rewards in place."""

    def act(self, obs: Any) -> Any:
        if obs is not None:
            obs.fill_(8)
        return super().act(obs)

    def observe(self, obs: Any, actions: Any, rewards: Any, next_obs: Any) -> None:
        actions.fill_(0)
        rewards.fill_(100.0)
        for each in (obs, next_obs):
            if each is not None:
                each.fill_(8)


class BatchedKeeper(Batched):
    """Keeps what it was given and what it gave, and changes it later."""

    def reset(self, spec: Any, batch: int, rng: Any) -> None:
        super().reset(spec, batch, rng)
        self.kept: list[Any] = []

    def act(self, obs: Any) -> Any:
        for each in self.kept:
            each.fill_(0)
        actions = super().act(obs)
        self.kept = [*self.kept, actions, *([obs] if obs is not None else [])]
        return actions

    def observe(self, obs: Any, actions: Any, rewards: Any, next_obs: Any) -> None:
        self.kept += [actions, rewards]
        for each in self.kept:
            each.fill_(0)


class SameTensor(Batched):
    """Gives the same tensor every time, filled anew."""

    def act(self, obs: Any) -> Any:
        actions = super().act(obs)
        if self.step == 1:
            self.mine = actions
        self.mine.copy_(actions)
        return self.mine


class Raises(Plain):
    """Fails where `answer` says, and how."""

    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error

    def reset(self) -> None:
        super().reset()
        self._perhaps("reset")

    def act(self, obs: Any) -> Any:
        self._perhaps("act")
        return super().act(obs)

    def observe(self, obs: Any, action: int, reward: float, next_obs: Any) -> None:
        self._perhaps("observe")

    def _perhaps(self, where: str) -> None:
        if where == self.where:
            raise self.error


class Talks(Plain):
    def act(self, obs: Any) -> Any:
        print("I am thinking")
        sys.stdout.write("loudly\n")
        return super().act(obs)


AGENTS = {"plain": Plain, "plain spoiler": PlainSpoiler, "batched": Batched, "talks": Talks,
          "batched spoiler": BatchedSpoiler, "batched keeper": BatchedKeeper,
          "same tensor": SameTensor}  # fmt: skip
ERRORS = {e.__name__: e for e in (ValueError, KeyError, RuntimeError, TypeError, IndexError,
                                  ZeroDivisionError, StopIteration, RecursionError, MemoryError,
                                  OSError, AssertionError, SystemExit)}  # fmt: skip


def agent(name: str, answer: str | None = None) -> Any:
    """One of AGENTS; `answer`: an expression for what it says instead of an action. Or
    'raises ERROR in METHOD'."""
    if name.startswith("raises "):
        _, error, _, where = name.split()
        return Raises(where, ERRORS[error]("first line\nsecond line"))
    made: Any = AGENTS[name]()
    if answer is not None:
        from fuzzing.calls import value

        made.answer = lambda: value(answer)
    return made


# Attackers -------------------------------------------------------------------------------------


class Honest:
    """Adds a half to every reward."""

    answer: Any = None
    price: Any = None

    def reset(self, spec: Any, tasks: Any, rng: Any) -> None:
        self.batch = len(tasks)

    def poison(self, step: Any) -> Any:
        return step.true_rewards + 0.5 if self.answer is None else self.answer()

    def cost(self) -> Any:
        import torch

        return torch.full((self.batch,), 0.5) if self.price is None else self.price()


class Spoiler(Honest):
    """Changes the step that it is shown."""

    def poison(self, step: Any) -> Any:
        proposed = step.true_rewards + 0.5
        step.true_rewards.fill_(100.0)
        step.actions.fill_(0)
        for each in (step.observation, step.state, step.next_observation):
            if each is not None:
                each.fill_(8)
        return proposed


class Keeper(Honest):
    """Changes its proposal after it was made, and the tasks that it was shown."""

    def reset(self, spec: Any, tasks: Any, rng: Any) -> None:
        super().reset(spec, tasks, rng)
        self.kept: list[Any] = []
        for tensor in tasks.tensors().values():
            if tensor.is_floating_point():
                tensor.fill_(0.5)

    def poison(self, step: Any) -> Any:
        for each in self.kept:
            each.fill_(-50.0)
        proposed = step.true_rewards + 0.5
        self.kept += [proposed, step.true_rewards]
        return proposed


ATTACKERS = {"honest": Honest, "spoiler": Spoiler, "keeper": Keeper}


def attacker(name: str, answer: str | None = None) -> str:
    """Registers one of ATTACKERS, 'answers' (says `answer` instead of rewards), 'costs' (says it
    instead of norms) or 'raises ERROR', and returns its name."""
    made = dict(vars(ATTACKERS.get(name, Honest)))
    bases = (ATTACKERS.get(name, Honest),)
    if name.startswith("raises "):
        made["answer"] = _raiser(ERRORS[name.split()[1]]("first line\nsecond line"))
    elif answer is not None:
        from fuzzing.calls import value

        field = "price" if name == "costs" else "answer"
        made[field] = staticmethod(lambda: value(answer))
    registered = f"stranger_{len(mi.ATTACKERS.names())}"
    mi.ATTACKERS.register(registered)(type(registered, bases, made))
    return registered


def _raiser(error: BaseException) -> Any:
    def fail() -> Any:
        raise error

    return staticmethod(fail)
