"""Files of attackers, with the tasks they belong to: what a run of `attack` gives, and what
adversarial training keeps of its last round beside the model.

A run's attackers are of one kind. A training may have several parts of attackers that learn against
the model, at several levels; all are in its file, each in the form of a run's, and who reads it
takes the largest part at a level. Their settings follow from those of the training.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mithridate.attackers import make_attacker
from mithridate.capabilities import learns
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.files import parse_json, shown
from mithridate.intervals import mean_ci95
from mithridate.rng import Rng
from mithridate.scores import step_scores
from mithridate.settings import parse
from mithridate.stage_config import AdversarialConfig, AttackConfig
from mithridate.tensor_files import (
    SQUARES,
    misfit,
    part,
    prefixed,
    read_tensors,
    sealed,
    tensors_sha256,
    write_sealed,
)
from mithridate.training.loop import Values
from mithridate.training.threats import (
    ages,
    as_attack,
    attacker_of,
    chasing,
    chasing_at,
    last_tasks,
)
from mithridate.types import Agent, Attacker, Env, Tasks
from mithridate.versions import versions

FORMAT = 2
"""2: what is said of the attackers is sealed with them."""
KEPT = "attackers.safetensors"
"""The file's name in a run's directory and in an artifact."""
METRICS = ("final_mean", "final_ci95", "used_norm_mean", "used_norm_max")
LARGEST = 1e9
"""No number that a trained attacker acts by is larger. (Squared gradients are.)"""


def attack_tasks(config: AttackConfig, env: Env) -> Tasks:
    """Those that the attackers of a run belong to."""
    return env.sample_tasks(config.tasks, Rng(config.seed).child("attack", "tasks"))


def learning_attacker(config: AttackConfig) -> Any:
    """The attackers of a run before the first round."""
    seed = Rng(config.seed).child("attack", "network").integer()
    attacker = make_attacker(config.attacker, config.budget, seed=seed, rounds=config.rounds)
    if not learns(attacker):
        raise UserError(f"attacker '{config.attacker}' does not learn; evaluate it as it is")
    return attacker


def as_used(env: Env, tasks: Tasks, agent: Agent, attacker: Any, eps: float, rng: Rng) -> Values:
    """An agent under attackers as they are used: within the budget. What a file says of them."""
    attacker.learning = False
    scores = step_scores(env, tasks, agent, attacker, eps, rng=rng, block=len(tasks)).sum(1)
    attacker.learning = True
    mean, ci95 = mean_ci95(scores.tolist())
    cost = attacker.cost()
    return {
        "final_mean": mean, "final_ci95": ci95,
        "used_norm_mean": cost.mean().item(), "used_norm_max": cost.max().item(),
    }  # fmt: skip


# Writing -----------------------------------------------------------------------------------------


def write_attackers(
    path: Path, config: AttackConfig, tasks: Tasks, attacker: Mapping[str, Tensor], metrics: Values
) -> None:
    """The result of a run of `attack`."""
    meta = {"config": config.to_json(), "metrics": _plain(metrics)}
    _write(path, _together(tasks, attacker), meta)


class Part(NamedTuple):
    """Attackers of a training's last round."""

    tasks: Tasks
    attacker: Mapping[str, Tensor]
    metrics: Values


def write_cotrained(
    path: Path, training: AdversarialConfig, target_sha256: str, parts: Mapping[int, Part]
) -> None:
    """What adversarial training keeps: its parts by number. Of the models that it began with, the
    digests are kept, and not where they were."""
    rival = None if training.rival is None else "rival"
    said = training.model_copy(update={"start": "start", "rival": rival})
    tensors: dict[str, Tensor] = {}
    for number, one in parts.items():
        tensors |= prefixed(f"{number}.", _together(one.tasks, one.attacker))
    meta = {
        "training": said.to_json(),
        "target_sha256": target_sha256,
        "metrics": {str(number): _plain(one.metrics) for number, one in parts.items()},
    }
    _write(path, tensors, meta)


def _together(tasks: Tasks, attacker: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return prefixed("attacker.", attacker) | prefixed("tasks.", tasks.tensors())


def _plain(metrics: Values) -> dict[str, float | None]:
    return {k: None if math.isnan(v) else v for k, v in metrics.items()}


def _write(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    write_sealed(path, tensors, {"format": FORMAT, **meta, "versions": versions()})


# Reading -----------------------------------------------------------------------------------------


def _is_moment(name: str) -> bool:
    """Whether it is one of Adam's, which the attack does not depend on."""
    return name.startswith("optimiser.") or name.rpartition(".")[2] in ("first", SQUARES)


class LearnedAttack:
    """Attackers from a file, with the tasks they belong to. Whoever made the file, they are what
    their configuration says: of this format, for these tasks, within the budget."""

    def __init__(self, path: Path | str, level: tuple[float, float] | None = None) -> None:
        """`level`: eps and budget. Of a training's attackers, the largest part at this level is
        taken; the largest of all, if there is none or nothing is said."""
        self.path = Path(path)
        if os.path.isdir(self.path):
            self.path = self.path / KEPT
        tensors, metadata, data = read_tensors(self.path, "file of attackers")
        meta = self._meta(metadata)
        if meta["format"] != FORMAT:
            raise UserError(
                f"attackers {shown(self.path)}: format {shown(meta['format'], 40)}; this version "
                f"reads {FORMAT}: train them again"
            )
        if sealed(tensors, metadata) is None:
            raise self._damaged("checksum differs; restore them")
        self.sha256: str = hashlib.sha256(data).hexdigest()
        self.training: AdversarialConfig | None = None
        """How the model was trained that these attackers were trained along with, if it was so."""
        self._number = 0
        if "training" in meta:
            meta, tensors = self._part(meta, tensors, level)
        if not all(name.startswith(("attacker.", "tasks.")) for name in tensors):
            raise self._damaged("there is more in it than attackers and tasks")
        self.config = parse(AttackConfig, meta["config"], self._name)
        self.env: Env = env_of(self.config.env)
        self.metrics: dict[str, float | None] = meta["metrics"]
        self.tasks = self._checked_tasks(part(tensors, "tasks."))
        self.attacker: Attacker = self._checked_attacker(part(tensors, "attacker."))

    @property
    def _name(self) -> str:
        return f"attackers {shown(self.path)}"

    @property
    def ages(self) -> Tensor:
        """(B,): for how many rounds the attackers have met each task."""
        if self.training is None:
            return torch.full((len(self.tasks),), self.config.rounds)
        return ages(self.training, self.tasks.ids)

    def _meta(self, metadata: dict[str, Any]) -> dict[str, Any]:
        try:
            meta = parse_json(metadata["meta"])
            kept = "training" in meta
            said = list(meta["metrics"].values()) if kept else [meta["metrics"]]
            sound = isinstance(meta["training" if kept else "config"], dict)
            sound &= {"format", "sha256"} <= meta.keys()
            sound &= not kept or isinstance(meta["target_sha256"], str)
            for metrics in said:
                sound &= metrics.keys() == set(METRICS)
                sound &= all(x is None or isinstance(x, float) for x in metrics.values())
        except (KeyError, TypeError, ValueError, AttributeError):
            sound = False
        if not sound:
            raise UserError(f"{shown(self.path)} is not a file of trained attackers")
        found: dict[str, Any] = meta
        return found

    def _part(
        self, meta: dict[str, Any], tensors: dict[str, Tensor], level: tuple[float, float] | None
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One of a training's parts, as if it were the result of a run."""
        training = parse(AdversarialConfig, meta["training"], self._name)
        try:
            numbers = chasing(training)
            chosen = None if level is None else chasing_at(training, *level)
        except UserError as error:
            raise self._damaged(str(error)) from None
        names = {name.partition(".")[0] for name in tensors}
        if not numbers or not names == meta["metrics"].keys() == set(map(str, numbers)):
            raise self._damaged("their parts are not those of their training")
        self.training, self._number = training, numbers[0] if chosen is None else chosen
        config = as_attack(training, self._number, meta["target_sha256"]).to_json()
        metrics = meta["metrics"][str(self._number)]
        return {"config": config, "metrics": metrics}, part(tensors, f"{self._number}.")

    def _checked_tasks(self, found: dict[str, Tensor]) -> Tasks:
        """The tasks of the file, which must be those that its configuration stands for."""
        if self.training is None:
            expected = attack_tasks(self.config, self.env)
        elif "ids" not in found or found["ids"].numel() != self.config.tasks:
            raise self._damaged("their tasks are of another form")
        else:
            expected = last_tasks(self.training, self.env, self._number)
        if misfit(found, expected.tensors()) is not None:
            raise self._damaged("their tasks are of another form")
        if not all(torch.allclose(found[k], t) for k, t in expected.tensors().items()):
            raise self._damaged("their tasks are not those of their configuration")
        return type(expected)(**found)

    def _checked_attacker(self, found: dict[str, Tensor]) -> Attacker:
        try:
            attacker = self._fresh()
        except UserError as error:
            raise self._damaged(str(error)) from None
        acting = [t for name, t in found.items() if not _is_moment(name) and t.numel()]
        if any(t.is_floating_point() and t.abs().max() > LARGEST for t in acting):
            raise self._damaged("there are numbers that no training gives")
        try:
            attacker.load_tensors(found)
            streams = Rng(0).streams(self.tasks.ids)
            attacker.reset(self.env.spec, self.tasks.copy(), streams)
            norm = attacker.cost().max().item()
            if (difference := misfit(attacker.tensors(), found)) is not None:
                raise ValueError(difference)
        except (
            UserError, KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError
        ):  # fmt: skip
            raise self._damaged("they do not fit their configuration") from None
        if not norm <= self.config.budget * (1 + 1e-6):
            raise self._damaged(f"their norm is {norm:g}, their budget {self.config.budget:g}")
        return attacker  # type: ignore[no-any-return]

    def _damaged(self, why: str) -> UserError:
        return UserError(f"attackers {shown(self.path)} are damaged: {why}")

    def _fresh(self) -> Any:
        """The attackers before they had learned anything."""
        if self.training is None:
            return learning_attacker(self.config)
        return attacker_of(self.training, self._number)


# Beside the weights ------------------------------------------------------------------------------


def beside(weights: Path) -> Path:
    """Where the attackers are that a model was trained along with, if they were kept."""
    if weights.name == "model.safetensors":
        return weights.with_name(KEPT)
    return weights.with_name(f"{weights.stem}.{KEPT}")


def cotrained(weights: Path, level: tuple[float, float] | None = None) -> LearnedAttack:
    """The attackers that a model was trained along with. A UserError if none were kept, or those
    that are there are of another model."""
    path = beside(weights)
    if not os.path.exists(path):
        raise UserError(
            f"no attackers are kept with {shown(weights)}: adversarial training keeps them, if "
            "they learn against the model; shipped models and those of earlier versions may have "
            "none"
        )
    found = LearnedAttack(path, level)
    ours = tensors_sha256(read_tensors(weights, "file of weights")[0])
    if found.training is None or found.config.target_sha256 != ours:
        raise UserError(
            f"attackers {shown(path)} were not trained along with {shown(weights)}: restore them, "
            "or remove them"
        )
    return found
