"""Randomness without a global generator: a tree of named streams.

`Rng(seed).child("pretrain", step)` names a stream; the name *is* the state, so a run is
restored by restoring its seed and its cursor, and nothing drawn in one stream can shift
another. Streams are counter-based (Philox): one key per (name, task), hence

- splitting a batch of tasks changes nothing, and
- two victims evaluated with the same `Rng` meet the same tasks, noise and contamination.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rng:
    """A node of the tree. Children are independent of each other and of their parent."""

    seed: int
    path: tuple[str | int, ...] = ()

    def child(self, *names: str | int) -> Rng:
        return Rng(self.seed, (*self.path, *names))

    def _words(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Two 64-bit words that identify this stream."""
        name = json.dumps([self.seed, *self.path]).encode()
        return np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), dtype=np.uint64)

    def generator(self) -> np.random.Generator:
        """A fresh generator at the beginning of this stream."""
        return np.random.Generator(np.random.Philox(key=self._words()))

    def integer(self) -> int:
        """A number that stands for this stream, for those who want a seed."""
        return int(self._words()[0] >> np.uint64(33))

    def torch_generator(self) -> torch.Generator:
        """The same for PyTorch (CPU), used to initialise weights."""
        return torch.Generator().manual_seed(int(self._words()[0] >> np.uint64(1)))

    def streams(
        self, ids: Tensor | Sequence[int], device: torch.device | str = "cpu"
    ) -> TaskStreams:
        """One independent stream for each task id."""
        return TaskStreams(self, torch.as_tensor(ids).tolist(), torch.device(device))

    def state(self) -> dict[str, Any]:
        return {"seed": self.seed, "path": list(self.path)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Rng:
        return cls(int(state["seed"]), tuple(state["path"]))


class TaskStreams:
    """Random numbers for B tasks at once, each task drawing from a stream of its own.

    Draws of different kinds or widths come from different streams, so that an agent may
    interleave them freely. They are made in blocks, because a step is short and a call is dear;
    how long a block is changes nothing in what is drawn.
    """

    BLOCK = 64  # steps drawn ahead, at most
    AHEAD = 4096  # numbers that a task's block has, at most, if it is longer than a step

    def __init__(self, rng: Rng, ids: list[int], device: torch.device) -> None:
        self._rng = rng
        self._ids = ids
        self.device = device
        self._generators: dict[tuple[str, int], list[np.random.Generator]] = {}
        self._drawn: dict[tuple[str, int], int] = {}  # steps, without generators to go on with
        self._blocks: dict[tuple[str, int], tuple[Tensor, int]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def integer(self) -> int:
        """A number that stands for these streams, for those who want a seed."""
        return self._rng.child("seed", *self._ids).integer()

    @classmethod
    def block(cls, n: int) -> int:
        """Steps that are drawn ahead if each has n numbers."""
        return min(cls.BLOCK, max(1, cls.AHEAD // n))

    def select(self, part: slice) -> TaskStreams:
        """The streams of some of the tasks, from their beginning."""
        return TaskStreams(self._rng, self._ids[part], self.device)

    def uniform(self, n: int = 1) -> Tensor:
        """The next (B, n) numbers, uniform on [0, 1)."""
        return self._next("uniform", n)

    def normal(self, n: int = 1) -> Tensor:
        """The next (B, n) standard normal numbers."""
        return self._next("normal", n)

    def ahead(self, kind: Literal["uniform", "normal"], steps: int, n: int = 1) -> Tensor:
        """(B, steps), or (B, steps, n): what so many calls of `uniform(n)` or `normal(n)` would
        give."""
        block, used = self._blocks.pop((kind, n), (torch.empty(0, len(self), n), 0))
        left = block[used : used + steps].transpose(0, 1)  # (B, …, n)
        if used + steps < len(block):
            self._blocks[kind, n] = (block, used + steps)
        fresh = torch.from_numpy(self._numbers(kind, n, steps - left.shape[1]))
        found = torch.cat([left, fresh.to(self.device)], 1)
        return found[..., 0] if n == 1 else found

    def _next(self, kind: str, n: int) -> Tensor:
        if n == 0:
            return torch.empty(len(self), 0, device=self.device)
        block, used = self._blocks.get((kind, n), (None, 0))
        if block is None or used == len(block):
            block, used = self._draw(kind, n), 0
        self._blocks[kind, n] = (block, used + 1)
        return block[used]

    def _draw(self, kind: str, n: int) -> Tensor:
        out = self._numbers(kind, n, self.block(n))
        block = np.ascontiguousarray(out.transpose(1, 0, 2))  # (block, B, n)
        return torch.from_numpy(block).to(self.device)

    def _numbers(self, kind: str, n: int, steps: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(B, steps, n): the next of each stream. Most streams are asked once: generators to go on
        with are made when they are asked again, and then go over what was drawn."""
        out = np.empty((len(self._ids), steps, n), dtype=np.float32)
        word = self._rng.child(kind, n)._words()[0]
        first = (kind, n) not in self._drawn
        if not first and (kind, n) not in self._generators:
            again = np.empty((self._drawn[kind, n], n), dtype=np.float32)
            self._generators[kind, n] = [_of_task(word, i) for i in self._ids]
            for generator in self._generators[kind, n]:
                _fill(again, kind, generator)
        generators = _beginnings(word, self._ids) if first else self._generators[kind, n]
        for row, generator in zip(out, generators, strict=True):
            _fill(row, kind, generator)
        self._drawn.setdefault((kind, n), steps)
        return out


def _of_task(word: np.uint64, task: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([word, task], dtype=np.uint64)))


def _beginnings(word: np.uint64, ids: list[int]) -> Iterator[np.random.Generator]:
    """For each task, a generator at the beginning of its stream. It is always the same one, set
    anew: to make one takes ten times as long."""
    generator = _of_task(word, 0)
    state = generator.bit_generator.state
    for i in ids:
        state["state"]["key"][1] = i
        generator.bit_generator.state = state
        yield generator


def _fill(
    out: np.ndarray[Any, np.dtype[np.float32]], kind: str, generator: np.random.Generator
) -> None:
    draw = generator.random if kind == "uniform" else generator.standard_normal
    draw(out=out, dtype=np.float32)
