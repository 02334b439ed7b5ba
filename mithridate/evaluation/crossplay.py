"""Victims against attackers, on the same tasks with the same luck."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mithridate.agents.resolve import AgentLike, make_agent
from mithridate.config import EvaluateConfig, parse
from mithridate.envs import env_of
from mithridate.evaluation.statistics import mean_ci95
from mithridate.registry import ATTACKERS, ENVS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.types import Agent, Attacker, Env, Tasks
from mithridate.versions import versions


@dataclass(frozen=True)
class Record:
    """One victim under one attacker in one replication."""

    agent: str
    environment: str
    metric: str
    attacker: str
    target: str | None
    eps: float
    budget: float
    replication: int
    mean: float
    """Mean over tasks of the episode's total score."""
    ci95: float
    """2 × SEM over tasks."""
    tasks: int
    seed: int
    config_hash: str
    version: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {k: None if v is math.nan else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Curve:
    """The cumulative score over time: mean over tasks and 2 × SEM, (T,) each."""

    mean: Tensor
    ci95: Tensor


@dataclass(frozen=True)
class Evaluation:
    records: list[Record]
    curves: dict[str, list[Curve]]
    """Per agent, one curve for each replication."""

    def to_json(self) -> dict[str, Any]:
        return {"records": [record.to_json() for record in self.records]}

    def summary(self) -> dict[str, tuple[float, float]]:
        """Per agent the mean and its interval: over replications, or over the tasks of one."""
        result: dict[str, tuple[float, float]] = {}
        for agent in self.curves:
            rows = [record for record in self.records if record.agent == agent]
            if len(rows) == 1:
                result[agent] = (rows[0].mean, rows[0].ci95)
            else:
                result[agent] = mean_ci95([row.mean for row in rows])
        return result


def evaluate(
    env: Env | str,
    agents: Sequence[AgentLike] | Mapping[str, AgentLike],
    *,
    on_step: Callable[[], None] | None = None,
    **settings: Any,
) -> Evaluation:
    """Measure agents on fresh tasks; all of them meet the same tasks and the same luck.

    `agents`: registered names, shipped models, weight files, 'module:Class', or objects of your
    own; a mapping gives them labels. `settings`: the fields of EvaluateConfig (tasks, seed,
    replications, attacker, eps, budget, …). `on_step` is called after every batched step.
    """
    environment: Env = ENVS.create(env) if isinstance(env, str) else env
    config = parse(EvaluateConfig, {"env": environment.config, **settings}, where="evaluate")
    return evaluate_config(config, agents, env=environment, on_step=on_step)


def evaluate_config(
    config: EvaluateConfig,
    agents: Sequence[AgentLike] | Mapping[str, AgentLike],
    *,
    env: Env | None = None,
    on_step: Callable[[], None] | None = None,
) -> Evaluation:
    """`evaluate`, with everything said by a configuration (`env`: the one to use, if at hand)."""
    torch.set_num_threads(config.threads)
    env = env or env_of(config.env)
    attacker: Attacker | None = None
    if config.attacker != "none":
        attacker = ATTACKERS.create(config.attacker, budget=config.budget)
    records: list[Record] = []
    curves: dict[str, list[Curve]] = {}
    for label, agent in _labelled(agents):
        for replication in range(config.replications):
            begun = time.monotonic()
            rng = Rng(config.seed).child("evaluate", replication)
            tasks = env.sample_tasks(config.tasks, rng.child("tasks"))
            scores = step_scores(
                env, tasks, agent, attacker, config.eps,
                rng=rng, block=config.block, on_step=on_step,
            )  # fmt: skip
            mean, ci95 = mean_ci95(scores.sum(1).tolist())
            curves.setdefault(label, []).append(_curve(scores))
            records.append(
                Record(
                    agent=label, environment=env.spec.name, metric=env.spec.metric.name,
                    attacker=config.attacker, target=None,
                    eps=config.eps if attacker else 0.0, budget=config.budget if attacker else 0.0,
                    replication=replication, mean=mean, ci95=ci95, tasks=config.tasks,
                    seed=config.seed, config_hash=config.hash(), version=versions()["mithridate"],
                    seconds=round(time.monotonic() - begun, 3),
                )
            )  # fmt: skip
    return Evaluation(records, curves)


def step_scores(
    env: Env,
    tasks: Tasks,
    agent: Agent,
    attacker: Attacker | None = None,
    eps: float = 0.0,
    *,
    rng: Rng,
    block: int = 250,
    on_step: Callable[[], None] | None = None,
) -> Tensor:
    """(B, T): each step's contribution to the metric, rolled out `block` tasks at a time."""
    parts = []
    for start in range(0, len(tasks), block):
        some = tasks.select(slice(start, start + block))
        trajectory = rollout(env, some, agent, attacker, eps, rng=rng, on_step=on_step)
        parts.append(env.score(some, trajectory))
    return torch.cat(parts)


def total_scores(env: Env, tasks: Tasks, agent: Agent, *, rng: Rng, block: int = 250) -> Tensor:
    """(B,): the episode's metric on each task, without an attacker."""
    return step_scores(env, tasks, agent, rng=rng, block=block).sum(1)


def _curve(scores: Tensor) -> Curve:
    cumulative = scores.cumsum(1)  # (B, T)
    spread = cumulative.std(0) if len(cumulative) > 1 else torch.full_like(cumulative[0], math.nan)
    return Curve(cumulative.mean(0).cpu(), (2 * spread / math.sqrt(len(cumulative))).cpu())


def _labelled(
    agents: Sequence[AgentLike] | Mapping[str, AgentLike],
) -> list[tuple[str, Agent]]:
    if isinstance(agents, Mapping):
        return [(label, make_agent(agent)[1]) for label, agent in agents.items()]
    pairs = [make_agent(agent) for agent in agents]
    seen: dict[str, int] = {}
    result = []
    for label, agent in pairs:  # two of the same name get a number
        seen[label] = seen.get(label, 0) + 1
        result.append((label if seen[label] == 1 else f"{label} #{seen[label]}", agent))
    return result
