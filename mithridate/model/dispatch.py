"""Which kernel runs: the one place where device, type and shape decide between native and PyTorch.

Everything that is not float32 on the CPU with a supported shape goes through PyTorch's own
kernels, so a GPU needs nothing from here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mithridate.config import ModelConfig
from mithridate.model.memory import Pool
from mithridate.model.threads import kernel_threads
from mithridate.native import ALIGNMENT, HEAD_WIDTHS, kernels


def _plain(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and kernels() is not None


def attention_is_native(q: Tensor) -> bool:
    """For `attention.causal` on q (B, heads, T, d)."""
    return _plain(q) and q.shape[-1] in HEAD_WIDTHS and q.numel() > 0


def transformer_is_native(x: Tensor, config: ModelConfig) -> bool:
    """For a whole transformer on inputs x (..., D)."""
    return (
        _plain(x)
        and config.width // config.heads in HEAD_WIDTHS
        and config.width % ALIGNMENT == 0
        and x.numel() > 0
    )


def cross_entropy_is_native(x: Tensor) -> bool:
    """For a linear layer and cross-entropy on x (N, D)."""
    return _plain(x) and x.shape[-1] % ALIGNMENT == 0 and x.numel() > 0


class NativeCausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.contiguous() for t in (q, k, v))
        batch, heads, length, width = q.shape
        out = torch.empty_like(q)
        m, inverse = q.new_empty(2, batch * heads, length)
        sizes = (batch * heads, length, width, kernel_threads())
        kernels().attention_forward(q.detach(), k.detach(), v.detach(), out, m, inverse, *sizes)
        ctx.save_for_backward(q, k, v, out, m, inverse)
        ctx.sizes = sizes
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        q, k, v, out, m, inverse = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        kernels().attention_backward(
            q.detach(), k.detach(), v.detach(), out.detach(), d_out.contiguous(), m, inverse,
            dq, dk, dv, *ctx.sizes,
        )  # fmt: skip
        return dq, dk, dv


_ACTIVATIONS = Pool()
"""What forward passes keep for their backward passes, until the graph is freed."""


class NativeTransformer(torch.autograd.Function):
    """The whole transformer, forward and backward, one sequence per thread."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, config: ModelConfig, streams: int = 1
    ) -> Tensor:
        """x (B, T, D); weights: all parameters of the Transformer, flat, in their order. With two
        streams, the first half of the tokens is the context, the second the queries."""
        x = x.contiguous()
        batch, length, _ = x.shape
        ctx.sizes = (
            *shape_of(weights, config), batch, length // streams, streams, kernel_threads(),
        )  # fmt: skip
        out = torch.empty_like(x)
        ctx.activations = _ACTIVATIONS.take(
            (config.layers + 1) * x.numel(),
            config.layers * x.numel(),
            config.layers * batch * 2 * config.heads * length,
        )
        kernels().forward(weights.detach(), x.detach(), out, *ctx.activations.parts, *ctx.sizes)
        ctx.save_for_backward(weights)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        (weights,) = ctx.saved_tensors
        d_out = d_out.contiguous()
        dx, d_weights = torch.empty_like(d_out), torch.empty_like(weights)
        kernels().backward(
            weights.detach(), d_out, *ctx.activations.parts, dx, d_weights, *ctx.sizes
        )
        return dx, d_weights, None, None


class NativeLoss(torch.autograd.Function):
    """Transformer, linear head and cross-entropy, forward and backward in one pass."""

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, transitions: tuple[Tensor, Tensor] | None, labels: Tensor,
        streams: int, config: ModelConfig, head: Tensor, bias: Tensor, *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        """The mean loss over labels (B, T). Tokens (B, N, D), as NativeTransformer takes them; or,
        if there are transitions (actions and rewards, (B, T - 1) each), the rows that tokens are
        sums of, (A + 2, D): the first token, what a reward of 1 adds, and each action.
        Parameters: the Transformer's, in their order."""
        weights = torch.cat([p.detach().reshape(-1) for p in parameters])
        tokens = tokens.detach().contiguous()
        padded = -(-len(bias) // ALIGNMENT) * ALIGNMENT
        sizes = [len(weights), head.numel(), tokens.numel() if transitions else 0, padded]
        gradients = weights.new_empty(sum(sizes))
        d_weights, d_head, d_rows, d_bias = torch.split(gradients, sizes)
        if transitions:
            d_tokens = d_rows.view_as(tokens)
            given = (None, None, tokens, *(t.contiguous() for t in transitions))
        else:
            d_tokens = torch.empty_like(tokens)
            given = (tokens, d_tokens, None, None, None)
        loss = kernels().learn(
            weights, *given, head.detach().contiguous(), bias.detach(), labels.contiguous(),
            gradients, *shape_of(weights, config), *labels.shape, streams, kernel_threads(),
        )  # fmt: skip
        parts = torch.split(d_weights, [p.numel() for p in parameters])
        ctx.gradients = (
            d_tokens, d_head.view_as(head), d_bias[: len(bias)],
            *(part.view_as(p) for part, p in zip(parts, parameters, strict=True)),
        )  # fmt: skip
        return weights.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        tokens, *rest = ctx.gradients
        if d_out.item() != 1.0:
            tokens, *rest = (g * d_out for g in ctx.gradients)
        return tokens, None, None, None, None, *rest


class NativeCrossEntropy(torch.autograd.Function):
    """Linear layer and cross-entropy in one pass, which computes the gradients as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        """x (N, D), weight (A, D), bias (A,), labels (N,); the mean loss."""
        x, weight, labels = x.contiguous(), weight.contiguous(), labels.contiguous()
        dx, dw, db = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        loss = kernels().cross_entropy(
            x.detach(), weight.detach(), bias.detach(), labels, dx, dw, db,
            kernel_threads(),
        )  # fmt: skip
        ctx.save_for_backward(dx, dw, db)
        return x.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        dx, dw, db = ctx.saved_tensors
        if d_out.item() != 1.0:
            dx, dw, db = dx * d_out, dw * d_out, db * d_out
        return dx, dw, db, None


def shape_of(weights: Tensor, config: ModelConfig) -> tuple[int, int, int, int]:
    """Layers, heads, width, positions. A block has 12 D² + 13 D parameters, the last norm 2 D."""
    width = config.width
    in_blocks = config.layers * (12 * width * width + 13 * width) + 2 * width
    return config.layers, config.heads, width, (len(weights) - in_blocks) // width


class NativeDecoder:
    """A transformer's weights as they are now, laid out to add one position at a time."""

    def __init__(self, weights: Tensor, config: ModelConfig) -> None:
        self._decoder = kernels().Decoder(weights.detach(), *shape_of(weights, config))

    def step(
        self, x: Tensor, cache: Tensor, position: int, queries: Tensor | None = None
    ) -> Tensor:
        """(B, D) → (B, D), writing the new position into the cache of keys and values,
        (B, layers, 2, heads, capacity / 16, d, 16). With queries (B, D), which see all positions
        up to the new one and are seen by nobody, what becomes of these instead."""
        x = x.detach().contiguous()
        if queries is not None:
            queries = queries.detach().contiguous()
        out = torch.empty_like(x)
        capacity, threads = cache.shape[4] * ALIGNMENT, kernel_threads()
        self._decoder.step(x, queries, cache, out, position, capacity, threads)
        return out
