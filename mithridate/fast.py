"""The native loop over steps: an implementation of `rollout` for worlds, attackers and agents that
are tables or live in the kernels. It draws the same numbers from the same streams as the Python
loop does, and what happens is the same, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mithridate.agents import linear_grid, mixture_grid, oracle_grid
from mithridate.errors import UserError
from mithridate.model.player import Played, is_sound
from mithridate.model.threads import left_to_kernels
from mithridate.rng import Rng
from mithridate.tables import (
    AttackTables,
    Playing,
    TableAgent,
    TableEnv,
    WorldTables,
    is_fixed,
)
from mithridate.types import Agent, Attacker, Env, Tasks

CHUNK = 512
"""Tasks that run at a time: between them, signals are heard and progress is shown."""


@dataclass(frozen=True)
class Plan:
    """Everything that one episode of B tasks depends on."""

    world: WorldTables
    attack: AttackTables | None
    playing: Playing
    noise: Tensor | None
    """(B, T): what is added to the rewards."""
    hit: Tensor
    """(B, T) bool: where the attacker's reward is seen."""

    def play(self, on_step: Callable[[], None] | None) -> Played:
        batch, steps = self.hit.shape
        parts, said = [], 0
        for start in range(0, max(batch, 1), CHUNK):
            parts.append(self._play(slice(start, start + CHUNK)))
            done = min(batch, start + CHUNK)
            while on_step is not None and said * batch < done * steps:
                on_step()
                said += 1
        if len(parts) == 1:
            return parts[0]
        tensors = {
            name: torch.cat([getattr(p, name) for p in parts])
            for name, value in vars(parts[0]).items()
            if isinstance(value, Tensor)
        }
        return Played(**tensors, finite=all(p.finite for p in parts))

    def visited(self, played: Played) -> Tensor:
        """(B, T + 1): the states, the last one included."""
        before, last = played.states, played.states[:, -1]
        if self.world.after is not None:
            last = self.world.after[last, played.actions[:, -1]]
        return torch.cat([before, last[:, None]], 1)

    def _play(self, rows: slice) -> Played:
        def some(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[rows]

        try:
            played: Played = self.playing.player.play(
                self.world.rows(rows), some(self.noise), self.hit[rows],
                None if self.attack is None else self.attack.rows(rows),
                some(self.playing.uniforms), self.playing.temperature,
            )  # fmt: skip
        except ValueError as error:  # somebody's tables, which the kernels do not take
            raise UserError(f"tables of an environment or attacker do not fit: {error}") from None
        return played


@left_to_kernels()
def plan(
    env: Env, tasks: Tasks, agent: Agent, attacker: Attacker | None, eps: float | Tensor, rng: Rng
) -> Plan | None:
    """Of agent and attacker, both reset for these tasks; None if the Python loop has to do it."""
    steps, spec = env.spec.horizon, env.spec
    if not isinstance(agent, TableAgent) or not agent.plays(steps):
        return None
    if attacker is not None and not is_fixed(attacker):
        return None
    if not isinstance(env, TableEnv) or (world := env.tables(tasks)) is None:
        return None
    if tasks.device.type != "cpu":
        return None
    attack = None if attacker is None else attacker.attack_tables(steps)
    playing = agent.playing(steps)
    grids = (mixture_grid, linear_grid, oracle_grid)
    player = playing.player
    if not is_sound(player) and not any(grid.is_sound(player) for grid in grids):
        # It would say itself what it was paid.
        raise UserError(f"agent {type(agent).__name__}: playing() is for models of ours alone")
    noise = None
    if spec.noise_size and world.noise_std is not None:
        streams = rng.child("noise").streams(tasks.luck)
        noise = world.noise_std * streams.ahead("normal", steps)
    hit = rng.child("contamination").streams(tasks.luck).ahead("uniform", steps)
    by_task = eps[:, None] if isinstance(eps, Tensor) and eps.dim() == 1 else eps
    return Plan(world, attack, playing, noise, hit < by_task)
