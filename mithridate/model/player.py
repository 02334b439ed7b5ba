"""A model in the kernels: one step of many sequences, or whole episodes of a world of tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mithridate.config import ModelConfig
from mithridate.model.dispatch import shape_of
from mithridate.model.threads import kernel_threads
from mithridate.native import ALIGNMENT, kernels
from mithridate.tables import AttackTables, WorldTables

TOGETHER = 6
"""Tasks whose episodes run side by side on a core: their caches should not leave its own cache,
and each pass over the weights should serve several."""


@dataclass(frozen=True)
class Rows:
    """What a player's tokens are sums of, D numbers each."""

    start: Tensor
    """(D,): the first token."""
    reward: Tensor
    """(D,): what a reward of 1 adds."""
    pairs: Tensor
    """(S, A, D) of states and actions, or (A, D) without states."""
    reached: Tensor | None = None
    """(S, D): where a transition ends."""
    asked: Tensor | None = None
    """(S, D): whole queries."""


@dataclass(frozen=True)
class Played:
    """What happened in episodes of T steps, (B, T) each."""

    actions: Tensor
    states: Tensor
    true_rewards: Tensor
    proposed_rewards: Tensor
    observed_rewards: Tensor
    finite: bool = True
    """Whether all predictions were."""


class NativePlayer:
    """The weights as they are now."""

    def __init__(self, weights: Tensor, config: ModelConfig, rows: Rows, head: nn.Linear) -> None:
        def plain(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.detach().float().contiguous()

        self.n_actions = head.out_features
        self._player = kernels().Player(
            weights.detach(), *shape_of(weights, config), plain(rows.start), plain(rows.reward),
            plain(rows.pairs), plain(rows.reached), plain(rows.asked), plain(head.weight),
            plain(head.bias),
        )  # fmt: skip

    def step(
        self, cache: Tensor, position: int, *, asked: Tensor | None = None,
        transition: tuple[Tensor | None, Tensor, Tensor, Tensor | None] | None = None,
    ) -> Tensor:  # fmt: skip
        """Logits (B, A) after a transition (states, actions, rewards, states reached, (B,) each),
        which is written at `position` of the cache (see KVCache); at position 0 there is none. If
        there are states, those (B,) that are `asked` about."""
        logits = torch.empty(len(cache), self.n_actions)
        capacity = cache.shape[4] * ALIGNMENT
        states, actions, rewards, reached = transition or (None, None, None, None)
        self._player.step(
            _numbers(states), _numbers(actions), None if rewards is None else _floats(rewards),
            _numbers(reached), _numbers(asked), cache, logits, position, capacity, kernel_threads(),
        )  # fmt: skip
        return logits

    def play(
        self, world: WorldTables, noise: Tensor | None, hit: Tensor, attack: AttackTables | None,
        uniforms: Tensor | None, temperature: float,
    ) -> Played:  # fmt: skip
        """Episodes of all tasks, as many steps as `hit` (B, T) has: where the attacker's reward is
        seen. `noise` (B, T) is added to the rewards."""
        played, finite = run(
            self._player.play, world, noise, hit, attack, after=_numbers(world.after),
            luck=_optional(uniforms), temperature=temperature, together=TOGETHER,
        )  # fmt: skip
        return replace(played, finite=finite)


def run(
    play: Callable[..., Any], world: WorldTables, noise: Tensor | None, hit: Tensor,
    attack: AttackTables | None, **own: Any,
) -> tuple[Played, Any]:  # fmt: skip
    """Episodes by a loop of the kernels, which may have words of its `own`; and what it says."""
    taken, visited = torch.zeros(2, *hit.shape, dtype=torch.int64)
    paid, proposed, observed = torch.zeros(3, *hit.shape)
    names = ("shifts", "edges", "uniforms", "spreads", "normals")
    tables = {n: None if attack is None else _optional(getattr(attack, n)) for n in names}
    said = play(
        rewards=_floats(world.rewards), noise=_optional(noise), hit=hit.contiguous(), **tables,
        taken=taken, visited=visited, paid=paid, proposed=proposed, observed=observed,
        steps=hit.shape[1], threads=kernel_threads(), **own,
    )  # fmt: skip
    return Played(taken, visited, paid, proposed, observed), said


def is_sound(player: object) -> bool:
    """Whether it is a player of ours, and what it plays with is the kernels'."""
    ours = type(player) is NativePlayer and vars(player).keys() == {"n_actions", "_player"}
    return ours and type(vars(player)["_player"]) is kernels().Player


def choose(logits: Tensor, uniforms: Tensor | None, temperature: float) -> Tensor:
    """(B,): draws from softmax(logits / temperature), logits (B, A), by inverse CDF on uniforms
    (B, 1); with temperature 0 the first of the largest. Finite logits only."""
    actions = torch.empty(len(logits), dtype=torch.int64)
    kernels().choose(_floats(logits), _optional(uniforms), temperature, actions)
    return actions


def _floats(x: Tensor) -> Tensor:
    return x.detach().to(torch.float32).contiguous()


def _optional(x: Tensor | None) -> Tensor | None:
    return None if x is None else _floats(x)


def _numbers(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.to(torch.int64).contiguous()
