"""Attacks that searches have found, kept with the package: what `mixture_ts(prior=searched)` takes
for probable, and what `replay` shows a model in training.

They come from fictitious play (scripts/searched_attacks.py): search the worst attack on each of
some tasks against an agent that knows all attacks found so far, add what is found, and so on. The
tasks are not those of any table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from mithridate.errors import UserError
from mithridate.tensor_files import part, read_tensors, sealed

FILE = Path(__file__).with_name("searched.safetensors")


@dataclass(frozen=True)
class Searched:
    """Of N tasks with A arms, in the order of their means."""

    means: Tensor
    """(N, A)."""
    offsets: Tensor
    """(N, A)."""

    @classmethod
    def sorted(cls, means: Tensor, offsets: Tensor) -> Searched:
        order = means.argsort(1)
        return cls(means.gather(1, order), offsets.gather(1, order))

    @classmethod
    def cat(cls, parts: list[Searched]) -> Searched:
        return cls(torch.cat([p.means for p in parts]), torch.cat([p.offsets for p in parts]))


def levels(tensors: dict[str, Tensor]) -> dict[float, Searched]:
    """By the share of poisoned rewards that the attacks were found at."""
    names = {name.rpartition(".")[0] for name in tensors}
    return {float(name): Searched(**part(tensors, f"{name}.")) for name in sorted(names)}


@lru_cache
def _shipped() -> dict[float, Searched]:
    tensors, metadata, _ = read_tensors(FILE, "attacks")
    if sealed(tensors, metadata) is None:
        raise UserError(f"attacks {FILE} are damaged; install the package anew")
    return levels(tensors)


def searched(eps: float) -> Searched:
    """What was found at the nearest share of poisoned rewards."""
    found = _shipped()
    return found[min(found, key=lambda level: abs(level - eps))]
