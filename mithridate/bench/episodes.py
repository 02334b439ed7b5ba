"""What a search lives on: episodes a second, of many tasks with a few candidates each, for each
agent; and how much of an in-context agent's rollout is spent outside the kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mithridate.agents.in_context import InContextAgent
from mithridate.attackers import make_attacker
from mithridate.envs import make_env
from mithridate.model.one_stream import OneStreamModel
from mithridate.model.player import NativePlayer, Played
from mithridate.registry import AGENTS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.types import Agent

ALGORITHMS = ("ts", "rts", "ucb1", "crucb", "mixture_ts")
LINEAR = ("linucb", "mixture_linucb", "mixture_lin_ts", "posterior_oracle")
"""Those for arms with features."""
EPS, BUDGET = 0.4, 3.0
LONG = 10.0
"""Seconds after which an agent is not timed again."""


@dataclass(frozen=True)
class Episodes:
    """Of one agent, under an attack with fixed offsets."""

    agent: str
    episodes: int
    seconds: float
    per_second: float
    outside: float | None
    """The share of the time that was spent outside the kernels, for agents that play in them."""


def episodes(
    model: OneStreamModel, tasks: int, candidates: int, length: int, repetitions: int
) -> list[Episodes]:
    """Rollouts of `tasks` tasks, each with so many candidates of an attack."""
    attacker = make_attacker("swap", BUDGET)
    agents: dict[str, Agent] = {"in_context": InContextAgent(model)}
    agents |= {name: AGENTS.create(name) for name in ALGORITHMS + LINEAR}
    found = []
    for name, agent in agents.items():
        env = make_env("linear_bandit" if name in LINEAR else "bandit", horizon=length)
        sampled = env.sample_tasks(tasks, Rng(0)).repeat(candidates)
        seconds, inside = [], []
        for i in range(repetitions + 1):  # the first is not measured, unless it says enough
            with timed_player() as spent:
                begun = time.perf_counter()
                rollout(env, sampled, agent, attacker, EPS, rng=Rng(i))
                seconds.append(time.perf_counter() - begun)
            inside.append(sum(spent))
            if seconds[0] > LONG:
                break
        seconds, inside = seconds[1:] or seconds, inside[1:] or inside
        median = statistics.median(seconds)
        share = statistics.median(1 - a / b for a, b in zip(inside, seconds, strict=True))
        count = len(sampled)
        outside = share if inside[-1] else None
        found.append(Episodes(name, count, median, count / median, outside))
    return found


def per_episode(
    model: OneStreamModel, few: int, many: int, length: int, repetitions: int
) -> dict[str, Any]:
    """Medians of the seconds of one episode, in turns, in rollouts of few tasks and of many."""
    env = make_env("bandit", horizon=length)
    seconds: dict[int, list[float]] = {few: [], many: []}
    for i in range(repetitions + 1):  # the first is not measured
        for tasks, some in seconds.items():
            sampled = env.sample_tasks(tasks, Rng(0))
            begun = time.perf_counter()
            rollout(env, sampled, InContextAgent(model), rng=Rng(i))
            some.append((time.perf_counter() - begun) / tasks)
    medians = [statistics.median(some[1:]) for some in seconds.values()]
    return {"tasks": [few, many], "seconds": medians, "ratio": medians[1] / medians[0]}


@contextmanager
def timed_player() -> Iterator[list[float]]:
    """Seconds of every call of the native loop, inside this block."""
    spent: list[float] = []
    play = NativePlayer.play

    def timed(self: NativePlayer, *arguments: Any) -> Played:
        begun = time.perf_counter()
        try:
            return play(self, *arguments)
        finally:
            spent.append(time.perf_counter() - begun)

    NativePlayer.play = timed  # type: ignore[method-assign,assignment]
    try:
        yield spent
    finally:
        NativePlayer.play = play  # type: ignore[method-assign]
