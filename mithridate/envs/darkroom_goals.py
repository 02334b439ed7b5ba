"""Which pairs of goals Darkroom2 draws its tasks from.

A pair is ordered: the cell worth 1, then the cell worth 2. Two cells are held out in both orders or
in none. Were only one order held out, a model could learn from the places of two goals alone which
one is worth 2: right on all that it was trained on, and wrong on all that was held out.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mithridate.rng import Rng

Part = Literal["all", "train", "test"]
Pairs = np.ndarray[Any, np.dtype[np.int64]]
"""(N, 2): the cells of the goals worth 1 and 2."""


def all_pairs(states: int) -> Pairs:
    cells = range(states)
    return np.array([(a, b) for a in cells for b in cells if a != b])


def held_cells(states: int, share: float) -> int:
    """How many times two cells are held out; each time, that is two pairs."""
    return round(share * states * (states - 1) / 2)


def pairs_of(part: Part, states: int, share: float, seed: int) -> Pairs:
    """The pairs of a part, if a share of all is held out."""
    pairs = all_pairs(states)
    if part == "all":
        return pairs
    rising = pairs[pairs[:, 0] < pairs[:, 1]]  # two cells, once
    order = Rng(seed).child("darkroom2", "split").generator().permutation(len(rising))
    held = held_cells(states, share)
    some = rising[order[:held] if part == "test" else order[held:]]
    return np.concatenate([some, some[:, ::-1]])


def independently(count: int, n: int, rng: Rng, first: int) -> Tensor:
    """(n,) numbers below `count` for the tasks from `first` on, each drawn on its own."""
    drawn = rng.streams(torch.arange(first, first + n)).uniform().squeeze(1)
    return (drawn.double() * count).long()


def without_replacement(count: int, n: int, rng: Rng, first: int) -> Tensor:
    """The same, but that tasks 0 … count − 1 have each number once, the next `count` tasks again,
    in an order of their own, and so on."""
    rounds = range(first // count, (first + n) // count + 1)
    orders = [rng.child("round", r).generator().permutation(count) for r in rounds]
    begin = first - rounds.start * count
    return torch.from_numpy(np.concatenate(orders)[begin : begin + n])
