"""What attackers with parameters of their own for every task have in common."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mithridate.errors import UserError

ADAM = (0.9, 0.999, 1e-8)


class PerTask:
    """Parameters, and whatever else belongs to them, for each task met so far. Tasks are told apart
    by their ids, so they may come in any order."""

    def __init__(self) -> None:
        self.ids = torch.zeros(0, dtype=torch.int64)  # (M,) sorted
        self.state: dict[str, Tensor] = {}  # (M, ...) each

    def rows(self, ids: Tensor, fresh: Mapping[str, Tensor]) -> Tensor:
        """Where the tasks (…) are in the state, made longer if some are new. `fresh`: the state of
        one new task."""
        if self.state and _forms(self.state, 1) != _forms(fresh, 0):
            raise UserError("the attackers' state is damaged, or that of others: start anew")
        found: Tensor = ids.unique()  # type: ignore[no-untyped-call]
        new = found[~torch.isin(found, self.ids)]
        if len(new) or not self.state:
            added = {k: v.repeat(len(new), *[1] * v.dim()) for k, v in fresh.items()}
            order = torch.cat([self.ids, new]).argsort()
            self.state = {
                name: (torch.cat([self.state[name], value]) if self.state else value)[order]
                for name, value in added.items()
            }
            self.ids = torch.cat([self.ids, new])[order]
        return torch.searchsorted(self.ids, ids.contiguous())

    def at(self, rows: Tensor) -> dict[str, Tensor]:
        """A copy of some tasks' state."""
        return {name: value[rows] for name, value in self.state.items()}

    def put(self, rows: Tensor, state: Mapping[str, Tensor]) -> None:
        """Keep these tasks' state; no row twice."""
        for name, value in state.items():
            self.state[name][rows] = value

    def forget(self, ids: Tensor) -> None:
        keep = ~torch.isin(self.ids, ids.cpu())
        self.ids = self.ids[keep]
        self.state = {name: value[keep] for name, value in self.state.items()}

    def tensors(self) -> dict[str, Tensor]:
        return {"ids": self.ids, **self.state}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        ids = tensors["ids"].clone()
        state = {name: t.clone() for name, t in tensors.items() if name != "ids"}
        if ids.dtype != torch.int64 or ids.dim() != 1 or (ids[1:] <= ids[:-1]).any():
            raise ValueError("tasks' ids must be whole numbers in ascending order")
        if any(t.dtype != torch.float32 or t.shape[:1] != ids.shape for t in state.values()):
            raise ValueError("every task needs numbers of its own")
        self.ids, self.state = ids, state


class Episodes:
    """Which rows of a batch are episodes of the same task. B episodes, M tasks; without copies both
    are the same, and nothing is done to what is given."""

    def __init__(self, rows: Tensor) -> None:
        """`rows` (B,): where the episodes' tasks are in a `PerTask`."""
        found, which, counts = rows.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
        self.alone = len(found) == len(rows)
        self.rows: Tensor = rows if self.alone else found
        """(M,): the tasks' rows, each once."""
        self._which, self._counts = which, counts

    def first(self, x: Tensor) -> Tensor:
        """(M, ...) of what is the same in all episodes of a task, (B, ...)."""
        if self.alone:
            return x
        order = torch.arange(len(x))
        first = order.new_full((len(self.rows),), len(x))
        return x[first.scatter_reduce(0, self._which, order, "amin")]

    def each(self, x: Tensor) -> Tensor:
        """(B, ...): a task's x (M, ...) for each of its episodes."""
        return x if self.alone else x[self._which]

    def sum(self, x: Tensor) -> Tensor:
        """(M, ...): over the episodes of a task, of x (B, ...)."""
        if self.alone:
            return x
        return x.new_zeros(len(self.rows), *x.shape[1:]).index_add(0, self._which, x)

    def mean(self, x: Tensor) -> Tensor:
        """The same, for their mean."""
        if self.alone:
            return x
        mean: Tensor = self.sum(x) / self._counts.view(-1, *[1] * (x.dim() - 1))
        return mean


def _forms(state: Mapping[str, Tensor], axis: int) -> dict[str, tuple[int, ...]]:
    """The shape of each part of one task's state, after `axis` axes for many tasks."""
    return {name: tuple(value.shape[axis:]) for name, value in state.items()}


class LearnsPerTask:
    """What attackers with parameters for each task keep, and forget."""

    _tasks: PerTask

    def tensors(self) -> dict[str, Tensor]:
        """Everything that `update` changes."""
        return self._tasks.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._tasks.load_tensors(tensors)

    def forget(self, ids: Tensor) -> None:
        """Drop the attackers of these tasks."""
        self._tasks.forget(ids)


def moments(size: int) -> dict[str, Tensor]:
    """What Adam begins with, for one task's `size` parameters."""
    return {"first": torch.zeros(size), "second": torch.zeros(size), "updates": torch.zeros(1)}


def adam(state: dict[str, Tensor], gradient: Tensor, rate: float) -> Tensor:
    """Adam's step for ascent (Kingma and Ba, 2015), task by task: tasks may differ in age. `state`
    has their moments, (B, P) like the gradient, and is brought up to date."""
    b1, b2, tiny = ADAM
    state["updates"] = state["updates"] + 1
    state["first"] = b1 * state["first"] + (1 - b1) * gradient
    state["second"] = b2 * state["second"] + (1 - b2) * gradient**2
    first = state["first"] / (1 - b1 ** state["updates"])
    second = state["second"] / (1 - b2 ** state["updates"])
    return rate * first / (second.sqrt() + tiny)
