"""Side-by-side timings in one run, and growth with batch and length.

A ratio is the quotient of two medians over repetitions that alternate between us and the peer, so
that whatever else the machine does hits both.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from mithridate.agents.in_context import InContextAgent
from mithridate.bench.episodes import episodes, per_episode
from mithridate.bench.one_bandit import ARMS, steps
from mithridate.bench.peers import HuggingFaceAgent, HuggingFaceModel, reference_path
from mithridate.bench.rounds import rounds
from mithridate.bench.startup import startup
from mithridate.bench.two_at_once import two_at_once
from mithridate.config import ModelConfig, OptimiserConfig
from mithridate.envs import make_env
from mithridate.errors import UserError, unknown
from mithridate.model.one_stream import OneStreamModel
from mithridate.model.optimiser import Optimiser
from mithridate.model.query_first import QueryFirstModel
from mithridate.model.two_stream import TwoStreamModel
from mithridate.native import kernels
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.types import Agent

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """What is measured. `FULL` are the sizes of the paper's bandit."""

    batch: int = 64
    length: int = 500
    tasks: int = 200
    repetitions: int = 7
    """Turns of us and the peer."""
    room_length: int = 200
    """Steps of a Darkroom2 episode."""
    view_length: int = 250
    """Steps of a Miniworld episode."""
    prefixes: int = 9
    """Prefix lengths at which recomputation is timed; the rest is interpolated."""
    growth_tasks: tuple[int, ...] = (50, 100, 200, 400, 800, 1600, 3200)
    growth_lengths: tuple[int, ...] = (125, 250, 500, 1000)
    candidates: int = 4
    """Attacks on each task in a search."""
    at_once: float = 4.0
    """Seconds of each turn of one process alone."""
    quick: bool = False
    """Whether trainings are small, too."""


FULL = Sizes()
QUICK = Sizes(8, 40, 12, 3, 30, 20, 3, (10, 20), (20, 40), 2, 0.05, True)


@dataclass(frozen=True)
class Result:
    name: str
    peer: str
    ours_s: float
    peer_s: float
    ratio: float
    gflops: float
    """Our rate in multiply-adds × 2 per second, recomputation not counted."""
    share_of_peak: float
    """Of the measured multiply-add peak of this machine with as many threads."""
    note: str = ""


@dataclass(frozen=True)
class Growth:
    """Seconds against one size; `exponent` is the slope between the last two, in logarithms."""

    name: str
    axis: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    exponent: float


PARTS = (
    "train_step", "rollout", "room_rollout", "view_rollout", "one_bandit", "growth", "episodes",
    "two_at_once", "rounds", "startup",
)  # fmt: skip


def bench(
    sizes: Sizes, threads: int, say: Say = lambda text: None, only: str | None = None
) -> dict[str, Any]:
    """All measurements, or one part of them, as one JSON-ready document."""
    if only is not None and only not in PARTS:
        raise unknown("part of the benchmark", only, PARTS)
    torch.set_num_threads(threads)
    model = bandit_model(max(sizes.length, *sizes.growth_lengths))
    peak = peak_gflops(threads)
    module = kernels()

    def wanted(part: str) -> bool:
        return only in (None, part)

    results = [
        *(_train_step(model, sizes, peak, say) if wanted("train_step") else []),
        *(_rollouts(model, sizes, peak, say) if wanted("rollout") else []),
        *(_room_rollouts(sizes, peak, say) if wanted("room_rollout") else []),
        *(_views(sizes, peak, say, only is not None) if wanted("view_rollout") else []),
        *(_one_bandit(sizes, peak, say) if wanted("one_bandit") else []),
    ]
    growth = _growth(model, sizes, say) if wanted("growth") else []
    searched, shared, each = [], [], {}
    if wanted("episodes"):
        say("episodes")
        few = min(3, sizes.repetitions)
        searched = episodes(model, sizes.tasks, sizes.candidates, sizes.length, few)
        each = per_episode(model, sizes.tasks, max(sizes.growth_tasks), sizes.length, few)
    if wanted("two_at_once"):
        say("two at once")
        shared = two_at_once(threads, sizes.tasks, sizes.batch, sizes.length, sizes.at_once, 3)
    trained, begun = [], {}
    if wanted("rounds"):
        say("rounds")
        trained = rounds(min(3, sizes.repetitions), sizes.quick)
    if wanted("startup"):
        say("start-up")
        begun = startup(sizes.repetitions)
    return {
        "threads": threads,
        "kernels": module.active() if module else "reference",
        "peak_gflops": peak,
        "sizes": asdict(sizes),
        "results": [asdict(result) for result in results],
        "growth": [asdict(item) for item in growth],
        "episodes": [asdict(item) for item in searched],
        "per_episode": each,
        "two_at_once": [asdict(item) for item in shared],
        "rounds": [asdict(item) for item in trained],
        "startup": begun,
    }


def peak_gflops(threads: int) -> float:
    """What the multiply-add units can do (without native kernels: what PyTorch's matmul does)."""
    module = kernels()
    best = 0.0
    matrix = torch.randn(1024, 1024)
    for _ in range(5):
        begun = time.perf_counter()
        if module is not None:
            operations = module.multiply_add(5_000_000, threads)
        else:
            torch.mm(matrix, matrix)
            operations = 2.0 * 1024**3
        best = max(best, operations / (time.perf_counter() - begun) / 1e9)
    return best


# The work ----------------------------------------------------------------------------------


def bandit_model(length: int) -> OneStreamModel:
    env = make_env("bandit", horizon=length)
    model = OneStreamModel(ModelConfig(), env.spec)
    model.initialise(Rng(0).child("bench").torch_generator())
    return model


def training(model: Any, parameters: Any, batch: int, length: int) -> Callable[[], None]:
    """One training step on a fixed batch: loss, gradients, clipping, AdamW."""
    env = make_env("bandit", horizon=length)
    tasks = env.sample_tasks(batch, Rng(0))
    contexts = env.sample_contexts(tasks, length, Rng(1))
    optimiser = Optimiser(parameters, OptimiserConfig(learning_rate=1e-6), 1)

    def step() -> None:
        optimiser.step(model.loss(contexts), 0)

    return step


def rolling(agent: Agent, tasks: int, length: int) -> Callable[[], None]:
    env = make_env("bandit", horizon=length)
    sampled = env.sample_tasks(tasks, Rng(0))

    def run() -> None:
        rollout(env, sampled, agent, rng=Rng(1))

    return run


def _on_reference(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with reference_path():
            work()

    return run


def train_gflop(config: ModelConfig, batch: int, length: int) -> float:
    """Forward and backward, in units of 1e9 operations; the loss and the encoder are left out."""
    tokens = length + 1
    linear = 12 * config.width**2 * tokens
    attention = 2 * config.width * tokens * (tokens + 1) / 2
    return 2 * 3 * batch * config.layers * (linear + attention) / 1e9


def rollout_gflop(config: ModelConfig, tasks: int, length: int) -> float:
    linear = 12 * config.width**2 * length
    attention = 2 * config.width * length * (length + 1) / 2
    return 2 * tasks * config.layers * (linear + attention) / 1e9


# Timings -----------------------------------------------------------------------------------


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _alternate(
    ours: Callable[[], None], peer: Callable[[], float | None], turns: int, in_a_row: int = 1
) -> tuple[float, float]:
    """Medians of both: in each turn first one, then the other, `in_a_row` times, after one
    unmeasured round. A peer that returns a number says itself how many seconds it takes."""
    ours()
    peer()
    a, b = [], []
    for _ in range(turns):
        a += [_seconds(ours) for _ in range(in_a_row)]
        for _ in range(in_a_row):
            begun = time.perf_counter()
            said = peer()
            b.append(time.perf_counter() - begun if said is None else said)
    return statistics.median(a), statistics.median(b)


def _train_step(model: OneStreamModel, sizes: Sizes, peak: float, say: Say) -> list[Result]:
    batch, length = sizes.batch, sizes.length
    theirs = HuggingFaceModel(model)
    ours = training(model, model, batch, length)
    peers = {
        "hf_gpt2": training(theirs, theirs, batch, length),
        "reference": _on_reference(training(model, model, batch, length)),
    }
    gflop = train_gflop(model.config, batch, length)
    results = []
    for peer, work in peers.items():
        say(f"train_step against {peer}")
        a, b = _alternate(ours, work, sizes.repetitions, in_a_row=4)
        note = f"batch {batch} x {length}"
        results.append(Result("train_step", peer, a, b, b / a, gflop / a, gflop / a / peak, note))
    return results


def _rollouts(model: OneStreamModel, sizes: Sizes, peak: float, say: Say) -> list[Result]:
    tasks, length = sizes.tasks, sizes.length
    theirs = HuggingFaceModel(model)
    ours = rolling(InContextAgent(model), tasks, length)
    gflop = rollout_gflop(model.config, tasks, length)
    peers = {
        "reference": (_on_reference(rolling(InContextAgent(model), tasks, length)), 3),
        "hf_gpt2": (rolling(HuggingFaceAgent(theirs), tasks, length), 1),
    }
    results = []
    for peer, (work, most) in peers.items():
        say(f"rollout against {peer}")
        a, b = _alternate(ours, work, min(most, sizes.repetitions))
        note = f"{tasks} tasks x {length} steps"
        results.append(Result("rollout", peer, a, b, b / a, gflop / a, gflop / a / peak, note))
    say("rollout against recompute_no_cache")
    a, b = _alternate(ours, recomputing(theirs, sizes, length), min(3, sizes.repetitions))
    note = f"peer integrated over {sizes.prefixes} measured prefix lengths"
    results.append(
        Result("rollout", "recompute_no_cache", a, b, b / a, gflop / a, gflop / a / peak, note)
    )
    return results


def _room_rollouts(sizes: Sizes, peak: float, say: Say) -> list[Result]:
    """Darkroom2: two streams with a cache, against reading the query and the whole context again at
    every step."""
    tasks, length = sizes.tasks, sizes.room_length
    env = make_env("darkroom2", horizon=length)
    sampled = env.sample_tasks(tasks, Rng(0))

    def rolling(kind: type[TwoStreamModel]) -> Callable[[], None]:
        model = kind(ModelConfig(), env.spec)
        model.initialise(Rng(0).child("bench").torch_generator())
        agent = InContextAgent(model)

        def run() -> None:
            rollout(env, sampled, agent, rng=Rng(1))

        return run

    ours = rolling(TwoStreamModel)
    gflop = 2 * rollout_gflop(ModelConfig(), tasks, length)  # a query beside every token
    say("room_rollout against query_first")
    a, b = _alternate(ours, rolling(QueryFirstModel), 1)
    note = f"{tasks} tasks x {length} steps, our kernels in both"
    results = [
        Result("room_rollout", "query_first", a, b, b / a, gflop / a, gflop / a / peak, note)
    ]
    say("room_rollout against query_first_hf_gpt2")
    theirs = HuggingFaceModel(bandit_model(length))
    a, b = _alternate(ours, recomputing(theirs, sizes, length), sizes.repetitions)
    note = f"peer integrated over {sizes.prefixes} measured prefix lengths"
    results.append(
        Result(
            "room_rollout", "query_first_hf_gpt2", a, b, b / a, gflop / a, gflop / a / peak, note
        )
    )
    return results


def _views(sizes: Sizes, peak: float, say: Say, alone: bool) -> list[Result]:
    """Miniworld, if frames can be drawn here; who asked for this `alone` is told if not."""
    try:
        return [_view_rollout(sizes, peak, say)]
    except UserError as error:
        if alone:
            raise
        say(f"no view_rollout: {error}")
        return []


def _view_rollout(sizes: Sizes, peak: float, say: Say) -> Result:
    """Each frame embedded once and the context cached, against embedding and reading the whole
    prefix again at every step. The frames are at hand for both."""
    tasks, length = sizes.tasks, sizes.view_length
    env = make_env("miniworld", horizon=length)
    sampled = env.sample_tasks(tasks, Rng(0))
    model = TwoStreamModel(ModelConfig(), env.spec)
    model.initialise(Rng(0).child("bench").torch_generator())
    agent = InContextAgent(model)

    def ours() -> None:
        rollout(env, sampled, agent, rng=Rng(1))

    say("view_rollout against recompute_no_cache")
    lived = rollout(env, sampled, agent, rng=Rng(1)).contexts()
    lengths = _lengths(sizes, length)
    prefixes = [lived.select(slice(None), n) for n in lengths]

    @torch.no_grad()
    def recomputed() -> float:
        return _integrated(lengths, [_seconds(partial(model, prefix)) for prefix in prefixes])

    a, b = _alternate(ours, recomputed, min(3, sizes.repetitions))
    gflop = 2 * rollout_gflop(model.config, tasks, length)
    note = (
        f"{tasks} tasks x {length} steps, our kernels in both; "
        f"peer integrated over {sizes.prefixes} measured prefix lengths"
    )
    return Result(
        "view_rollout", "recompute_no_cache", a, b, b / a, gflop / a, gflop / a / peak, note
    )


def _one_bandit(sizes: Sizes, peak: float, say: Say) -> list[Result]:
    """Steps of `RobustBandit` beside those of agents for batches, in a loop of one's own; where the
    grid of `mixture_ts` is fine enough, and where arms have finer ones."""
    results = []
    for name, fine in (("one_bandit", False), ("one_bandit_fine", True)):
        ours, peers, gflop = steps(sizes.length, fine)
        for peer, work in peers.items():
            say(f"{name} against {peer}")
            a, b = _alternate(ours, work, sizes.repetitions)
            note = f"{ARMS} arms x {sizes.length} steps, {1000 * a / sizes.length:.2f} ms a step"
            results.append(Result(name, peer, a, b, b / a, gflop / a, gflop / a / peak, note))
    return results


def recomputing(model: HuggingFaceModel, sizes: Sizes, whole: int) -> Callable[[], float]:
    """The seconds of a rollout of `whole` steps in which GPT2Model reads the whole prefix again at
    every step (as the original DPT code does): the model's time at some prefix lengths, integrated
    over all of them."""
    lengths = _lengths(sizes, whole)
    prefixes = [torch.randn(sizes.tasks, n, model.ours.config.width) for n in lengths]

    @torch.no_grad()
    def run() -> float:
        seconds = []
        for tokens in prefixes:
            begun = time.perf_counter()
            model.gpt2(inputs_embeds=tokens, use_cache=False)
            seconds.append(time.perf_counter() - begun)
        return _integrated(lengths, seconds)

    return run


def _lengths(sizes: Sizes, whole: int) -> list[int]:
    """Prefix lengths to measure, of a rollout of `whole` steps."""
    step = (whole - 1) / (sizes.prefixes - 1)
    return [round(1 + i * step) for i in range(sizes.prefixes)]


def _integrated(lengths: list[int], seconds: list[float]) -> float:
    """What steps with all prefix lengths take together, by those that were measured."""
    between = zip(lengths, lengths[1:], seconds, seconds[1:], strict=False)
    return sum((n1 - n0) * (s0 + s1) / 2 for n0, n1, s0, s1 in between)


def _growth(model: OneStreamModel, sizes: Sizes, say: Say) -> list[Growth]:
    def rolled(tasks: int, length: int) -> float:
        work = rolling(InContextAgent(model), tasks, length)
        return min(_seconds(work) for _ in range(2))

    def trained(length: int) -> float:
        work = training(model, model, sizes.batch, length)
        work()
        return statistics.median(_seconds(work) for _ in range(3))

    say("growth with tasks")
    by_tasks = [rolled(n, sizes.length) for n in sizes.growth_tasks]
    say("growth with length")
    by_length = [rolled(sizes.tasks, n) for n in sizes.growth_lengths]
    steps = [trained(n) for n in sizes.growth_lengths]
    return [
        _curve("rollout", "tasks", sizes.growth_tasks, by_tasks),
        _curve("rollout", "length", sizes.growth_lengths, by_length),
        _curve("train_step", "length", sizes.growth_lengths, steps),
    ]


def _curve(name: str, axis: str, sizes: Sequence[int], seconds: Sequence[float]) -> Growth:
    exponent = math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])
    return Growth(name, axis, tuple(sizes), tuple(seconds), exponent)
