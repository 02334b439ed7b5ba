"""What attackers with parameters of their own for every task have in common."""

from __future__ import annotations

import torch
from torch import Tensor

ADAM = (0.9, 0.999, 1e-8)


class PerTask:
    """Parameters, and Adam's moments, for each task met so far. Tasks are told apart by their ids,
    so they may come in any order; a task never met starts from `fresh`."""

    def __init__(self) -> None:
        self.ids = torch.zeros(0, dtype=torch.int64)  # (M,) sorted
        self.state: dict[str, Tensor] = {}  # (M, ...) each

    def rows(self, ids: Tensor, fresh: dict[str, Tensor]) -> Tensor:
        """Where the tasks are in the state, made longer if some are new. `fresh`: the parameters of
        one new task."""
        new = torch.tensor(sorted(set(ids.tolist()) - set(self.ids.tolist())), dtype=torch.int64)
        if len(new) or not self.state:
            added: dict[str, Tensor] = {}
            for name, value in fresh.items():
                zeros = torch.zeros(len(new), *value.shape)
                added |= {name: zeros + value, f"{name}.first": zeros, f"{name}.second": zeros}
            added["updates"] = torch.zeros(len(new))
            order = torch.cat([self.ids, new]).argsort()
            self.state = {
                name: (torch.cat([self.state[name], value]) if self.state else value)[order]
                for name, value in added.items()
            }
            self.ids = torch.cat([self.ids, new])[order]
        return torch.searchsorted(self.ids, ids)

    def forget(self, ids: Tensor) -> None:
        keep = ~torch.isin(self.ids, ids.cpu())
        self.ids = self.ids[keep]
        self.state = {name: value[keep] for name, value in self.state.items()}

    def tensors(self) -> dict[str, Tensor]:
        return {"ids": self.ids, **self.state}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.ids = tensors["ids"].clone()
        self.state = {name: t.clone() for name, t in tensors.items() if name != "ids"}


def adam(state: dict[str, Tensor], name: str, gradient: Tensor, rate: float) -> Tensor:
    """Adam's step for ascent (Kingma and Ba, 2015), task by task: tasks may differ in age. `state`
    has its moments (B, ...) and, already raised, the number of updates (B,)."""
    b1, b2, tiny = ADAM
    age = state["updates"].view(-1, *[1] * (gradient.dim() - 1))
    first = state[f"{name}.first"] = b1 * state[f"{name}.first"] + (1 - b1) * gradient
    second = state[f"{name}.second"] = b2 * state[f"{name}.second"] + (1 - b2) * gradient**2
    return rate * (first / (1 - b1**age)) / ((second / (1 - b2**age)).sqrt() + tiny)
