"""What a stage's configuration gets wrong is found before anything is computed or written: agents
and attackers that do not exist, that do not fit the environment, or that cannot do what is asked of
them. Models that the stage is given are not there yet; everything else is tried out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from mithridate.agents.named import make_agent
from mithridate.attackers import make_attacker
from mithridate.capabilities import is_privileged
from mithridate.config import Config
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.experiments.stages import Stage, is_input, parsed_config
from mithridate.files import parse_json
from mithridate.rng import Rng
from mithridate.stage_config import AdversarialConfig, AttackConfig, DistillConfig, EvaluateConfig
from mithridate.training.adversarial import RIVAL, START, targets
from mithridate.training.attack import AttackTraining
from mithridate.training.attack_files import learning_attacker
from mithridate.training.distill import Distillation
from mithridate.training.fitness import try_out
from mithridate.training.threats import population
from mithridate.types import Agent, Attacker, Secrets


def try_stage(stage: Stage) -> None:
    """Raise a UserError if the stage could not be run."""
    config = {k: v for k, v in stage.config.items() if k not in ("seed", "cell")}
    cell = {k: v for k, v in stage.config.get("cell", {}).items() if k in ("victim", "attacker")}
    problem = _problem(stage.kind, json.dumps([config, cell]), tuple(stage.inputs))
    if problem is not None:
        raise UserError(f"{stage.label}: {problem}")


@cache
def _problem(kind: str, text: str, inputs: tuple[str, ...]) -> str | None:
    """What is wrong with stages of this configuration."""
    try:
        config, cell = parse_json(text)
        if cell:
            config["cell"] = cell
        nothing = Stage("pretrain", "", {})
        parsed = parsed_config(Stage(kind, "", config, dict.fromkeys(inputs, nothing)))
        agents, attackers = _parties(parsed, cell, inputs)
        try_out(env_of(parsed.env), agents, attackers)  # type: ignore[attr-defined]
    except (UserError, ValueError) as error:
        return str(error)
    return None


def _parties(
    config: Config, cell: dict[str, Any], inputs: tuple[str, ...]
) -> tuple[Iterable[Agent | None], Iterable[Attacker | None]]:
    """The agents and attackers that a stage makes."""
    if isinstance(config, EvaluateConfig):
        victim = None if is_input(cell["victim"]) else make_agent(cell["victim"])[1]
        named = cell["attacker"]
        known = "attack" in inputs or named == "none"
        attacker = None if known else make_attacker(named, config.budget, config.env.facts())
        if is_privileged(victim):
            env = env_of(config.env)
            tasks = env.sample_tasks(1, Rng(0))
            victim.reveal(Secrets(env, tasks, config.eps, attacker))
        return [victim], [attacker]
    if isinstance(config, AttackConfig):
        if not is_input(config.target):
            AttackTraining(config)
        return [], [learning_attacker(config)]
    if isinstance(config, DistillConfig):
        Distillation(config)
    if isinstance(config, AdversarialConfig):
        not_there_yet = {START: None, RIVAL: None}
        chased = targets(config, env_of(config.env), not_there_yet)
        return chased, [attacker for _, attacker in population(config)[0].parts]
    return [], []
