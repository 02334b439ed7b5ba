"""Worlds and attacks that are tables: what a native loop over steps needs to know beforehand.

An environment, an attacker or an agent may say so by an optional method (`TableEnv`,
`TableAttacker`, `TableAgent`). Whoever does not, or says no, is asked at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Rows:
    """Tables whose first axis is that of the tasks, if they have one."""

    def rows(self: RowsT, part: slice) -> RowsT:
        """Some of the tasks."""
        of_tasks = {
            f.name: value[part]
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor) and f.name != "after"
        }
        return replace(self, **of_tasks)


RowsT = TypeVar("RowsT", bound=_Rows)


@dataclass(frozen=True)
class WorldTables(_Rows):
    """An environment: S states (one, if there is nothing to observe), which are what is observed
    and the keys of attacks. Episodes begin in state 0."""

    rewards: Tensor
    """(B, S, A) float32: what an action pays, without noise."""
    optimal: Tensor
    """(B, S) int64: the oracle's action."""
    after: Tensor | None = None
    """(S, A) int64: where an action leads; None if there is but one state."""
    noise_std: float | None = None
    """What the step's standard normal number is multiplied by and added, if there is one."""


@dataclass(frozen=True)
class AttackTables(_Rows):
    """An attacker: the proposed reward is r + shift, of C choices one, + spread · normal."""

    shifts: Tensor
    """(B, K, A, C) float32, for each key and action."""
    edges: Tensor | None = None
    """(B, K, A, C − 1): the choice is how many of these are not above a uniform number."""
    uniforms: Tensor | None = None
    """(B, T): these numbers; None if there is no choice."""
    spreads: Tensor | None = None
    """(B, K, A)."""
    normals: Tensor | None = None
    """(B, T); None if there are no spreads."""


@dataclass(frozen=True)
class Playing:
    """An agent that lives in the kernels."""

    player: Any
    """A `NativePlayer` of `model/player.py`, or one of the players of `agents/mixture_grid.py`,
    `linear_grid.py` and `oracle_grid.py`."""
    temperature: float
    """0: takes the best action. Whoever draws no arms may have another factor here."""
    uniforms: Tensor | None
    """(B, T), or several for each step: what it draws its actions by, if it does."""
    not_finite: str
    """What to say if its predictions are not finite."""


@runtime_checkable
class TableEnv(Protocol):
    def tables(self, tasks: Any) -> WorldTables | None: ...


@runtime_checkable
class TableAttacker(Protocol):
    def has_tables(self) -> bool: ...

    def attack_tables(self, steps: int) -> AttackTables:
        """Of the tasks that it was last reset for; numbers for so many steps are drawn from its
        streams."""
        ...


def is_fixed(attacker: Any) -> TypeGuard[TableAttacker]:
    """Whether what it does is settled once it is reset, and does not depend on what it sees."""
    return isinstance(attacker, TableAttacker) and attacker.has_tables()


@runtime_checkable
class TableAgent(Protocol):
    def plays(self, steps: int) -> bool:
        """Whether it can, for so many steps."""
        ...

    def playing(self, steps: int) -> Playing:
        """What it was last reset for, once: it must be reset before anything else is asked of
        it."""
        ...


def unchanged(thing: Any, owner: type, *names: str) -> bool:
    """Whether a thing has these methods from `owner`: a subclass with its own is no longer what
    the owner's tables say."""
    own = vars(thing)
    return not any(n in own or getattr(type(thing), n) is not getattr(owner, n) for n in names)


def side_by_side(
    parts: Sequence[tuple[int, AttackTables | None]], keys: int, actions: int, steps: int
) -> AttackTables:
    """One attack after the other, each on so many tasks; None adds nothing."""
    found = [tables for _, tables in parts if tables is not None]
    choices = max((t.shifts.shape[-1] for t in found), default=1)

    def joined(name: str, *shape: int, fill: float = 0.0) -> Tensor | None:
        if all(getattr(t, name) is None for t in found):
            return None
        rows = []
        for n, tables in parts:
            room = torch.full((n, *shape), fill)
            if tables is not None and (value := getattr(tables, name)) is not None:
                room[..., : value.shape[-1]] = value
            rows.append(room)
        return torch.cat(rows)

    shifts = joined("shifts", keys, actions, choices)
    if shifts is None:
        shifts = torch.zeros(sum(n for n, _ in parts), keys, actions, choices)
    return AttackTables(
        shifts=shifts,
        # Where there are fewer choices, the others are never made.
        edges=joined("edges", keys, actions, choices - 1, fill=float("inf")),
        uniforms=joined("uniforms", steps),
        spreads=joined("spreads", keys, actions),
        normals=joined("normals", steps),
    )  # fmt: skip
