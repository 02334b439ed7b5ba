"""One episode to look at: whether its environment can be drawn, and what there is to draw."""

from __future__ import annotations

from typing import Any

import torch

from mithridate.capabilities import Picture, PicturedEnv, is_pictured, is_transparent
from mithridate.envs import env_of
from mithridate.envs.darkroom_picture import Room
from mithridate.envs.miniworld.picture import FORM, BoxRoom
from mithridate.errors import UserError
from mithridate.evaluation.columns import Column
from mithridate.evaluation.victims import Victim
from mithridate.registry import ENVS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.stage_config import EvaluateConfig
from mithridate.training.fitness import check_views


def picture_of(data: dict[str, Any]) -> Picture:
    """The picture that was stored so, its form checked before (`experiments/formats.py`)."""
    return BoxRoom.from_json(data) if data.get("form") == FORM else Room.from_json(data)


def pictured(config: EvaluateConfig) -> PicturedEnv:
    """The environment, or a UserError if none of its episodes can be drawn."""
    env = env_of(config.env)
    if not is_pictured(env):
        known = " or ".join(name for name in ENVS.names() if is_pictured(ENVS.get(name)))
        raise UserError(f"'{config.env.name}' has no rooms to draw; try {known}")
    check_views(env)
    return env


def watch(config: EvaluateConfig, victim: Victim, column: Column, task: int = 0) -> Picture:
    """The victim's episode in one of the tasks of an evaluation's first replication."""
    env = pictured(config)
    rng = Rng(config.seed).child("evaluate", 0)
    attacker, tasks = column.meet(0)
    if tasks is None:
        tasks = env.sample_tasks(config.tasks, rng.child("tasks"))
    if task >= len(tasks):
        raise UserError(f"--task {task}: there are {len(tasks)}, from 0 on")
    one = tasks.select(slice(task, task + 1))
    trajectory = rollout(env, one, victim.replication(0), attacker, config.eps, rng=rng)
    offsets = torch.zeros(env.spec.n_attack_keys, env.spec.n_actions)
    if attacker is not None:
        if not is_transparent(attacker):
            raise UserError(
                f"attacker '{column.name}' has no offset for each state and action to draw"
            )
        offsets = attacker.adds().mean[0]
    score = env.score(one, trajectory).sum().item()
    name = "no attack" if column.kind == "clean" else column.name
    title = f"{victim.label} under {name}, task {task}: {env.spec.metric.name} {score:g}"
    return env.picture(one, trajectory, offsets, title, score)
