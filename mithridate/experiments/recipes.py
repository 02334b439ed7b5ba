"""Recipes: each table and figure of the paper as data, and the graph of stages it stands for.

A recipe names victims (registered agents, or models that are trained for it), attackers, and
contamination levels. From these, a preset and a number of replications follow all stages:
pretraining → adversarial training → attackers → one evaluation per victim, attacker, level and
replication. Victim r meets the attackers of replication r + 1, on their tasks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mithridate.config import (
    PRESETS,
    AdversarialConfig,
    AttackConfig,
    Config,
    EvaluateConfig,
    PretrainConfig,
    resolve,
)
from mithridate.errors import UserError, unknown
from mithridate.experiments.stages import Stage, in_order

MODELS = ("dpt", "at-dpt")
OWNED = (
    "env", "seed", "eps", "budget", "start", "start_sha256", "target", "target_sha256", "attackers",
    "replications", "cell",
)  # fmt: skip
"""Settings that follow from the recipe, the replication and the level."""
STAGES: dict[str, type[Config]] = {
    "pretrain": PretrainConfig, "train": AdversarialConfig, "attack": AttackConfig,
    "evaluate": EvaluateConfig,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A victim: its label in the paper, and a registered agent or one of MODELS. '{eps}' stands
    for the contamination level."""

    label: str
    agent: str

    @property
    def is_model(self) -> bool:
        return self.agent in MODELS


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    environment: str
    rows: tuple[Row, ...]
    static: tuple[str, ...]
    """Attackers that do not learn; none is the clean column."""
    targets: tuple[str, ...]
    """Labels of the rows that attackers are trained against."""
    table: str | None = None
    """The paper's table that this answers."""
    figure: str | None = None
    """What the training curves show, if they are the point."""
    levels: tuple[float, ...] = (0.4,)
    """Contamination levels eps."""
    budget: float = 3.0
    replications: Mapping[str, int] = field(
        default_factory=lambda: {"smoke": 2, "laptop": 3, "paper": 10}
    )

    def __post_init__(self) -> None:
        labels = {row.label for row in self.rows}
        missing = set(self.targets) - labels
        if missing:
            raise ValueError(f"recipe {self.name}: targets {missing} are not among the rows")


BANDIT_ROWS = (
    Row("AT-DPT", "at-dpt"),
    Row("DPT", "dpt"),
    Row("TS", "ts"),
    Row("RTS", "rts"),
    Row("UCB1.0", "ucb1"),
    Row("crUCB", "crucb(alpha={eps})"),
    Row("posterior oracle", "posterior_oracle"),
)
STRUCTURED = ("raise_worst", "lower_best", "swap")

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="bandit_main",
            title="Bandit: cumulative regret under attack, eps = 0.4",
            environment="bandit",
            rows=BANDIT_ROWS,
            static=("none", "uniform", *STRUCTURED),
            targets=("AT-DPT", "DPT", "TS", "RTS", "UCB1.0", "crUCB"),
            table="bandit_main",
        ),
        Recipe(
            name="bandit_training",
            title="Bandit: regret per round of adversarial training, eps = 0.4",
            environment="bandit",
            rows=(Row("AT-DPT", "at-dpt"),),
            static=("none",),
            targets=(),
            figure="regret per round of adversarial training",
        ),
    )
}


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown("recipe", name, [*RECIPES, "all"])
    return RECIPES[name]


@dataclass(frozen=True)
class Plan:
    """A recipe with everything decided."""

    recipe: Recipe
    preset: str
    replications: int
    seed: int
    cells: tuple[Stage, ...]
    """The evaluations."""
    trainings: tuple[Stage, ...]
    """The adversarial trainings, whose logs make the training curves."""
    sets: tuple[str, ...] = ()
    """Settings that were overridden."""

    @property
    def name(self) -> str:
        """Tells apart what was asked for: another seed or setting is another plan."""
        name = f"{self.recipe.name}-{self.preset}-{self.replications}x-s{self.seed}"
        if not self.sets:
            return name
        return f"{name}-{hashlib.sha256(json.dumps(self.sets).encode()).hexdigest()[:6]}"

    def stages(self) -> list[Stage]:
        return in_order([*self.trainings, *self.cells])

    def describe(self) -> dict[str, Any]:
        """What reports and `gc` need to know."""
        return {
            "name": self.name, "recipe": self.recipe.name, "preset": self.preset,
            "seed": self.seed, "sets": list(self.sets),
            "replications": self.replications,
            "stages": [stage.describe() for stage in self.stages()],
            "cells": [stage.name for stage in self.cells],
            "trainings": [stage.name for stage in self.trainings],
        }  # fmt: skip


def plan(
    recipe: Recipe,
    preset: str = "laptop",
    replications: int | None = None,
    seed: int = 0,
    sets: Sequence[str] = (),
) -> Plan:
    """The stages of a recipe. `sets`: 'STAGE.KEY=VALUE', e.g. pretrain.steps=8000."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    count = recipe.replications[preset] if replications is None else replications
    if count < 1:
        raise UserError("--replications must be at least 1")
    build = _Builder(recipe, preset, seed, _by_stage(sets))
    cells = tuple(
        build.cell(row, column, eps, r, count)
        for eps in recipe.levels
        for column in (*recipe.static, *(f"learned({target})" for target in recipe.targets))
        for row in recipe.rows
        for r in range(count)
    )
    trainings = tuple(
        build.model(row.agent, eps, r)
        for eps in recipe.levels
        for row in recipe.rows
        if row.agent == "at-dpt"
        for r in range(count)
    )
    return Plan(recipe, preset, count, seed, cells, trainings, tuple(sorted(sets)))


def _by_stage(sets: Sequence[str]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {kind: [] for kind in STAGES}
    for text in sets:
        kind, dot, rest = text.partition(".")
        if not dot or kind not in STAGES:
            raise UserError(
                f"--set '{text}': begin with the stage, one of {', '.join(STAGES)}, "
                "e.g. pretrain.optimiser.learning_rate=0.0003"
            )
        field = re.split(r"[.=]", rest)[0]
        if field in OWNED:
            raise UserError(f"--set '{text}': {field} is the recipe's own; it cannot be overridden")
        result[kind].append(rest)
    return result


class _Builder:
    """Makes stages; equal ones have equal names, so sharing needs no bookkeeping."""

    def __init__(self, recipe: Recipe, preset: str, seed: int, sets: dict[str, list[str]]) -> None:
        self.recipe, self.preset, self.seed, self.sets = recipe, preset, seed, sets
        self._made: dict[tuple[Any, ...], Stage] = {}

    def _config(self, kind: str, **direct: Any) -> dict[str, Any]:
        return resolve(
            STAGES[kind], kind, self.recipe.environment, self.preset, self.sets[kind], **direct  # type: ignore[arg-type]
        ).to_json()  # fmt: skip

    def model(self, agent: str, eps: float, replication: int) -> Stage:
        key = ("model", agent, eps if agent == "at-dpt" else None, replication)
        if key not in self._made:
            self._made[key] = self._model(agent, eps, replication)
        return self._made[key]

    def _model(self, agent: str, eps: float, replication: int) -> Stage:
        seed = self.seed + replication
        if agent == "dpt":
            config = self._config("pretrain", seed=seed)
            return Stage("pretrain", f"pretrain DPT #{replication + 1}", config)
        start = self.model("dpt", eps, replication)
        config = self._config(
            "train", seed=seed, start="(input)", eps=eps, budget=self.recipe.budget
        )
        label = f"train AT-DPT #{replication + 1}, eps {eps:g}"
        return Stage("train", label, config, {"start": start})

    def attack(self, row: Row, eps: float, replication: int) -> Stage:
        key = ("attack", row.label, eps, replication)
        if key not in self._made:
            inputs = {"target": self.model(row.agent, eps, replication)} if row.is_model else {}
            target = "(input)" if row.is_model else row.agent.format(eps=eps)
            config = self._config(
                "attack", seed=self.seed + replication, target=target, eps=eps,
                budget=self.recipe.budget,
            )  # fmt: skip
            label = f"attack {row.label} #{replication + 1}, eps {eps:g}"
            self._made[key] = Stage("attack", label, config, inputs)
        return self._made[key]

    def cell(self, row: Row, column: str, eps: float, replication: int, count: int) -> Stage:
        inputs: dict[str, Stage] = {}
        if row.is_model:
            inputs["victim"] = self.model(row.agent, eps, replication)
        target = column.removeprefix("learned(").removesuffix(")") if "(" in column else None
        if target is not None:
            target_row = next(r for r in self.recipe.rows if r.label == target)
            inputs["attack"] = self.attack(target_row, eps, (replication + 1) % count)
        config = self._config("evaluate", seed=self.seed, eps=eps, budget=self.recipe.budget)
        for unused in ("attackers", "replications", "rounds"):  # the attack stage has its own
            del config[unused]
        config["cell"] = {
            "label": row.label, "replication": replication, "target": target,
            "victim": "(input)" if row.is_model else row.agent.format(eps=eps),
            "attacker": "none" if target is not None else column,
        }  # fmt: skip
        label = f"{row.label} / {column} #{replication + 1}, eps {eps:g}"
        return Stage("evaluate", label, config, inputs)
