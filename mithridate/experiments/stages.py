"""Stages: what a recipe is made of. Each is a function of its configuration and its inputs.

A stage's name is `<kind>-<key>`, where the key is a hash of the kind, the version of its code, the
resolved configuration and the keys of its inputs. It says nothing of paths, hosts, executors or
threads beyond those its configuration fixes, so the same stage has the same name everywhere.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch

from mithridate import versions
from mithridate.agents.named import told
from mithridate.attackers import make_attacker
from mithridate.config import Config
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.evaluation.columns import Column, check_level, kind_of
from mithridate.evaluation.crossplay import evaluate_cell
from mithridate.evaluation.episode import watch
from mithridate.evaluation.kinds import untrained
from mithridate.evaluation.victims import Victim
from mithridate.experiments import formats
from mithridate.experiments.artifacts import Artifact
from mithridate.experiments.store import OUT, Store
from mithridate.files import read_json, read_text, write_atomic
from mithridate.model.weights import find, load_model, zoo_names
from mithridate.settings import parse
from mithridate.stage_config import (
    AdversarialConfig,
    AttackConfig,
    DistillConfig,
    EvaluateConfig,
    PretrainConfig,
)
from mithridate.tensor_files import tensors_sha256
from mithridate.training.adversarial import train_adversarially
from mithridate.training.attack import attack
from mithridate.training.attack_files import KEPT, LearnedAttack, beside, cotrained
from mithridate.training.distill import distill
from mithridate.training.pretrain import pretrain

Outcome = Literal["done", "computed", "busy"]
INPUT = "(input)"
"""In a configuration, where one of the stage's inputs belongs; an agent may have settings behind
it, as in a call."""
MANY_SECONDS = 1e9
CONFIGS: dict[str, type[Config]] = {
    "pretrain": PretrainConfig, "distill": DistillConfig, "train": AdversarialConfig,
    "attack": AttackConfig, "evaluate": EvaluateConfig,
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    kind: str
    label: str
    """For people; not part of the identity."""
    config: dict[str, Any]
    """Resolved, as JSON. Where an input belongs it has INPUT."""
    inputs: dict[str, Stage] = field(default_factory=dict)
    """By role."""
    about: formats.About | None = None
    """For reports; not part of the identity."""

    @cached_property
    def name(self) -> str:
        return f"{self.kind}-{self.key}"

    @cached_property
    def key(self) -> str:
        content = {
            "kind": self.kind, "version": versions.STAGES[self.kind], "config": self.config,
            "inputs": {role: stage.key for role, stage in self.inputs.items()},
        }  # fmt: skip
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def threads(self) -> int:
        return int(self.config["threads"])

    def all(self) -> Iterator[Stage]:
        """Inputs first, then itself."""
        for stage in self.inputs.values():
            yield from stage.all()
        yield self

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name, "kind": self.kind, "label": self.label,
            "about": None if self.about is None else self.about.model_dump(),
            "version": versions.STAGES[self.kind], "config": self.config,
            "inputs": {role: stage.name for role, stage in self.inputs.items()},
        }  # fmt: skip


def parsed_config(stage: Stage) -> Config:
    """The stage's configuration; inputs are INPUT in it. A UserError if it is not valid."""
    if "cell" not in stage.config:
        return parse(CONFIGS[stage.kind], stage.config, stage.kind)
    rest = {k: v for k, v in stage.config.items() if k != "cell"}
    attacker = stage.config["cell"]["attacker"]
    return parse(EvaluateConfig, {**rest, "attackers": [attacker]}, stage.kind)


def in_order(targets: list[Stage]) -> list[Stage]:
    """All stages that the targets need, each once, inputs before what needs them."""
    found: dict[str, Stage] = {}
    for target in targets:
        for stage in target.all():
            found.setdefault(stage.name, stage)
    return list(found.values())


def perform(stage: Stage, store: Store, *, shipped: bool = False) -> Outcome:
    """Compute a stage whose inputs are done, unless it is done or somebody else is at it."""
    if store.get(stage.name) is not None:
        return "done"
    with store.claim(stage.name) as claim:
        if claim is None:
            return "busy"
        if store.get(stage.name) is not None:
            return "done"
        inputs = {role: _needed(store, part) for role, part in stage.inputs.items()}
        begun = time.monotonic()
        work = store.work(stage.name)
        _drop_foreign_run(stage, work, inputs)
        description = stage.describe()
        if shipped and _copy_shipped(stage, work, inputs):
            description["shipped"] = True
        else:
            RUNNERS[stage.kind](stage, work, inputs)
        if not claim.held():
            return "busy"
        store.publish(stage.name, description, max(time.monotonic() - begun, _logged(work)))
    return "computed"


def _drop_foreign_run(stage: Stage, work: Path, inputs: dict[str, Artifact]) -> None:
    """Drop unfinished work whose inputs had another path: the store was moved."""
    paths = sorted(str(artifact.path) for artifact in inputs.values())
    note = work / "inputs.json"
    try:
        fits = not note.exists() or read_json(note, "note") == paths
    except UserError:
        fits = False
    if not fits:
        shutil.rmtree(work / "run", ignore_errors=True)
    write_atomic(note, json.dumps(paths))


def _logged(work: Path) -> float:
    """Seconds that a training says it took, interrupted attempts included."""
    path = work / "run" / "log.jsonl"
    try:
        lines = formats.log(read_text(path, "log")) if path.exists() else []
    except (UserError, ValueError):  # somebody else's: it says nothing about us
        return 0.0
    said = (line.get("seconds") or 0.0 for line in lines)
    return max((seconds for seconds in said if 0 <= seconds < MANY_SECONDS), default=0.0)


def _needed(store: Store, stage: Stage) -> Artifact:
    found = store.get(stage.name)
    if found is None:
        # Somebody has taken it away, or it was damaged, since it was seen last.
        raise UserError(f"{stage.label} is needed and has gone; run again to compute it again")
    return found


def is_input(agent: str) -> bool:
    return agent.startswith(INPUT)


def _filled(agent: str, model: Artifact) -> str:
    """With the model where INPUT is."""
    return f"{model.path / 'model.safetensors'}{agent.removeprefix(INPUT)}"


# One runner for each kind ------------------------------------------------------------------------


def _pretrain(stage: Stage, work: Path, inputs: dict[str, Artifact]) -> None:
    pretrain(parse(PretrainConfig, stage.config), work / "run")
    _keep(work, "model.safetensors", "model.json", "log.jsonl")


def _distill(stage: Stage, work: Path, inputs: dict[str, Artifact]) -> None:
    distill(parse(DistillConfig, stage.config), work / "run")
    _keep(work, "model.safetensors", "model.json", "log.jsonl")


def _train(stage: Stage, work: Path, inputs: dict[str, Artifact]) -> None:
    models = {role: str(inputs[role].path / "model.safetensors") for role in inputs}
    train_adversarially(parse(AdversarialConfig, {**stage.config, **models}), work / "run")
    _keep(work, "model.safetensors", "model.json", "log.jsonl")
    if (work / "run" / KEPT).exists():
        _keep(work, KEPT)


def _attack(stage: Stage, work: Path, inputs: dict[str, Artifact]) -> None:
    config = dict(stage.config)
    if "target" in inputs:
        config["target"] = _filled(config["target"], inputs["target"])
    attack(parse(AttackConfig, config), work / "run")
    _keep(work, KEPT, "log.jsonl")


def _cell(
    stage: Stage, inputs: dict[str, Artifact]
) -> tuple[EvaluateConfig, Victim, Column, dict[str, Any]]:
    """Who meets whom in a cell."""
    cell: dict[str, Any] = stage.config["cell"]
    config = cast(EvaluateConfig, parsed_config(stage))
    source = cell["victim"]
    if "victim" in inputs:
        source = _filled(source, inputs["victim"])
    victim = Victim(cell["label"], [source], told(config))
    return config, victim, _column(stage, inputs, config), cell


def _column(stage: Stage, inputs: dict[str, Artifact], config: EvaluateConfig) -> Column:
    """Who attacks in a cell."""
    cell = stage.config["cell"]
    kind = None if stage.about is None else stage.about.kind
    if "attack" in inputs:
        path, level = inputs["attack"].path, (config.eps, config.budget)
        if inputs["attack"].manifest.kind == "train":
            learned = cotrained(path / "model.safetensors", level)
            check_level(learned, config)
        else:
            learned = LearnedAttack(path)
        attacker = learned.config.attacker
        kind = kind or kind_of(learned)
        return Column(kind, attacker, target=cell["target"], learned=(learned,))
    attacker = cell["attacker"]
    static = None
    if attacker != "none":
        static = make_attacker(attacker, config.budget, config.env.facts())
    return Column(kind or untrained(attacker), attacker, static=static)


def _picture(stage: Stage, work: Path, inputs: dict[str, Artifact]) -> None:
    config, victim, column, _ = _cell(stage, inputs)
    torch.set_num_threads(config.threads)
    room = watch(config, victim, column)
    write_atomic(work / OUT / "room.json", json.dumps(room.to_json()) + "\n")


def _evaluate(stage: Stage, work: Path, inputs: dict[str, Artifact]) -> None:
    config, victim, column, cell = _cell(stage, inputs)
    record, curve = evaluate_cell(config, env_of(config.env), victim, column, cell["replication"])
    level = {"level": config.eps, "level_budget": config.budget}  # a clean cell has one, too
    line = {**record.to_json(), **level, "config_hash": stage.key}
    write_atomic(work / OUT / "records.jsonl", json.dumps(line) + "\n")
    every = max(1, len(curve.mean) // 100)
    points = {
        "step": list(range(every, len(curve.mean) + 1, every)),
        "mean": [round(x, 4) for x in curve.mean[every - 1 :: every].tolist()],
    }
    write_atomic(work / OUT / "curve.json", json.dumps(points) + "\n")


RUNNERS: dict[str, Callable[[Stage, Path, dict[str, Artifact]], None]] = {
    "pretrain": _pretrain, "distill": _distill, "train": _train, "attack": _attack,
    "evaluate": _evaluate, "picture": _picture,
}  # fmt: skip


def _keep(work: Path, *names: str) -> None:
    """What is kept of a finished run."""
    for name in names:
        shutil.copyfile(work / "run" / name, work / OUT / name)


# Shipped models in the place of trainings ------------------------------------------------------


SHIPPED: dict[str, tuple[str, type[Config]]] = {
    "pretrain": ("dpt", PretrainConfig), "distill": ("ad", DistillConfig),
    "train": ("at-dpt", AdversarialConfig),
}  # fmt: skip
"""What a stage's model is called on its card, and its configuration."""


def looks_shipped(stage: Stage) -> bool:
    """Whether `perform` is likely to find a shipped model; what it starts from is not looked at."""
    return next(_fitting(stage), None) is not None


def _fitting(stage: Stage) -> Iterator[tuple[str, dict[str, Any]]]:
    """Shipped models with the stage's configuration and version of the code, and how each was
    trained."""
    if stage.kind not in SHIPPED:
        return
    wanted = _without_models(stage.config)
    for name, version, training in _shipped_trainings(stage.kind):
        if version == versions.STAGES[stage.kind] and _without_models(training) == wanted:
            yield name, training


@cache
def _shipped_trainings(kind: str) -> list[tuple[str, int, dict[str, Any]]]:
    """Of the shipped models of a kind: name, version of the code, configuration."""
    card_kind, config = SHIPPED[kind]
    cards = {name: load_model(name)[1] for name in zoo_names()}
    return [
        # Fields that are new get their defaults.
        (name, card.get("stage_version", 1), parse(config, card["training"]).to_json())
        for name, card in cards.items()
        if card["kind"] == card_kind
    ]


def _copy_shipped(stage: Stage, work: Path, inputs: dict[str, Artifact]) -> bool:
    """If a shipped model is what this training would give, take it: the same configuration, the
    same version of the code and, for adversarial training, the same weights to start from (and
    of the rival)."""
    for name, training in _fitting(stage):
        weights = {
            role: tensors_sha256(load_model(artifact.path / "model.safetensors")[0].state_dict())
            for role, artifact in inputs.items()
        }
        if any(training[f"{role}_sha256"] != sha for role, sha in weights.items()):
            continue
        path = find(name)
        shutil.copyfile(path, work / OUT / "model.safetensors")
        shutil.copyfile(path.with_suffix(".json"), work / OUT / "model.json")
        log = path.with_suffix(".log.jsonl")
        if log.exists():
            shutil.copyfile(log, work / OUT / "log.jsonl")
        if beside(path).exists():
            shutil.copyfile(cotrained(path).path, work / OUT / KEPT)
        return True
    return False


def keeps_attackers(stage: Stage, store: Store | None, shipped: bool) -> bool:
    """Whether the attackers of a training are there, or will be: a shipped model may have none, and
    trainings of earlier versions did not keep them."""
    done = None if store is None else store.get(stage.name)
    if done is not None:
        return KEPT in done.manifest.files
    name = next((name for name, _ in _fitting(stage)), None) if shipped else None
    return name is None or beside(find(name)).exists()


def _without_models(config: dict[str, Any]) -> dict[str, Any]:
    paths = ("start", "start_sha256", "rival", "rival_sha256")
    return {k: v for k, v in config.items() if k not in paths}
