"""From a recipe to its stages: which trainings, attackers and evaluations it stands for.

Equal stages have equal names, so recipes share what they have in common. Victim r meets the
attackers of replication r + 1, on their tasks; with a single replication those are its own, and the
report flags it. That goes for attackers that a model was trained along with, too: they come out of
its training. Attackers that were trained against the victim itself (`Recipe.own`) are of its own
replication: they are to be the worst for this very model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mithridate.envs import make_env
from mithridate.errors import UserError, unknown
from mithridate.evaluation.columns import attack_config
from mithridate.evaluation.kinds import ITSELF, Heading, fitting, named
from mithridate.experiments.formats import MANY_REPLICATIONS, About
from mithridate.experiments.recipes import MODELS, Level, Recipe, Row
from mithridate.experiments.rehearsal import try_stage
from mithridate.experiments.stages import CONFIGS, INPUT, Stage, in_order
from mithridate.files import shown
from mithridate.settings import PRESETS, parse, resolve
from mithridate.stage_config import EvaluateConfig

OWNED = (
    "env", "seed", "eps", "budget", "start", "start_sha256", "rival", "rival_sha256", "target",
    "target_sha256", "attackers", "replications", "cell", "source", "source_sha256", "preset",
)  # fmt: skip
"""Settings that follow from the recipe, the replication and the level."""
LARGEST_SEED = 2**53
MANY_CELLS = 1_000_000


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
    pictures: tuple[Stage, ...] = ()
    """Episodes to draw."""
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
        return in_order([*self.trainings, *self.cells, *self.pictures])

    def describe(self) -> dict[str, Any]:
        """What reports and `gc` need to know."""
        return {
            "name": self.name, "recipe": self.recipe.name, "preset": self.preset,
            "seed": self.seed, "sets": list(self.sets),
            "replications": self.replications,
            "stages": [stage.describe() for stage in self.stages()],
            "cells": [stage.name for stage in self.cells],
            "trainings": [stage.name for stage in self.trainings],
            "pictures": [stage.name for stage in self.pictures],
        }  # fmt: skip


def check_size(recipes: Sequence[Recipe], preset: str, replications: int | None) -> int:
    """How many evaluations these stand for; a UserError if they would not fit into memory, or there
    is no such preset."""
    if preset not in PRESETS:
        raise unknown("preset", shown(preset), PRESETS)
    if replications is not None and not 1 <= replications <= MANY_REPLICATIONS:
        raise UserError(
            f"--replications must be at least 1 and at most {MANY_REPLICATIONS}, "
            f"not {shown(replications)}"
        )
    found = 0
    for recipe in recipes:
        count = replications or recipe.replications[preset]
        for level in recipe.levels:
            found += sum(1 for _ in recipe.cells(level, preset, count))
    if found > MANY_CELLS:
        raise UserError(
            f"{found:,} evaluations are more than {MANY_CELLS:,}: lower --replications, or take "
            "one recipe at a time"
        )
    return found


def plan(
    recipe: Recipe,
    preset: str = "laptop",
    replications: int | None = None,
    seed: int = 0,
    sets: Sequence[str] = (),
) -> Plan:
    """The stages of a recipe. `sets`: 'STAGE.KEY=VALUE', e.g. pretrain.steps=8000. A UserError if
    one of them could not be run: an unknown attacker, an agent that does not fit, …"""
    check_size([recipe], preset, replications)
    count = recipe.replications[preset] if replications is None else replications
    if not 0 <= seed <= LARGEST_SEED:
        raise UserError(f"--seed must be from 0 to {LARGEST_SEED}, not {shown(seed)}")
    spec = make_env(recipe.environment).spec
    for kind in (*recipe.trained, *recipe.own):
        fitting(kind, spec)
    build = _Builder(recipe, preset, seed, _by_stage(sets))
    cells = tuple(
        build.cell(row, column, level, r, count)
        for level in recipe.levels
        for row, column, r in recipe.cells(level, preset, count)
    )
    trainings = tuple(
        build.model(row.agent, level, r)
        for level in recipe.levels
        for row, r in recipe.victims(level, preset, count)
        if row.is_model and MODELS[row.agent].kind == "train"
    )
    pictures = tuple(
        build.picture(next(r for r in recipe.rows if r.label == label), named(column), count)
        for label, column in recipe.pictures
    )
    # Replications differ in their seeds alone, so the first ones stand for all.
    first = [cell for cell in cells if cell.config["cell"]["replication"] == 0]
    for stage in in_order([*first, *pictures]):
        try_stage(stage)
    _check_columns(cells)
    return Plan(recipe, preset, count, seed, cells, trainings, pictures, tuple(sorted(sets)))


def _check_columns(cells: Sequence[Stage]) -> None:
    """Raise a UserError if two columns are the same attack under two names: nothing would tell
    their results apart."""
    seen: dict[str, Stage] = {}
    for cell in cells:
        other = seen.setdefault(cell.name, cell)
        if other.about != cell.about:
            raise UserError(f"'{cell.label}' and '{other.label}' are the same attack")


def _by_stage(sets: Sequence[str]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {kind: [] for kind in CONFIGS}
    for text in sets:
        if shown(text, len(text)) != text:
            raise UserError(f"--set '{shown(text)}': without line breaks and control characters")
        kind, dot, rest = text.partition(".")
        if not dot or kind not in CONFIGS:
            raise UserError(
                f"--set '{text}': begin with the stage, one of {', '.join(CONFIGS)}, "
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
        self._resolved: dict[str, dict[str, Any]] = {}

    def _config(self, kind: str, laptop: str = "laptop", /, **direct: Any) -> dict[str, Any]:
        """Resolved once for all seeds: a recipe has many replications. `laptop`: the preset in
        place of that one."""
        seed = direct.pop("seed", 0)
        preset = laptop if self.preset == "laptop" else self.preset
        key = json.dumps([kind, preset, direct], sort_keys=True)
        if key not in self._resolved:
            measuring = kind == "evaluate"
            env = self.recipe.testing_env if measuring else self.recipe.training_env
            sets = [f"env.{name}={json.dumps(value)}" for name, value in env.items()]
            self._resolved[key] = resolve(
                CONFIGS[kind], kind, self.recipe.environment, preset,  # type: ignore[arg-type]
                [*sets, *self.sets[kind]], **direct,
            ).to_json()  # fmt: skip
        return {**self._resolved[key], "seed": seed}

    def model(self, agent: str, level: Level, replication: int) -> Stage:
        key = ("model", agent, level, replication)
        if key not in self._made:
            self._made[key] = self._model(agent, level, replication)
        return self._made[key]

    def _model(self, agent: str, level: Level, replication: int) -> Stage:
        model, seed = MODELS[agent], self.seed + replication
        if self.preset == "paper" and model.paper is not None:
            model = model.paper
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
        at = Level(float(settings["eps"]), float(settings["budget"]))
        inputs = {"start": self.model(model.start, at, replication)}
        if model.rival is not None:
            inputs["rival"] = self.model(model.rival, at, replication)
        config = self._config("train", model.laptop, **dict.fromkeys(inputs, INPUT), **settings)
        about = _about(None, agent, at, replication)
        return Stage("train", f"train {agent} {number}, {at}", config, inputs, about)

    def _fewer(self, config: dict[str, Any], tasks: int | None) -> dict[str, Any]:
        """With so many tasks, where that is enough."""
        if tasks is None or self.preset == "paper":
            return config
        return {**config, "tasks": min(tasks, config["tasks"])}

    def evaluation(self, level: Level) -> dict[str, Any]:
        return self._config("evaluate", seed=self.seed, eps=level.eps, budget=level.budget)

    def attack(self, row: Row, heading: Heading, level: Level, replication: int) -> Stage:
        key = ("attack", heading, row.label, level, replication)
        if key not in self._made:
            inputs = {"target": self.model(row.agent, level, replication)} if row.is_model else {}
            config = {**self._attack(row, heading, level), "seed": self.seed + replication}
            label = f"{heading.kind} attack on {row.label} #{replication + 1}, {level}"
            about = _about(heading.kind, row.label, level, replication)
            self._made[key] = Stage("attack", label, config, inputs, about)
        return self._made[key]

    def _attackers(
        self, row: Row, heading: Heading, level: Level, replication: int, count: int
    ) -> Stage:
        """Those that a row meets: of the next replication, or its own."""
        target = row
        if heading.of != ITSELF:
            target = next(r for r in self.recipe.rows if r.label == heading.of)
            replication = (replication + 1) % count
        if heading.described.with_model:
            return self._training(target, heading, level, replication)
        return self.attack(target, heading, level, replication)

    def _training(self, row: Row, heading: Heading, level: Level, replication: int) -> Stage:
        """The training whose attackers of the last round a column is made of."""
        if not row.is_model or MODELS[row.agent].kind != "train":
            raise UserError(f"{heading}: {row.label} is not trained along with attackers")
        if self.recipe.training_env != self.recipe.testing_env:
            raise UserError(
                f"{heading}: attackers that a model was trained with belong to its tasks, and "
                f"recipe {self.recipe.name} measures in another environment"
            )
        return self.model(row.agent, level, replication)

    def _attack(self, row: Row, heading: Heading, level: Level) -> dict[str, Any]:
        """Resolved once for all seeds."""
        own = heading.of == ITSELF
        key = json.dumps([heading.kind, row.label, level.eps, level.budget, own])
        if key not in self._resolved:
            asked = self._fewer(self.evaluation(level), self.recipe.own_tasks if own else None)
            self._resolved[key] = attack_config(
                heading.described, parse(EvaluateConfig, asked),
                self._who(row, level), 0,
                rounds=None if self.preset == "smoke" else row.attack_rounds,
                sets=self.sets["attack"],
            ).to_json()  # fmt: skip
        return self._resolved[key]

    def _who(self, row: Row, level: Level) -> str:
        return f"{INPUT}{row.acts}" if row.is_model else level.fill(row.agent_in(self.preset))

    def picture(self, row: Row, heading: Heading, count: int) -> Stage:
        cell = self.cell(row, heading, self.recipe.levels[-1], 0, count)
        return Stage("picture", f"picture of {cell.label}", cell.config, cell.inputs, cell.about)

    def cell(self, row: Row, heading: Heading, level: Level, replication: int, count: int) -> Stage:
        inputs: dict[str, Stage] = {}
        if row.is_model:
            inputs["victim"] = self.model(row.agent, level, replication)
        trained = heading.described.trained
        if trained:
            inputs["attack"] = self._attackers(row, heading, level, replication, count)
        config = self.evaluation(level)
        for unused in ("attackers", "replications", "rounds", "adaptive_rounds", "preset"):
            del config[unused]  # the attack stage has its own
        config = self._fewer(config, row.tasks)
        if heading.of == ITSELF:
            config = self._fewer(config, self.recipe.own_tasks)
        config["cell"] = {
            "label": row.label, "replication": replication,
            "target": heading.of if trained else None,
            "victim": self._who(row, level),
            "attacker": "none" if trained else heading.of,
        }  # fmt: skip
        label = f"{row.label} / {heading} #{replication + 1}, {level}"
        about = _about(heading.kind, heading.of, level, replication)
        return Stage("evaluate", label, config, inputs, about)


def _about(kind: str | None, who: str, level: Level, replication: int) -> About:
    return About(kind=kind, who=who, eps=level.eps, budget=level.budget, replication=replication)
