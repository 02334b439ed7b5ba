"""Threats: what the tasks of adversarial training are divided among. Which part has which tasks
follows from the configuration alone, so that attackers that are kept can be checked against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate.attackers import make_attacker
from mithridate.attackers.population import Population
from mithridate.capabilities import learns, repeats
from mithridate.errors import UserError
from mithridate.rng import Rng
from mithridate.stage_config import AdversarialConfig, AttackConfig
from mithridate.types import Env, Tasks

MODEL = "at-dpt"
"""What the model in training is called where attackers name their target."""


def stretches(config: AdversarialConfig) -> list[slice]:
    """The part of the tasks that each threat has."""
    shares = np.array([threat.share for threat in config.threats])
    ends = np.round(shares.cumsum() / shares.sum() * config.tasks).astype(int)
    sizes = np.diff(ends, prepend=0)
    if not all(sizes):
        raise UserError("threats: a share is too small for a single task")
    return [slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]


def level(config: AdversarialConfig, number: int) -> tuple[float, float]:
    """A part's eps and budget."""
    threat = config.threats[number]
    eps = config.eps if threat.eps is None else threat.eps
    return eps, config.budget if threat.budget is None else threat.budget


def attacker_of(config: AdversarialConfig, number: int) -> Any:
    """A part's attackers before the first round; None if it has none."""
    threat = config.threats[number]
    attacker = None
    if threat.attacker != "none":
        attacker = make_attacker(
            threat.attacker, level(config, number)[1], config.env.facts(),
            seed=Rng(config.seed).child("threat", number).integer(),
        )  # fmt: skip
    if not learns(attacker) and threat.target is not None:
        raise UserError(f"threats: attacker '{threat.attacker}' does not learn: no target")
    return attacker


def population(config: AdversarialConfig) -> tuple[Population, Tensor]:
    """The episodes of a round divided among the threats, and eps (B,) for each of them."""
    parts = []
    for number, rows in enumerate(stretches(config)):
        attacker = attacker_of(config, number)
        if learns(attacker):
            attacker.learning = True
        parts.append(((rows.stop - rows.start) * episodes(attacker), attacker))
    sizes = [size for size, _ in parts]
    eps = [level(config, number)[0] for number in range(len(sizes))]
    return Population(parts), torch.tensor(np.repeat(eps, sizes), dtype=torch.float32)


def episodes(attacker: Any) -> int:
    """Of each of its tasks, in a round."""
    return attacker.episodes if repeats(attacker) else 1


# The attackers that are kept with the model -----------------------------------------------------


def chasing(config: AdversarialConfig) -> list[int]:
    """The parts whose attackers learn against the model itself, the largest first."""
    sizes = [rows.stop - rows.start for rows in stretches(config)]
    found = [
        number
        for number, threat in enumerate(config.threats)
        if threat.target is None and learns(attacker_of(config, number))
    ]
    return sorted(found, key=lambda number: -sizes[number])


def chasing_at(config: AdversarialConfig, eps: float, budget: float) -> int | None:
    """The largest of them at this level, if there is one."""
    found = (number for number in chasing(config) if level(config, number) == (eps, budget))
    return next(found, None)


def as_attack(config: AdversarialConfig, number: int, target_sha256: str) -> AttackConfig:
    """What a part's attackers are, in the words of a run of `attack`."""
    rows = stretches(config)[number]
    eps, budget = level(config, number)
    return AttackConfig(
        env=config.env, target=MODEL, target_sha256=target_sha256, seed=config.seed,
        threads=config.threads, attacker=config.threats[number].attacker, eps=eps, budget=budget,
        tasks=rows.stop - rows.start, rounds=config.rounds,
    )  # fmt: skip


def fresh_tasks(config: AdversarialConfig, env: Env, first: int, n: int) -> Tasks:
    """Tasks of this training, by their numbers."""
    return env.sample_tasks(n, Rng(config.seed).child("adversarial", "tasks"), first=first)


def renewed(config: AdversarialConfig, rows: slice) -> int:
    """How many tasks of a part are replaced after a round."""
    size: int = rows.stop - rows.start
    return round(config.renew * size)


def last_tasks(config: AdversarialConfig, env: Env, number: int) -> Tasks:
    """Those of a part in the last round, the oldest first."""
    rows = stretches(config)[number]
    k, born = renewed(config, rows), config.rounds - 1
    missing, found = rows.stop - rows.start, []
    while k and born and missing:
        n = min(k, missing)
        first = config.tasks * born + rows.start + k - n
        found.append(fresh_tasks(config, env, first, n))
        missing, born = missing - n, born - 1
    if missing:
        found.append(fresh_tasks(config, env, rows.stop - missing, missing))
    return type(found[0]).cat(found[::-1])


def ages(config: AdversarialConfig, ids: Tensor) -> Tensor:
    """(B,): for how many rounds each of the tasks of the last round has been played."""
    return config.rounds - ids // config.tasks
