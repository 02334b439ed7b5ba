"""What a report says, as plain data: a pure function of the store."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mithridate.aggregates import Aggregate, bootstrap, improvement, interquartile_mean
from mithridate.capabilities import Picture
from mithridate.config import EnvConfig
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.cells import Cells, best_other, paired_difference
from mithridate.evaluation.episode import picture_of
from mithridate.evaluation.flags import Flag, flags
from mithridate.evaluation.kinds import Heading, heading_of
from mithridate.experiments.artifacts import Artifact
from mithridate.experiments.formats import About, Graph
from mithridate.experiments.recipes import RECIPES, Level, Recipe
from mithridate.experiments.store import Store
from mithridate.report.figures import training_lines
from mithridate.report.paper import colour_range, orange, paper_value
from mithridate.rng import Rng
from mithridate.settings import parse
from mithridate.stage_config import EvaluateConfig
from mithridate.types import Metric

ORACLES = ("posterior_oracle", "oracle")
"""Agents that know the attack, or the task: a limit for the others."""
Verdict = Literal["agrees", "better", "worse"]


@dataclass(frozen=True)
class CellView:
    """One cell of a table."""

    victim: str
    column: str
    mean: float | None
    ci95: float | None
    paper: tuple[float, float] | None
    share: float
    """Of orange; the more the better."""
    verdict: Verdict | None
    replications: int

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper[0]


@dataclass(frozen=True)
class AggregateView:
    """A victim over all columns of a table."""

    victim: str
    replications: int
    mean: Aggregate
    """Interquartile mean over replications and columns."""
    improvement: Aggregate | None
    """How probable it is that the table's first victim is better; None for itself."""


@dataclass(frozen=True)
class TableView:
    level: Level
    headings: list[Heading]
    rows: list[tuple[str, list[CellView]]]
    worst: dict[str, tuple[str, float] | None]
    paired: list[tuple[str, str, str, float, float | None]]
    """Column, victim, best other, difference, interval."""
    flags: list[Flag]
    aggregates: list[AggregateView]

    @property
    def columns(self) -> list[str]:
        return [str(heading) for heading in self.headings]

    def title(self, column: str) -> str:
        return next((h.title for h in self.headings if str(h) == column), column)

    def cells(self) -> list[CellView]:
        return [cell for _, row in self.rows for cell in row]


@dataclass(frozen=True)
class CurveView:
    title: str
    xlabel: str
    ylabel: str
    lines: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class SectionView:
    """One recipe as it stands in the store."""

    name: str
    recipe: Recipe
    preset: str
    replications: int
    seed: int
    done: int
    total: int
    seconds: float
    metric: Metric
    tables: list[TableView]
    curves: list[CurveView]
    pictures: list[Picture]
    stages: list[dict[str, Any]]
    records: list[dict[str, Any]]
    sets: list[str]

    def verdicts(self) -> dict[str, int]:
        counts = {"agrees": 0, "better": 0, "worse": 0}
        for table in self.tables:
            for cell in table.cells():
                if cell.verdict is not None:
                    counts[cell.verdict] += 1
        return counts

    def title(self, column: str) -> str:
        """Of a column, in whichever table it is."""
        return next((t.title(column) for t in self.tables if column in t.columns), column)

    def ratios(self) -> list[tuple[str, float, str, Level]]:
        """Of each victim that has all of the section's cells, the worst ratio to the oracle, its
        column and level; the best victim first. Only with an oracle, and if less is better."""
        oracle = next((row.label for row in self.recipe.rows if row.agent in ORACLES), None)
        if oracle is None or self.metric.better != "lower":
            return []
        means = {
            (c.victim, c.column, t.level): c.mean for t in self.tables for c in t.cells() if c.mean
        }
        places = [(column, t.level) for t in self.tables for column in t.columns]
        found = []
        for row in self.recipe.rows:
            both = [(means.get((row.label, *p)), means.get((oracle, *p)), p) for p in places]
            ratios = [(mine / limit, place) for mine, limit, place in both if mine and limit]
            if row.label != oracle and len(ratios) == len(places):
                worst, (column, level) = max(ratios, key=lambda pair: pair[0])
                found.append((row.label, worst, column, level))
        return sorted(found, key=lambda entry: entry[1])


def summarise(store: Store) -> list[SectionView]:
    """A section for every recipe that was asked for, finished or not. A UserError if what was asked
    for cannot be read: a report that leaves something out should not look complete."""
    return [
        _section(store, RECIPES[graph.recipe], graph)
        for graph in store.graphs().values()
        if graph.recipe in RECIPES
    ]


def omissions(store: Store) -> list[str]:
    """What the report of a store has to say about what is not in it; after `summarise`."""
    found = [
        f"{name} was asked for with the recipe '{graph.recipe}', which this version does not know; "
        "it is left out"
        for name, graph in store.graphs().items()
        if graph.recipe not in RECIPES
    ]
    if store.problems:
        some = ", ".join(sorted(store.problems)[:3])
        more = ", …" if len(store.problems) > 3 else ""
        are = "artifact is" if len(store.problems) == 1 else "artifacts are"
        found.append(
            f"{len(store.problems)} {are} damaged and left out ({some}{more}): see "
            "`mithridate store verify`; `mithridate reproduce` computes them again"
        )
    return found


def _environment(recipe: Recipe, graph: Graph) -> EnvConfig:
    """The one that everybody is measured in."""
    measured = next((s for s in graph.stages if s.name in graph.cells), graph.stages[0])
    try:
        env = parse(EvaluateConfig, {"env": measured.config.get("env")}).env
        if env.name != recipe.environment:
            raise UserError(f"the recipe has the environment {recipe.environment}")
    except UserError as error:
        raise UserError(f"graph {graph.name} is damaged: {error}; move it away") from None
    return env


def _section(store: Store, recipe: Recipe, graph: Graph) -> SectionView:
    described = {stage.name: stage for stage in graph.stages}
    artifacts = {name: a for name in described if (a := store.get(name)) is not None}
    pairs = recorded(store, graph)
    cells = list({artifact.name: artifact for artifact, _ in pairs}.values())
    records = [record for _, record in pairs]
    env = _environment(recipe, graph)
    metric = make_env(recipe.environment).spec.metric
    stages = [
        {**stage.model_dump(), "seconds": artifacts[name].seconds if name in artifacts else None,
         "shipped": name in artifacts and artifacts[name].manifest.shipped}
        for name, stage in described.items()
    ]  # fmt: skip
    tables = [_table(recipe, env, metric, level, records, graph) for level in recipe.levels]
    return SectionView(
        name=graph.name, sets=graph.sets, recipe=recipe, preset=graph.preset,
        replications=graph.replications,
        seed=graph.seed, done=len(artifacts), total=len(described),
        seconds=sum(a.seconds for a in artifacts.values()), metric=metric, tables=tables,
        curves=_curves(recipe, metric, cells, artifacts, graph), stages=stages, records=records,
        pictures=[
            picture_of(room.model_dump()) for name in graph.pictures
            if name in artifacts and (room := artifacts[name].content("room.json"))
        ],
    )  # fmt: skip


def recorded(store: Store, graph: Graph) -> list[tuple[Artifact, dict[str, Any]]]:
    """The cells of a graph that are there, and their records as answers to it."""
    abouts = {stage.name: stage.about for stage in graph.stages}
    return [
        (artifact, _asked(record, abouts[name]))
        for name in graph.cells
        if (artifact := store.get(name)) is not None
        for record in artifact.records()
    ]


def _asked(record: dict[str, Any], about: About | None) -> dict[str, Any]:
    """The record as an answer to this graph: another may have asked for the same cell under the
    name of another kind."""
    return record if about is None else {**record, "kind": about.kind or record["kind"]}


def _columns(recipe: Recipe, level: Level, graph: Graph) -> list[Heading]:
    """Those of the recipe. Some attackers are there only if a model was kept with them: nobody may
    have asked for their columns."""
    asked = {
        (about.kind, about.who)
        for stage in graph.stages
        if stage.kind == "evaluate" and (about := stage.about) is not None
        if (about.eps, about.budget) == (level.eps, level.budget)
    }
    return [
        heading
        for heading in recipe.columns(level)
        if not heading.described.with_model or (heading.kind, heading.of) in asked
    ]


def _table(
    recipe: Recipe,
    env: EnvConfig,
    metric: Metric,
    level: Level,
    records: Sequence[dict[str, Any]],
    graph: Graph,
) -> TableView:
    victims = recipe.victims(level, graph.preset, graph.replications)
    labels = list(dict.fromkeys(row.label for row, _ in victims))
    here = [
        r for r in records
        if r["level"] == level.eps and r.get("level_budget") in (None, level.budget)
    ]  # fmt: skip
    cells = Cells(here, metric.better)
    order = sorted(_columns(recipe, level, graph), key=lambda heading: heading.order)
    rows = [
        (label, [_cell(env, cells, label, heading, level, recipe.table) for heading in order])
        for label in labels
    ]
    first, oracle = recipe.rows[0].label, [r.label for r in recipe.rows if r.agent in ORACLES]
    paired = []
    for column in map(str, order):
        other = best_other(cells, first, column, leave_out=oracle)
        difference = paired_difference(cells, first, other, column) if other else None
        if other and difference:
            ci95 = None if math.isnan(difference[1]) else difference[1]
            paired.append((column, first, other, difference[0], ci95))
    return TableView(
        level, order, rows, {label: cells.worst(label) for label in labels}, paired,
        flags(cells), _aggregates(cells, labels, [str(heading) for heading in order]),
    )  # fmt: skip


def _aggregates(cells: Cells, labels: Sequence[str], columns: Sequence[str]) -> list[AggregateView]:
    """Of the victims that have all columns, if the first has, and there is anything to sum up."""
    found = {v: s for v in labels if (s := cells.scores(v, columns)) is not None}
    first = found.get(labels[0]) if labels else None
    if first is None or len(found) < 2 or len(columns) < 2:
        return []
    luck = Rng(0).child("aggregates")
    return [
        AggregateView(
            victim, len(scores),
            bootstrap(interquartile_mean, scores, rng=luck.child("mean", victim)),
            None if victim == labels[0]
            else improvement(first, scores, cells.better, luck.child("improvement", victim)),
        )
        for victim, scores in found.items()
    ]  # fmt: skip


def _cell(
    env: EnvConfig, cells: Cells, victim: str, heading: Heading, level: Level, table: str | None
) -> CellView:
    column = str(heading)
    found = cells.cell(victim, column)
    paper = paper_value(
        env, victim, heading, eps=level.eps, budget=level.budget, table=table or "none"
    )
    if found is None:
        return CellView(victim, column, None, None, paper, 0.0, None, 0)
    mean, ci95 = found
    return CellView(
        victim, column, mean, None if math.isnan(ci95) else ci95, paper,
        _share(env, cells, heading, mean), _verdict(cells, found, paper),
        len(cells.means(victim, column)),
    )  # fmt: skip


def _share(env: EnvConfig, cells: Cells, heading: Heading, value: float) -> float:
    """On the paper's scale, or, for what the paper does not have, on that of the column."""
    scale = colour_range(env, heading)
    if scale is None:
        known = [cell[0] for v in cells.victims if (cell := cells.cell(v, str(heading)))]
        scale = _without_outliers(known)
    return orange(value, scale, lower_is_better=cells.better == "lower")


def _without_outliers(values: list[float]) -> tuple[float, float]:
    """From the least to the greatest. One that is far from all others (Tukey's fences) would make
    the others look alike, so it does not count."""
    if len(values) > 3:
        first, _, third = statistics.quantiles(values, method="inclusive")
        reach = 1.5 * (third - first)
        values = [v for v in values if first - reach <= v <= third + reach]
    return min(values), max(values)


def _verdict(
    cells: Cells, ours: tuple[float, float], paper: tuple[float, float] | None
) -> Verdict | None:
    """Agrees if within both intervals or 10 %; otherwise better or worse for the victim."""
    if paper is None:
        return None
    margin = max((0.0 if math.isnan(ours[1]) else ours[1]) + paper[1], 0.1 * abs(paper[0]))
    if abs(ours[0] - paper[0]) <= margin:
        return "agrees"
    return "worse" if cells.worse(ours[0], paper[0]) else "better"


def _curves(
    recipe: Recipe,
    metric: Metric,
    cells: Sequence[Artifact],
    artifacts: dict[str, Artifact],
    graph: Graph,
) -> list[CurveView]:
    found = []
    abouts = {stage.name: stage.about for stage in graph.stages if stage.about is not None}
    groups: dict[str, list[Artifact]] = {}
    for name in graph.trainings:
        if name in artifacts and (about := abouts.get(name)):
            label = f"train {about.who}, {Level(about.eps, about.budget)}"
            groups.setdefault(label, []).append(artifacts[name])
    for label, trainings in groups.items():
        if lines := _training_lines(trainings):
            title = f"Per round of adversarial training: {label}"
            found.append(CurveView(title, "round", metric.name, lines))
    for level, targets in _attack_lines(abouts, artifacts).items():
        found.append(CurveView(f"Per round of attack: {level}", "round", metric.name, targets))
    return found + _cell_curves(recipe, metric, cells, abouts)


def _cell_curves(
    recipe: Recipe, metric: Metric, cells: Sequence[Artifact], abouts: dict[str, About]
) -> list[CurveView]:
    """The score over time, one chart for each column."""
    found = []
    by_column: dict[str, dict[str, list[list[tuple[float, float]]]]] = {}
    for artifact in cells:
        record = _asked(artifact.records()[0], abouts.get(artifact.name))
        points = artifact.content("curve.json")
        if points is None:
            continue
        line = list(zip(points.step, points.mean, strict=True))
        heading = heading_of(record)
        column = "no attack" if heading.kind == "clean" else str(heading).replace("_", " ")
        if len(recipe.levels) > 1:
            column += f", {Level(record['level'], record.get('level_budget') or 0.0)}"
        by_column.setdefault(column, {}).setdefault(record["agent"], []).append(line)
    for column, victims in by_column.items():
        title = f"{metric.name} over time: {column}"
        averaged = {victim: _average(lines) for victim, lines in victims.items()}
        found.append(CurveView(title, "step", metric.name, averaged))
    return found


def _training_lines(trainings: Sequence[Artifact]) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[list[tuple[float, float]]]] = {}
    for artifact in trainings:
        for label, points in training_lines(artifact.log()).items():
            lines.setdefault(label, []).append(points)
    return {label: _average(found) for label, found in lines.items()}


def _attack_lines(
    abouts: dict[str, About], artifacts: dict[str, Artifact]
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """What attackers made of their targets, round by round: by level, then by target."""
    lines: dict[str, dict[str, list[list[tuple[float, float]]]]] = {}
    for name, about in abouts.items():
        if name not in artifacts or artifacts[name].manifest.kind != "attack" or not about.kind:
            continue
        kind = Heading(about.kind, about.who).described
        if kind.curves:
            points = training_lines(artifacts[name].log()).get("target", [])
            at_level = lines.setdefault(str(Level(about.eps, about.budget)), {})
            at_level.setdefault(kind.line(about.who), []).append(points)
    return {
        level: {who: _average(found) for who, found in targets.items()}
        for level, targets in lines.items()
    }


def _average(lines: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Point by point, over the replications that have the point."""
    values: dict[float, list[float]] = {}
    for line in lines:
        for x, y in line:
            values.setdefault(x, []).append(y)
    return [(x, sum(ys) / len(ys)) for x, ys in sorted(values.items())]
