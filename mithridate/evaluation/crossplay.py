"""Victims against attackers, on the same tasks with the same luck.

Replications are crossed: victim r meets the attackers of replication r + 1, on *their* tasks, so
that no model is measured on an attack it has met in training. Scores use true rewards only: first
the mean over tasks, then mean ± 2 SEM over replications.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mithridate.agents.named import AgentLike, told
from mithridate.config import EnvConfig
from mithridate.envs import env_of
from mithridate.errors import UserError, shown
from mithridate.evaluation.cells import Cells
from mithridate.evaluation.columns import Column, make_columns
from mithridate.evaluation.kinds import heading_of
from mithridate.evaluation.victims import Victim, make_victims
from mithridate.intervals import mean_ci95
from mithridate.rng import Rng
from mithridate.rows import Row, Rows
from mithridate.scores import step_scores
from mithridate.settings import parse, preset_settings
from mithridate.stage_config import EvaluateConfig
from mithridate.types import Env, Metric
from mithridate.versions import versions


@dataclass(frozen=True)
class Record:
    """One victim under one attacker in one replication."""

    agent: str
    environment: str
    metric: str
    kind: str
    """Of attack, see kinds.py."""
    attacker: str
    target: str | None
    """Whom the attacker was trained against, if it was."""
    eps: float
    budget: float
    norm: float
    """The largest norm of the attack on any task."""
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

    @property
    def column(self) -> str:
        return str(heading_of(asdict(self)))

    def to_json(self) -> dict[str, Any]:
        def plain(value: Any) -> Any:
            return None if isinstance(value, float) and math.isnan(value) else value

        return {name: plain(value) for name, value in asdict(self).items()}


RECORDS: dict[str, type] = {
    "agent": str, "environment": str, "metric": str, "kind": str, "attacker": str, "target": str,
    "column": str, "eps": float, "budget": float, "norm": float, "replication": int, "mean": float,
    "ci95": float, "tasks": int, "seed": int, "config_hash": str, "version": str, "seconds": float,
}  # fmt: skip
"""Records as rows: their columns."""
CURVES: dict[str, type] = {
    **{name: RECORDS[name] for name in ("agent", "environment", "metric", "kind", "attacker")},
    **{name: RECORDS[name] for name in ("target", "column", "eps", "budget", "replication")},
    "step": float, "mean": float, "ci95": float,
}  # fmt: skip
"""Curves likewise."""


@dataclass(frozen=True)
class Curve:
    """The cumulative score over time: mean over tasks and 2 × SEM, (T,) each."""

    mean: Tensor
    ci95: Tensor


@dataclass(frozen=True)
class Evaluation:
    env: EnvConfig
    metric: Metric
    records: list[Record]
    curves: dict[tuple[str, str], list[Curve]]
    """For each agent and column, one curve per replication."""

    def to_json(self) -> dict[str, Any]:
        return {"records": [record.to_json() for record in self.records]}

    def rows(self) -> Rows:
        """A row for each record."""
        return Rows([{**r.to_json(), "column": r.column} for r in self.records], RECORDS)

    def curve_rows(self) -> Rows:
        """A row for each step of each record's episode: the score so far."""
        rows: list[Row] = []
        for record in self.records:
            about = {**record.to_json(), "column": record.column}
            curve = self.curves[record.agent, record.column][record.replication]
            points = zip(curve.mean.tolist(), curve.ci95.tolist(), strict=True)
            for step, (mean, ci95) in enumerate(points, 1):
                rows.append({**about, "step": step, "mean": mean, "ci95": ci95})
        return Rows(rows, CURVES)

    def to_pandas(self) -> Any:
        """The records as a pandas DataFrame; curves: `curve_rows().to_pandas()`."""
        return self.rows().to_pandas()

    def to_polars(self) -> Any:
        """The records as a polars DataFrame; curves: `curve_rows().to_polars()`."""
        return self.rows().to_polars()

    @cached_property
    def cells(self) -> Cells:
        return Cells([record.to_json() for record in self.records], self.metric.better)

    def agents(self) -> list[str]:
        return self.cells.victims

    def columns(self) -> list[str]:
        return self.cells.columns

    def cell(self, agent: str, column: str) -> tuple[float, float]:
        """Mean and its interval, see `Cells.cell`."""
        found = self.cells.cell(agent, column)
        if found is None:
            raise KeyError(f"no cell for {agent} under {column}")
        return found

    def summary(self, column: str | None = None) -> dict[str, tuple[float, float]]:
        """Each agent's cell in one column (the first, unless told)."""
        return {agent: self.cell(agent, column or self.columns()[0]) for agent in self.agents()}


def evaluate(
    env: Env | str,
    agents: Sequence[AgentLike] | Mapping[str, AgentLike],
    *,
    preset: str = "laptop",
    on_step: Callable[[], None] | None = None,
    **settings: Any,
) -> Evaluation:
    """Measure agents on fresh tasks; all of them meet the same tasks and the same luck.

    `agents`: registered names, shipped models, weight files, 'module:Class', or objects of your
    own; a mapping gives them labels, and a list in it is one agent's replications. `preset`:
    smoke, laptop or paper, as in `mithridate evaluate`; an environment that is not a name keeps the
    configuration it has. `settings`: the fields of EvaluateConfig (tasks, seed, replications,
    attackers, eps, budget, …). `on_step` is called after every batched step.
    """
    own = None if isinstance(env, str) else env
    told_env = env if isinstance(env, str) else getattr(env, "config", None)
    if not isinstance(told_env, str | EnvConfig):
        raise UserError(f"environment: a name or an environment is needed, not {shown(env, 40)}")
    known = preset_settings("evaluate", told_env, preset)
    if isinstance(told_env, EnvConfig):
        known["env"] = told_env
    config = parse(EvaluateConfig, {**known, **settings}, where="evaluate")
    return evaluate_config(config, agents, env=own, on_step=on_step)


def evaluate_config(
    config: EvaluateConfig,
    agents: Sequence[AgentLike] | Mapping[str, AgentLike],
    *,
    env: Env | None = None,
    columns: Sequence[Column] | None = None,
    on_step: Callable[[], None] | None = None,
) -> Evaluation:
    """`evaluate`, with everything said by a configuration. `env` and `columns`: those to use, if
    they are at hand."""
    torch.set_num_threads(config.threads)
    env = env or env_of(config.env)
    victims = make_victims(agents, told(config))
    if columns is None:
        columns = make_columns(config, victims)
    records: list[Record] = []
    curves: dict[tuple[str, str], list[Curve]] = {}
    for column in columns:
        for victim in victims:
            for replication in range(config.replications):
                record, curve = evaluate_cell(config, env, victim, column, replication, on_step)
                records.append(record)
                curves.setdefault((victim.label, record.column), []).append(curve)
    return Evaluation(env.config, env.spec.metric, records, curves)


def evaluate_cell(
    config: EvaluateConfig,
    env: Env,
    victim: Victim,
    column: Column,
    replication: int,
    on_step: Callable[[], None] | None = None,
) -> tuple[Record, Curve]:
    """One victim under one attacker in one replication."""
    begun = time.monotonic()
    rng = Rng(config.seed).child("evaluate", replication)
    attacker, tasks = column.meet(replication)
    if tasks is None:
        tasks = env.sample_tasks(config.tasks, rng.child("tasks"))
    elif len(tasks) > config.tasks:
        tasks = tasks.select(slice(0, config.tasks))
    norms: list[float] = []
    scores = step_scores(
        env, tasks, victim.replication(replication), attacker, config.eps,
        rng=rng, block=config.block, on_step=on_step, norms=norms,
    )  # fmt: skip
    if max(norms, default=0.0) > config.budget * (1 + 1e-6):
        raise UserError(
            f"attacker '{column.name}' spent {max(norms):.3g} of a budget of {config.budget:g}; it "
            "has to keep to it (mithridate/budget.py)"
        )
    mean, ci95 = mean_ci95(scores.sum(1).tolist())
    record = Record(
        agent=victim.label, environment=env.spec.name, metric=env.spec.metric.name,
        kind=column.kind, attacker=column.attacker, target=column.target,
        eps=config.eps if attacker else 0.0, budget=config.budget if attacker else 0.0,
        norm=max(norms, default=0.0), replication=replication, mean=mean, ci95=ci95,
        tasks=len(tasks), seed=config.seed, config_hash=config.hash(),
        version=versions()["mithridate"], seconds=round(time.monotonic() - begun, 3),
    )  # fmt: skip
    return record, _curve(scores)


def _curve(scores: Tensor) -> Curve:
    cumulative = scores.cumsum(1)  # (B, T)
    spread = cumulative.std(0) if len(cumulative) > 1 else torch.full_like(cumulative[0], math.nan)
    return Curve(cumulative.mean(0).cpu(), (2 * spread / math.sqrt(len(cumulative))).cpu())
