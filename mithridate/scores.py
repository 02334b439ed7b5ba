"""How agents fare: the metric of many tasks, rolled out a block at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mithridate.errors import UserError
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.types import Agent, Attacker, Env, Tasks, Trajectory
from mithridate.users_code import blaming


def step_scores(
    env: Env,
    tasks: Tasks,
    agent: Agent,
    attacker: Attacker | None = None,
    eps: float = 0.0,
    *,
    rng: Rng,
    block: int = 250,
    on_step: Callable[[], None] | None = None,
    norms: list[float] | None = None,
) -> Tensor:
    """(B, T): each step's contribution to the metric, rolled out `block` tasks at a time. The
    attack's largest norm in each block is added to `norms`."""
    parts = []
    for start in range(0, len(tasks), block):
        some = tasks.select(slice(start, start + block))
        trajectory = rollout(env, some, agent, attacker, eps, rng=rng, on_step=on_step)
        parts.append(score(env, some, trajectory))
        if attacker is not None and norms is not None:
            norms.append(norms_of(attacker, len(some)).max().item())
    return torch.cat(parts)


def score(env: Env, tasks: Tasks, trajectory: Trajectory) -> Tensor:
    """(B, T): what the environment says of each step, or an error that says what is wrong."""
    found: Any = env.score(tasks, trajectory)
    shape = tuple(trajectory.actions.shape)
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.shape != shape:
        what = f"environment {env.spec.name}: score()"
        raise UserError(f"{what} must return a tensor of floats of shape {shape}")
    scores: Tensor = found
    return scores


def norms_of(attacker: Attacker, batch: int) -> Tensor:
    """(B,): the norms that an attacker says to have used, or an error that says what is wrong."""
    with blaming(attacker):
        cost: Any = attacker.cost()
    name = f"attacker {type(attacker).__name__}: cost()"
    if not isinstance(cost, Tensor) or not cost.is_floating_point() or cost.shape != (batch,):
        raise UserError(f"{name} must return ({batch},) norms as a tensor of floats")
    if not torch.isfinite(cost).all() or (cost < 0).any():
        raise UserError(f"{name} must return norms that are finite and not negative")
    norms: Tensor = cost
    return norms


def total_scores(env: Env, tasks: Tasks, agent: Agent, *, rng: Rng, block: int = 250) -> Tensor:
    """(B,): the episode's metric on each task, without an attacker."""
    return step_scores(env, tasks, agent, rng=rng, block=block).sum(1)
