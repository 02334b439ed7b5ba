"""GPT-2 blocks (Radford et al., 2019): pre-norm, tanh GELU, learned positions, no dropout."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mithridate.config import ModelConfig
from mithridate.model import attention, dispatch
from mithridate.model.cache import KVCache
from mithridate.model.player import NativePlayer


class Block(nn.Module):
    """LayerNorm, causal self-attention, residual; LayerNorm, MLP, residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """All positions at once: (B, T, D) → (B, T, D)."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, T, d)
        mixed = attention.causal(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.mlp(x)

    def step(self, x: Tensor, cache: KVCache, layer: int) -> Tensor:
        """One new position: (B, D) → (B, D); its key and value go into the cache."""
        batch, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, 3, self.heads, width // self.heads)
        q, k, v = qkv.unbind(1)  # each (B, heads, d)
        keys, values = cache.write(layer, k, v)
        x = x + self.out(attention.decode(q, keys, values).reshape(batch, width))
        return x + self.mlp(x)

    def two_streams(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Context (B, T, D) and queries (B, T, D): query t sees context positions 0 … t, and nobody
        sees a query."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, T, d)
        asked = self._query(y).view(batch, length, self.heads, -1).transpose(1, 2)

        def mix(q: Tensor) -> Tensor:
            return attention.causal(q, k, v).transpose(1, 2).reshape(batch, length, width)

        x, y = x + self.out(mix(q)), y + self.out(mix(asked))
        return x + self.mlp(x), y + self.mlp(y)

    def step_with_query(
        self, x: Tensor, y: Tensor, cache: KVCache, layer: int
    ) -> tuple[Tensor, Tensor]:
        """One new position and a query that sees it: (B, D) each."""
        batch, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, 3, self.heads, width // self.heads)
        q, k, v = qkv.unbind(1)  # each (B, heads, d)
        asked = self._query(y).view(batch, self.heads, -1)
        keys, values = cache.write(layer, k, v)
        x = x + self.out(attention.decode(q, keys, values).reshape(batch, width))
        y = y + self.out(attention.decode(asked, keys, values).reshape(batch, width))
        return x + self.mlp(x), y + self.mlp(y)

    def _query(self, y: Tensor) -> Tensor:
        width = y.shape[-1]
        return F.linear(self.norm1(y), self.qkv.weight[:width], self.qkv.bias[:width])

    def mlp(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return hidden


class Transformer(nn.Module):
    """Positions, blocks and the final norm, on embedded inputs."""

    def __init__(self, config: ModelConfig, positions: int) -> None:
        super().__init__()
        self.config = config
        self.positions = nn.Parameter(torch.zeros(positions, config.width))
        self.blocks = nn.ModuleList(
            [Block(config.width, config.heads) for _ in range(config.layers)]
        )
        self.norm = nn.LayerNorm(config.width)

    @property
    def in_kernels(self) -> bool:
        """Whether the native kernels do its work."""
        return dispatch.transformer_is_native(self.positions, self.config)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D); position t sees positions 0 … t."""
        if dispatch.transformer_is_native(x, self.config):
            return dispatch.NativeTransformer.apply(x, self.flat_weights(), self.config)  # type: ignore[no-untyped-call,no-any-return]
        x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        normed: Tensor = self.norm(x)
        return normed

    def step(self, x: Tensor, cache: KVCache) -> Tensor:
        """(B, D) → (B, D): what `forward` gives at the next position, given the cache."""
        position = cache.position()
        if cache.decoder is not None:
            out = cache.decoder.step(x, cache.blocks, position)
            cache.advance()
            return out
        x = x + self.positions[position]
        for layer, block in enumerate(self.blocks):
            x = block.step(x, cache, layer)  # type: ignore[operator]
        cache.advance()
        normed: Tensor = self.norm(x)
        return normed

    def two_streams(self, x: Tensor, y: Tensor) -> Tensor:
        """Context (B, T, D) and queries (B, T, D) → (B, T, D): what becomes of the queries. Query t
        sees context positions 0 … t, and nobody sees a query."""
        if dispatch.transformer_is_native(x, self.config):
            both = dispatch.NativeTransformer.apply(  # type: ignore[no-untyped-call]
                torch.cat([x, y], 1), self.flat_weights(), self.config, 2
            )
            return both[:, x.shape[1] :]  # type: ignore[no-any-return]
        x, y = x + self.positions[: x.shape[1]], y + self.positions[: y.shape[1]]
        for block in self.blocks:
            x, y = block.two_streams(x, y)  # type: ignore[operator]
        normed: Tensor = self.norm(y)
        return normed

    def step_with_query(self, x: Tensor, y: Tensor, cache: KVCache) -> Tensor:
        """(B, D) each → (B, D): what `two_streams` gives for the query at the next position."""
        position = cache.position()
        if cache.decoder is not None:
            answer = cache.decoder.step(x, cache.blocks, position, y)
            cache.advance()
            return answer
        x, y = x + self.positions[position], y + self.positions[position]
        for layer, block in enumerate(self.blocks):
            x, y = block.step_with_query(x, y, cache, layer)  # type: ignore[operator]
        cache.advance()
        normed: Tensor = self.norm(y)
        return normed

    def flat_weights(self) -> Tensor:
        """All parameters in one vector, which is how the native kernels take them."""
        return torch.cat([p.reshape(-1) for p in self.parameters()])

    def new_cache(self, batch: int, player: NativePlayer | None = None) -> KVCache:
        """For steps with the weights as they are now; a player has its own."""
        decoder = None
        if self.in_kernels and player is None:
            decoder = dispatch.NativeDecoder(self.flat_weights(), self.config)
        weight = self.positions.detach()
        return KVCache(batch, self.config, len(weight), weight, decoder, player)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Weights of variance 1 / inputs, residual projections scaled down by √(2·layers), small
        positions. GPT-2's own 0.02 is right for its widths of 768 and more; at width 32 it makes
        the first thousand steps slow."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
            elif name == "positions":
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                residual = name.endswith(("out.weight", "down.weight"))
                scale = math.sqrt(2 * self.config.layers) if residual else 1.0
                std = 1 / (scale * math.sqrt(parameter.shape[1]))
                parameter.normal_(0.0, std, generator=generator)
