"""Records and curves of a store, a file of records or an evaluation: as rows, as data frames,
as rliable's dictionary, and as its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mithridate.aggregates import (
    Aggregate,
    Scores,
    bootstrap,
    improvement,
    interquartile_mean,
)
from mithridate.envs import make_env
from mithridate.errors import UserError, unknown
from mithridate.evaluation.crossplay import CURVES, RECORDS, Evaluation
from mithridate.evaluation.kinds import heading_of
from mithridate.experiments.formats import CONTENTS
from mithridate.experiments.store import Store
from mithridate.files import read_text, shown
from mithridate.registry import ENVS
from mithridate.report.views import recorded
from mithridate.rng import Rng
from mithridate.rows import Row, Rows

OF_RECIPES: Mapping[str, type] = {"level": float, "level_budget": float, "plan": str}
"""What records of a store have besides: the recipe's level, and which of its runs asked for it."""


class Records(Rows):
    """A row for each agent, attacker and replication: `mean` is its mean score over tasks."""

    columns: Mapping[str, type] = {**RECORDS, **OF_RECIPES}

    @property
    def agents(self) -> list[str]:
        return list(dict.fromkeys(self.values("agent")))

    def where(self, **wanted: Any) -> Records:
        """Those whose columns have these values, e.g. `where(level=0.4, environment="bandit")`."""
        for name in wanted:
            if name not in self.columns:
                raise unknown("column", name, self.columns)
        return Records([r for r in self if all(r[n] == value for n, value in wanted.items())])

    def better(self) -> Literal["lower", "higher"]:
        """Whether lower or higher scores are better."""
        names = set(self.values("environment"))
        if len(names) != 1:
            raise UserError(
                f"these are records of {len(names)} environments, whose scores cannot be "
                "compared: choose one with where(environment=…)"
            )
        name = names.pop()
        if name not in ENVS.names():
            raise unknown("environment", name, ENVS.names())
        return make_env(name).spec.metric.better

    def rliable(
        self, columns: Sequence[str] | str | None = None, *, more_is_better: bool = False
    ) -> dict[str, Scores]:
        """The dictionary that rliable takes: for each agent its scores, (replications, columns).

        `columns`: of the attacks, as in `values("column")`; without it, those that every agent
        has, level by level. rliable takes more for better: with `more_is_better`, scores of which
        less is better are negative.
        """
        sign = -1.0 if more_is_better and self.better() == "lower" else 1.0
        return {agent: sign * scores for agent, scores in self._matrices(columns).items()}

    def _matrices(self, columns: Sequence[str] | str | None) -> dict[str, Scores]:
        self.better()
        chosen = [columns] if isinstance(columns, str) else columns
        for column in chosen or ():
            if column not in self.values("column"):
                raise unknown("column", column, set(self.values("column")))
        found: dict[str, dict[tuple[Any, ...], dict[int, float]]] = {}
        for r in self:
            if chosen is None or r["column"] in chosen:
                key = (r["column"], r["level"], r["level_budget"], r["plan"])
                found.setdefault(r["agent"], {}).setdefault(key, {})[r["replication"]] = r["mean"]
        common = [k for k in next(iter(found.values()), {}) if all(k in f for f in found.values())]
        if not common:
            raise UserError("these agents have no column in common: choose some with where(…)")
        matrices = {}
        for agent, by_key in found.items():
            runs = set.intersection(*(set(by_key[key]) for key in common))
            if not runs:
                raise UserError(f"agent '{shown(agent)}' has no replication in all columns")
            matrices[agent] = np.array([[by_key[k][r] for k in common] for r in sorted(runs)])
        return matrices

    def interquartile_means(
        self, columns: Sequence[str] | str | None = None, *, seed: int = 0
    ) -> dict[str, Aggregate]:
        """For each agent the interquartile mean over replications and columns, with its interval
        by the stratified bootstrap."""
        return {
            agent: bootstrap(interquartile_mean, scores, rng=Rng(seed).child("iqm", agent))
            for agent, scores in self._matrices(columns).items()
        }

    def probability_of_improvement(
        self,
        agent: str,
        other: str,
        columns: Sequence[str] | str | None = None,
        *,
        seed: int = 0,
    ) -> Aggregate:
        """How probable it is that a replication of `agent` is better than one of `other`, mean
        over the columns that both have, with its interval."""
        for name in (agent, other):
            if name not in self.agents:
                raise unknown("agent", name, self.agents)
        pair = Records([r for r in self if r["agent"] in (agent, other)])
        scores, better = pair._matrices(columns), pair.better()
        return improvement(scores[agent], scores[other], better, Rng(seed).child(agent, other))


def read_records(source: Store | Path | str | Evaluation) -> Records:
    """The records of a store, of a file of records (JSON lines), or of an evaluation."""
    if isinstance(source, Evaluation):
        return Records(source.rows())
    if not isinstance(source, Store) and Path(source).is_file():
        return Records(_of_file(Path(source)))
    store = _store(source)
    rows: list[Row] = []
    for name, graph in store.graphs().items():
        found = recorded(store, graph)
        rows += [{**r, "plan": name, "column": str(heading_of(r))} for _, r in found]
    return Records(rows)


def read_curves(source: Store | Path | str | Evaluation) -> Rows:
    """The score over time: a row for each agent, attacker, replication and step."""
    if isinstance(source, Evaluation):
        return source.curve_rows()
    columns = {**CURVES, **OF_RECIPES}
    store = _store(source)
    rows: list[Row] = []
    for name, graph in store.graphs().items():
        for artifact, record in recorded(store, graph):
            points = artifact.content("curve.json")
            if points is not None:
                about = {**record, "plan": name, "column": str(heading_of(record))}
                pairs = zip(points.step, points.mean, strict=True)
                rows += [
                    {**about, "step": step, "mean": mean, "ci95": None} for step, mean in pairs
                ]
    return Rows(rows, columns)


def _store(source: Store | Path | str) -> Store:
    store = source if isinstance(source, Store) else Store.find(source)
    if store is None:
        raise UserError(f"there is no store at {shown(source)}")
    return store


def _of_file(path: Path) -> list[Row]:
    try:
        found = CONTENTS["records.jsonl"](read_text(path, "file of records"))
    except ValueError as error:
        raise UserError(f"file of records {shown(path)} is damaged: {error}") from None
    return [{**record, "column": str(heading_of(record))} for record in found]
