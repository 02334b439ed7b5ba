"""How long a stage will take on this machine: rough, and said to be so.

A stage is so many units of work; a unit takes so long on the machine the constants come from; this
machine is so much slower or faster, as a few training steps and a short rollout show. Finished
stages of the same kind in the store, once there are some, are better witnesses than the constants.
"""

from __future__ import annotations

import math
import time
from functools import cache
from typing import Any

from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.kinds import Heading, Kind
from mithridate.evaluation.victims import Victim
from mithridate.experiments.stages import MANY_SECONDS, Stage, is_input, parsed_config
from mithridate.experiments.store import Store
from mithridate.observations import Views
from mithridate.registry import AGENTS, parse_call

LEARN = 2.7e-6
"""Seconds for a token of a training batch, at length 0; it grows with the length / 250."""
ROLL_MODEL = 1.0e-5
"""Seconds for a step of one task with a model, at horizon 500."""
ROLL_OTHER = 2.5e-6
"""The same with a classical algorithm."""
SEEING = 7.0
"""How much longer a model's step in a task takes where there are views: they are drawn and
embedded."""
LEARN_VIEWS = 1.9
"""The same for a token of a training batch."""
OVERHEAD = 0.1
"""Seconds for a stage that does nothing."""


def seconds(stages: list[Stage], store: Store | None) -> float:
    """For all of these one after the other."""
    return sum(_one(stage, _witness(stage.kind, store)) for stage in stages)


def _one(stage: Stage, witness: float | None) -> float:
    factor = machine_factor() if witness is None else witness
    return OVERHEAD + factor * work(stage)


def work(stage: Stage) -> float:
    """Seconds on the machine that the constants come from."""
    config: dict[str, Any] = stage.config
    horizon = int(config["env"]["horizon"])
    if stage.kind in ("pretrain", "distill"):
        evaluations = config["steps"] / config["evaluate_every"] * config["evaluate_tasks"]
        tasks = evaluations + config["final_tasks"]
        learning = _streams(config) * _learning(config["batches"], config["steps"])
        if stage.kind == "distill":
            source = config["tasks"] * config["steps"] / config["refresh_every"]
            learning += _rolling(source, horizon, False)
        return learning + _rolling(tasks, horizon, True) * _seeing(config)
    if stage.kind == "train":
        rounds = config["rounds"] + config["synthetic"]["rounds"]
        steps = rounds * config["iterations"]
        compared = 1 + 1.2 / max(1, config["compare_every"])
        tasks = config["rounds"] * config["tasks"] * compared + 5 * config["final_tasks"]
        learning = _streams(config) * _learning(config["batches"], steps)
        return learning + _rolling(tasks, horizon, True) * _seeing(config)
    if stage.kind == "attack":
        kind = _kind(stage)
        tasks = config["tasks"] * (config["rounds"] * kind.episodes + 1)
        rolling = _acting(config["target"], tasks, config, bool(stage.inputs))
        if kind.passes:  # a network of its own
            batch = {"long_every": 1, "long_batch": config["tasks"], "long_length": horizon}
            rolling += _rolling(tasks, horizon, True)
            rolling += _learning(
                {**batch, "short_batch": 0, "short_length": 0}, kind.passes * config["rounds"]
            )
        return rolling
    tasks = 1 if stage.kind == "picture" else config["tasks"]
    return _acting(config["cell"]["victim"], tasks, config, "victim" in stage.inputs)


def _acting(agent: str, tasks: float, config: dict[str, Any], model: bool) -> float:
    """An agent's life in so many tasks."""
    horizon = int(config["env"]["horizon"])
    if model:
        return _rolling(tasks, horizon, True) * _seeing(config)
    return tasks * horizon * _episodes(agent) * _step(agent)


def _kind(stage: Stage) -> Kind:
    """Of the attack that a stage trains."""
    if stage.about is None or stage.about.kind is None:
        return Kind("")
    return Heading(stage.about.kind, stage.about.who).described


@cache
def _episodes(agent: str) -> int:
    """How many episodes of each task an agent lives through. Models, which are inputs, need one.
    Only registered agents are made: the name may come from a file, and nobody's code is imported
    for an estimate."""
    if is_input(agent) or parse_call(agent)[0] not in AGENTS.names():
        return 1
    return Victim(agent, [agent]).episodes()


@cache
def _step(agent: str) -> float:
    """Seconds for a step of one task with an agent that is no model; it may say so itself."""
    name = parse_call(agent)[0]
    if is_input(agent) or name not in AGENTS.names():
        return ROLL_OTHER
    said = getattr(AGENTS.get(name), "step_seconds", ROLL_OTHER)
    sound = isinstance(said, int | float) and 0 < said < MANY_SECONDS  # a user's class may say so
    return float(said) if sound else ROLL_OTHER


def _seeing(config: dict[str, Any]) -> float:
    return SEEING if _has_views(config["env"]["name"]) else 1.0


@cache
def _has_views(env: str) -> bool:
    return isinstance(make_env(env).spec.observation, Views)


def _streams(config: dict[str, Any]) -> float:
    """Where there are states, queries are a second stream through the model."""
    env = config["env"]["name"]
    return _streams_in(env) * (LEARN_VIEWS if _has_views(env) else 1.0)


@cache
def _streams_in(env: str) -> int:
    return 1 if make_env(env).spec.observation is None else 2


def _learning(batches: dict[str, Any], steps: float) -> float:
    share = 1 / float(batches["long_every"])

    def tokens(size: str) -> float:
        length = float(batches[f"{size}_length"])
        return float(batches[f"{size}_batch"]) * length * (1 + length / 250)

    return LEARN * float(steps) * (share * tokens("long") + (1 - share) * tokens("short"))


def _rolling(tasks: float, horizon: int, model: bool) -> float:
    if model:
        return ROLL_MODEL * tasks * horizon * (0.3 + 0.7 * horizon / 500)
    return ROLL_OTHER * tasks * horizon


def _witness(kind: str, store: Store | None) -> float | None:
    """Seconds per unit of finished stages of this kind, if there are any in the store."""
    if store is None:
        return None
    return _finished(store).get(kind)


@cache
def _finished(store: Store) -> dict[str, float]:
    spent: dict[str, float] = {}
    units: dict[str, float] = {}
    for name in store.names():
        artifact = store.get(name)
        if artifact is None or artifact.manifest.shipped:
            continue
        kind, inputs = artifact.manifest.kind, artifact.manifest.inputs
        parts = dict.fromkeys(inputs, Stage("pretrain", "", {}))
        manifest = artifact.manifest
        stage = Stage(kind, manifest.label, manifest.config, parts, manifest.about)
        try:
            parsed_config(stage)
            done = work(stage)
        except (UserError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            continue  # of another version, or from somebody who writes what he likes: no witness
        if not 0 < done < math.inf:
            continue
        spent[kind] = spent.get(kind, 0.0) + max(0.0, artifact.seconds - OVERHEAD)
        units[kind] = units.get(kind, 0.0) + done
    return {kind: spent[kind] / units[kind] for kind in spent}


@cache
def machine_factor() -> float:
    """How much slower than that machine this one is (below 1: faster)."""
    from mithridate.config import ModelConfig
    from mithridate.model.one_stream import OneStreamModel
    from mithridate.rng import Rng

    env = make_env("bandit")
    model = OneStreamModel(ModelConfig(), env.spec)
    model.initialise(Rng(0).torch_generator())
    tasks = env.sample_tasks(64, Rng(0))
    contexts = env.sample_contexts(tasks, 128, Rng(1))
    times = []
    for _ in range(8):  # the best of them: others may be using the machine
        begun = time.perf_counter()
        model.loss(contexts).backward()  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - begun)
    expected = LEARN * 64 * 128 * (1 + 128 / 250)
    return min(times[1:]) / expected


def readable(duration: float) -> str:
    if duration < 90:
        return f"{duration:.0f} s"
    if duration < 5400:
        return f"{duration / 60:.0f} min"
    return f"{duration / 3600:.1f} h"
