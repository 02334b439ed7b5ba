"""What training is made of: a step of pretraining and a round of adversarial training, and how much
of each is spent outside the kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mithridate.bench.episodes import timed_player
from mithridate.native import kernels
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, PretrainConfig
from mithridate.training.adversarial import AdversarialTraining
from mithridate.training.pretrain import Pretraining

FUNCTIONS = ("learn",)
"""The kernels that training calls, besides those that play episodes."""


@dataclass(frozen=True)
class Round:
    name: str
    seconds: float
    outside: float | None
    """The share of the time that was spent outside the kernels; None without kernels."""


def rounds(repetitions: int, quick: bool) -> list[Round]:
    """In the bandit, as the laptop preset has it; `quick`: with few tasks and small batches."""
    small = ["batches.long_batch=4", "batches.short_batch=4"] if quick else []
    pretraining = Pretraining(resolve(PretrainConfig, "pretrain", "bandit", "laptop", small))
    sets = [*small, "synthetic.rounds=0", "compare_every=0"]
    sets += ["tasks=40", "iterations=2"] if quick else []
    game = AdversarialTraining(
        resolve(AdversarialConfig, "train", "bandit", "laptop", sets, start="dpt-bandit-s0")
    )

    def four_steps(first: int) -> None:  # one of them is a long one
        for step in range(4 * first, 4 * first + 4):
            pretraining.step(step)

    return [
        _timed("4 steps of pretraining", four_steps, repetitions),
        _timed("a round of adversarial training", game.step, repetitions),
    ]


def _timed(name: str, work: Callable[[int], Any], repetitions: int) -> Round:
    seconds, outside = [], []
    for i in range(repetitions + 1):
        with _in_kernels() as spent:
            begun = time.perf_counter()
            work(i)
            seconds.append(time.perf_counter() - begun)
        outside.append(1 - sum(spent) / seconds[-1])
    share = None if kernels() is None else statistics.median(outside[1:])
    return Round(name, statistics.median(seconds[1:]), share)


@contextmanager
def _in_kernels() -> Iterator[list[float]]:
    """The seconds that each call of a kernel takes, while this lasts."""
    module = kernels()
    if module is None:
        yield []
        return
    with timed_player() as spent:
        before = {name: getattr(module, name) for name in FUNCTIONS}

        def timed(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*words: Any, **named: Any) -> Any:
                begun = time.perf_counter()
                try:
                    return function(*words, **named)
                finally:
                    spent.append(time.perf_counter() - begun)

            return call

        for name, function in before.items():
            setattr(module, name, timed(function))
        try:
            yield spent
        finally:
            for name, function in before.items():
                setattr(module, name, function)
