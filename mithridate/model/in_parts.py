"""Layers of PyTorch's, applied to many rows: in parts of a fixed size, by threads of our own.

A part's intermediate results stay in a core's cache, and the threads do not hold on to a core when
they are done, as PyTorch's do (`threads.py`). Gradients are added in the order of the parts, so the
result does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mithridate.model.threads import kernel_threads

PART = 512
"""Rows that are worked on at once."""

A = TypeVar("A")
T = TypeVar("T")


def in_parts(layers: nn.Module, rows: Tensor) -> Tensor:
    """layers(rows), rows (N, ...), on the CPU in parts."""
    if rows.device.type != "cpu" or len(rows) <= PART:
        found: Tensor = layers(rows)
        return found
    return _InParts.apply(layers, rows, *layers.parameters())  # type: ignore[no-untyped-call,no-any-return]


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layers: nn.Module, rows: Tensor, *parameters: Tensor) -> Tensor:
        """The rows themselves are data: nothing has a gradient but the parameters."""
        wanted = any(ctx.needs_input_grad)

        def forward(part: Tensor) -> Tensor:
            with torch.set_grad_enabled(wanted):
                found: Tensor = layers(part)
                return found

        ctx.outs = _by_threads(forward, torch.split(rows, PART))
        ctx.parameters = list(layers.parameters())
        return torch.cat([out.detach() for out in ctx.outs])

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        def backward(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
            out, d = pair
            gradients: tuple[Tensor, ...] = torch.autograd.grad(out, ctx.parameters, d)
            return gradients

        parts = _by_threads(backward, list(zip(ctx.outs, torch.split(d_out, PART), strict=True)))
        sums = [torch.stack(gradients).sum(0) for gradients in zip(*parts, strict=True)]
        return None, None, *sums


def _by_threads(work: Callable[[A], T], parts: Sequence[A]) -> list[T]:
    """work(part) of each, in this order. A thread of ours has one of PyTorch's."""
    with ThreadPoolExecutor(
        kernel_threads(), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        return list(pool.map(work, parts))
