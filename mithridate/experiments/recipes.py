"""Recipes: each table and figure of the paper as data, and the graph of stages it stands for.

A recipe names victims (registered agents, or models that are trained for it), attackers, and
levels of contamination and budget. From these, a preset and a number of replications follow all
stages: pretraining → adversarial training → attackers → one evaluation per victim, attacker, level
and replication. Victim r meets the attackers of replication r + 1, on their tasks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mithridate.config import (
    PRESETS,
    AdversarialConfig,
    AttackConfig,
    Config,
    DistillConfig,
    EvaluateConfig,
    PretrainConfig,
    resolve,
)
from mithridate.errors import UserError, unknown
from mithridate.experiments.stages import Stage, in_order

OWNED = (
    "env", "seed", "eps", "budget", "start", "start_sha256", "target", "target_sha256", "attackers",
    "replications", "cell", "source", "source_sha256",
)  # fmt: skip
"""Settings that follow from the recipe, the replication and the level."""
STAGES: dict[str, type[Config]] = {
    "pretrain": PretrainConfig, "distill": DistillConfig, "train": AdversarialConfig,
    "attack": AttackConfig, "evaluate": EvaluateConfig,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model that is trained for a recipe: by which kind of stage, and what differs there from
    the preset. A training starts from the DPT of the same replication, at the level's eps and
    budget, unless the settings say otherwise."""

    kind: Literal["pretrain", "distill", "train"]
    settings: Mapping[str, Any] = field(default_factory=dict)


CLEAN = {"attacker": "none", "share": 0.2}
MODELS: dict[str, Model] = {
    "dpt": Model("pretrain"),
    "at-dpt": Model("train"),
    **{f"at-dpt-sub{n}": Model("train", {"suboptimal": n / 100}) for n in (10, 20, 30)},
    # The paper's variant knows nothing but the random attack, so there is nothing synthetic here.
    "at-dpt-random": Model(
        "train",
        {
            "threats": [{"attacker": "uniform", "share": 0.8}, CLEAN],
            "synthetic": {"rounds": 0, "share": 0.0},
        },
    ),
    "at-dpt-b1": Model("train", {"budget": 1.0}),
    "at-dpt-adaptive": Model("train", {"threats": [{"attacker": "adaptive", "share": 0.8}, CLEAN]}),
    "at-dpt-mixture": Model(
        "train",
        {
            "eps": 0.4,
            "budget": 3.0,
            "threats": [
                {"share": 0.25},
                CLEAN,
                {"target": "crucb(alpha={eps})", "share": 0.1},
                {"eps": 0.2, "share": 0.1},
                {"eps": 0.1, "share": 0.1},
                {"budget": 1.0, "share": 0.05},
                {"budget": 5.0, "share": 0.05},
                {"attacker": "adaptive", "share": 0.25},
            ],
        },
    ),
    # Trained at one level, whatever level they are tested at.
    "at-dpt-fixed": Model("train", {"eps": 0.4, "budget": 3.0}),
    "at-dpt-adaptive-fixed": Model(
        "train",
        {
            "eps": 0.4,
            "budget": 3.0,
            "threats": [{"attacker": "adaptive", "share": 0.8}, CLEAN],
        },
    ),
    "ad-ts": Model("distill", {"source": "ts"}),
    "ad-crucb": Model("distill", {"source": "crucb(alpha={eps})"}),
    "ad-crucb-corrupted": Model("distill", {"source": "crucb(alpha={eps})", "attacker": "uniform"}),
}


@dataclass(frozen=True)
class Row:
    """A victim: its label in the paper, and a registered agent or one of MODELS. '{eps}' and
    '{budget}' stand for those of the level."""

    label: str
    agent: str
    brief: bool = False
    """Outside the paper preset, a single replication at the recipe's last level is enough."""
    only: float | None = None
    """The one contamination level that the paper has it at."""

    @property
    def is_model(self) -> bool:
        return self.agent in MODELS


@dataclass(frozen=True)
class Level:
    eps: float = 0.4
    budget: float = 3.0

    def fill(self, text: str) -> str:
        return text.format(eps=f"{self.eps:g}", budget=f"{self.budget:g}")

    def __str__(self) -> str:
        return f"eps {self.eps:g}, B {self.budget:g}"


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
    adaptive: tuple[str, ...] = ()
    """Labels of the rows that adaptive attackers are trained against."""
    adaptive_rounds: Mapping[str, int] = field(
        default_factory=lambda: {"smoke": 3, "laptop": 100, "paper": 400}
    )
    table: str | None = None
    """The paper's table that this answers."""
    figure: str | None = None
    """What the training curves show, if they are the point."""
    levels: tuple[Level, ...] = (Level(),)
    replications: Mapping[str, int] = field(
        default_factory=lambda: {"smoke": 2, "laptop": 3, "paper": 10}
    )

    def __post_init__(self) -> None:
        labels = {row.label for row in self.rows}
        missing = {*self.targets, *self.adaptive} - labels
        if missing:
            raise ValueError(f"recipe {self.name}: targets {missing} are not among the rows")

    def victims(self, level: Level, preset: str, count: int) -> Iterator[tuple[Row, int]]:
        """The rows of the table at a level, each with its replications."""
        for row in self.rows:
            if row.only in (None, level.eps):
                if not row.brief or preset == "paper":
                    yield from ((row, r) for r in range(count))
                elif level == self.levels[-1]:
                    yield row, 0

    def columns(self) -> list[str]:
        learned = [f"learned({target})" for target in self.targets]
        return [*self.static, *learned, *(f"adaptive({target})" for target in self.adaptive)]


AT_DPT = Row("AT-DPT", "at-dpt")
DPT = Row("DPT", "dpt")
CLASSICAL = (
    Row("TS", "ts"),
    Row("RTS", "rts"),
    Row("UCB1.0", "ucb1"),
    Row("crUCB", "crucb(alpha={eps})"),
)
ORACLE = Row("posterior oracle", "posterior_oracle")
STRUCTURED = ("raise_worst", "lower_best", "swap")
MAIN = ("AT-DPT", "DPT", "TS", "RTS", "UCB1.0", "crUCB")

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="bandit_main",
            title="Bandit: cumulative regret under attack, eps = 0.4",
            environment="bandit",
            rows=(AT_DPT, DPT, *CLASSICAL, ORACLE),
            static=("none", "uniform", *STRUCTURED),
            targets=MAIN,
            table="bandit_main",
        ),
        Recipe(
            name="bandit_training",
            title="Bandit: regret per round of adversarial training, eps = 0.4",
            environment="bandit",
            rows=(AT_DPT,),
            static=("none",),
            targets=(),
            figure="regret per round of adversarial training",
        ),
        Recipe(
            name="bandit_full",
            title="Bandit: all contamination levels and variants",
            environment="bandit",
            rows=(
                AT_DPT,
                *(Row(f"AT-DPT (sub. {n}%)", f"at-dpt-sub{n}", brief=True) for n in (10, 20, 30)),
                Row("AT-DPT (rand.)", "at-dpt-random", brief=True),
                DPT,
                Row("AD [crUCB (m.)]", "ad-crucb", brief=True, only=0.4),
                Row("AD [crUCB (m.) c.]", "ad-crucb-corrupted", brief=True, only=0.4),
                Row("AD [TS]", "ad-ts", brief=True, only=0.4),
                Row("TS", "ts"),
                Row("RTS (C tuned)", "rts"),
                Row("RTS (C unk.)", "rts(level=unknown)"),
                Row("RTS (C known)", "rts(level=known,eps={eps},budget={budget})"),
                Row("UCB1.0", "ucb1"),
                Row("crUCB (orig.)", "crucb(variant=original,alpha={eps})"),
                Row("crUCB (low sigma0)", "crucb(variant=low,alpha={eps})"),
                Row("crUCB (mod.)", "crucb(alpha={eps})"),
                ORACLE,
            ),
            static=("none", "uniform", *STRUCTURED),
            targets=(
                "AT-DPT",
                "DPT",
                "TS",
                "RTS (C tuned)",
                "UCB1.0",
                "crUCB (orig.)",
                "crUCB (low sigma0)",
                "crUCB (mod.)",
            ),
            table="bandit_full",
            levels=tuple(Level(eps) for eps in (0.1, 0.2, 0.4)),
        ),
        Recipe(
            name="bandit_budgets",
            title="Bandit: trained at B = 1, tested at B = 1, 3, 5",
            environment="bandit",
            rows=(Row("AT-DPT", "at-dpt-b1"), DPT, *CLASSICAL, ORACLE),
            static=("none", "uniform", *STRUCTURED),
            targets=MAIN,
            table="bandit_budgets",
            levels=tuple(Level(budget=b) for b in (1.0, 3.0, 5.0)),
            replications={"smoke": 2, "laptop": 1, "paper": 10},
        ),
        Recipe(
            name="bandit_adaptive",
            title="Bandit: adaptive and non-adaptive attackers",
            environment="bandit",
            rows=(
                Row("AT-DPT (A)", "at-dpt-adaptive"),
                Row("AT-DPT (n-A)", "at-dpt"),
                DPT,
                *CLASSICAL,
                ORACLE,
            ),
            static=("none", "uniform", *STRUCTURED),
            targets=("AT-DPT (n-A)", "TS"),
            adaptive=("AT-DPT (A)", "AT-DPT (n-A)", "TS"),
            table="bandit_adaptive_full",
            levels=tuple(Level(eps) for eps in (0.1, 0.2, 0.4)),
            replications={"smoke": 2, "laptop": 1, "paper": 10},
        ),
        Recipe(
            name="bandit_mixture",
            title="Bandit: one model for many attacks",
            environment="bandit",
            rows=(
                Row("AT-DPT (mixture)", "at-dpt-mixture"),
                Row("AT-DPT", "at-dpt-fixed"),
                Row("AT-DPT (A)", "at-dpt-adaptive-fixed"),
                DPT,
                Row("TS", "ts"),
                ORACLE,
            ),
            static=("none", "uniform", *STRUCTURED),
            targets=("AT-DPT (mixture)", "AT-DPT", "AT-DPT (A)", "DPT", "TS"),
            adaptive=("AT-DPT (mixture)", "AT-DPT", "AT-DPT (A)"),
            levels=tuple(Level(eps) for eps in (0.1, 0.2, 0.4)),
            replications={"smoke": 2, "laptop": 1, "paper": 10},
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
        build.cell(row, column, level, r, count)
        for level in recipe.levels
        for column in recipe.columns()
        for row, r in recipe.victims(level, preset, count)
    )
    trainings = tuple(
        build.model(row.agent, level, r)
        for level in recipe.levels
        for row, r in recipe.victims(level, preset, count)
        if row.is_model and MODELS[row.agent].kind == "train"
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

    def model(self, agent: str, level: Level, replication: int) -> Stage:
        key = ("model", agent, level, replication)
        if key not in self._made:
            self._made[key] = self._model(agent, level, replication)
        return self._made[key]

    def _model(self, agent: str, level: Level, replication: int) -> Stage:
        model, seed = MODELS[agent], self.seed + replication
        settings = {
            name: level.fill(value) if isinstance(value, str) else value
            for name, value in model.settings.items()
        }
        number = f"#{replication + 1}"
        if model.kind == "pretrain":
            config = self._config("pretrain", **{"seed": seed, **settings})
            return Stage("pretrain", f"pretrain {agent} {number}", config)
        settings = {"seed": seed, "eps": level.eps, "budget": level.budget, **settings}
        if model.kind == "distill":
            if "attacker" not in settings:  # then the level does not matter
                del settings["eps"], settings["budget"]
            return Stage(
                "distill", f"distill {agent} {number}", self._config("distill", **settings)
            )
        config = self._config("train", start="(input)", **settings)
        start = self.model("dpt", level, replication)
        return Stage("train", f"train {agent} {number}, {level}", config, {"start": start})

    def attack(self, row: Row, attacker: str, level: Level, replication: int) -> Stage:
        key = ("attack", attacker, row.label, level, replication)
        if key not in self._made:
            inputs = {"target": self.model(row.agent, level, replication)} if row.is_model else {}
            settings: dict[str, Any] = {
                "seed": self.seed + replication, "eps": level.eps, "budget": level.budget,
                "target": "(input)" if row.is_model else level.fill(row.agent),
            }  # fmt: skip
            if attacker == "adaptive":
                rounds = self.recipe.adaptive_rounds[self.preset]
                settings |= {"attacker": "adaptive", "rounds": rounds}
            label = f"{attacker} attack on {row.label} #{replication + 1}, {level}"
            self._made[key] = Stage("attack", label, self._config("attack", **settings), inputs)
        return self._made[key]

    def cell(self, row: Row, column: str, level: Level, replication: int, count: int) -> Stage:
        inputs: dict[str, Stage] = {}
        if row.is_model:
            inputs["victim"] = self.model(row.agent, level, replication)
        target = None
        if match := re.fullmatch(r"(learned|adaptive)\((.*)\)", column):
            kind, target = match[1], match[2]
            target_row = next(r for r in self.recipe.rows if r.label == target)
            inputs["attack"] = self.attack(target_row, kind, level, (replication + 1) % count)
        config = self._config("evaluate", seed=self.seed, eps=level.eps, budget=level.budget)
        for unused in ("attackers", "replications", "rounds"):  # the attack stage has its own
            del config[unused]
        config["cell"] = {
            "label": row.label, "replication": replication, "target": target,
            "victim": "(input)" if row.is_model else level.fill(row.agent),
            "attacker": "none" if target is not None else column,
        }  # fmt: skip
        label = f"{row.label} / {column} #{replication + 1}, {level}"
        return Stage("evaluate", label, config, inputs)
