"""Interactions with labels: what in-context models learn from.

Where states have numbers, a context has these. Other observations are kept once each, in a bank of
frames that all contexts of a batch share, and a context has their places in it; so an image takes
its bytes once, although it is where one transition ended, where the next began, and what is asked
about. Views (`observations.py`) have numbers of their own, and contexts have these; `banked` puts
each that they have into a bank, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from mithridate.observations import Observation, each, join

LONGER = ("labels", "queries", "values")
"""Of contexts with T transitions there are T + 1 of these."""
PLACES = ("states", "next_states", "queries")
"""Numbers of states, or places in the bank."""
BANK = "bank"


@dataclass(frozen=True)
class Contexts:
    """Prefix h holds the first h transitions."""

    actions: Tensor
    """(B, T) int64."""
    rewards: Tensor
    """(B, T) float32, as the agent would observe them."""
    labels: Tensor
    """(B, T + 1) int64: the action to predict after each prefix, the empty one included."""
    states: Tensor | None = None
    """(B, T): where each action was taken, if there are states."""
    next_states: Tensor | None = None
    """(B, T): where it led."""
    queries: Tensor | None = None
    """(B, T + 1): the state that each label is for."""
    values: Tensor | None = None
    """(B, T + 1, A), or (B, 1, A) if it is the same after all prefixes: what the environment says
    that each action is worth where the label is for. For whoever makes other labels."""
    bank: Observation = None
    """(N, ...): observations, if they are not the numbers of states; `states`, `next_states` and
    `queries` are then places in it."""

    def _by_task(self) -> dict[str, Tensor]:
        names = [f.name for f in fields(self) if f.name != BANK]
        return {name: t for name in names if (t := getattr(self, name)) is not None}

    def tensors(self) -> dict[str, Tensor]:
        """All that there is, by name; the parts of a bank are 'bank' or 'bank.NAME'."""
        if isinstance(self.bank, dict):
            return self._by_task() | {f"{BANK}.{name}": t for name, t in self.bank.items()}
        return self._by_task() | ({} if self.bank is None else {BANK: self.bank})

    def select(self, rows: Tensor | slice, length: int) -> Contexts:
        """Some of the contexts, and of each the first `length` transitions: a prefix is a context
        too. Of the bank, what they need."""
        some = {k: t[rows, : length + (k in LONGER)] for k, t in self._by_task().items()}
        if self.bank is None:
            return Contexts(**some)
        used, places = _distinct(some)
        return Contexts(**some | places, bank=each(self.bank, lambda frames: frames[used]))

    def banked(self) -> Contexts:
        """The same with a bank of the numbers that they have, each once, and places in it."""
        numbers, places = _distinct(self._by_task())
        return replace(self, **places, bank=numbers)

    def renumbered(self, actions: int, draw: np.random.Generator) -> Contexts:
        """The same with other numbers for the actions, drawn for each context."""
        numbers = draw.random((len(self.actions), actions)).argsort(1)
        new = torch.from_numpy(numbers).to(self.actions.device)  # (B, A): from old to new
        values = self.values
        if values is not None:
            back = new.argsort(1)[:, None].expand(-1, values.shape[1], -1)
            values = values.gather(2, back)
        return replace(
            self, actions=new.gather(1, self.actions), labels=new.gather(1, self.labels),
            values=values,
        )  # fmt: skip

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], batch: int, length: int) -> Contexts:
        """Contexts from a file, without values. A ValueError if they are not so many, of this
        length."""
        frames = {k: t for k, t in tensors.items() if k.partition(".")[0] == BANK}
        found = {k: t for k, t in tensors.items() if k not in frames}
        for name, tensor in found.items():
            kind = torch.float32 if name == "rewards" else torch.int64
            if tensor.dtype != kind or tensor.shape != (batch, length + (name in LONGER)):
                raise ValueError(f"these contexts have odd {name}")
        if not frames:
            return cls(**found)
        count = min(len(t) for t in frames.values())
        places = [found[k] for k in PLACES if k in found]
        if len(places) < len(PLACES) or any(p.min() < 0 or p.max() >= count for p in places):
            raise ValueError("these contexts have places that are not in their bank")
        named = {k.partition(".")[2]: t for k, t in frames.items()}
        return cls(**found, bank=named.get("", named))

    @classmethod
    def cat(cls, parts: Sequence[Contexts]) -> Contexts:
        """One batch after the other, and one bank after the other."""
        if parts[0].bank is not None:
            parts = _shifted(parts)
        names = parts[0]._by_task()
        joined = {k: torch.cat([p._by_task()[k] for p in parts]) for k in names}
        return cls(**joined, bank=join([p.bank for p in parts]))


def _distinct(tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """What there is in `states`, `next_states` and `queries`, each once, and where each is in
    that."""
    asked = {name: tensors[name] for name in PLACES}
    used, places = torch.cat([t.flatten() for t in asked.values()]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    split = places.split([t.numel() for t in asked.values()])
    return used, {k: p.view(t.shape) for (k, t), p in zip(asked.items(), split, strict=True)}


def _shifted(parts: Sequence[Contexts]) -> list[Contexts]:
    """With places as they are once the banks are joined."""
    first, shifted = 0, []
    for part in parts:
        places = {name: getattr(part, name) + first for name in PLACES}
        shifted.append(replace(part, **places))
        bank = part.bank
        assert bank is not None
        first += len(next(iter(bank.values())) if isinstance(bank, dict) else bank)
    return shifted
