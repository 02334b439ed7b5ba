"""The in-context model: a sequence of transitions in, a distribution over actions out.

Layout (DPT's, for bandits): a start token, then one token per transition (action one-hot,
reward). The prediction after h transitions is read at position h, so that the empty context is
trained like any other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mithridate.config import ModelConfig
from mithridate.model.cache import KVCache
from mithridate.model.context_model import ContextModel
from mithridate.model.player import NativePlayer, Rows
from mithridate.model.transformer import Transformer
from mithridate.types import Contexts, EnvSpec, Observation, Transition


class OneStreamModel(ContextModel):
    def __init__(self, config: ModelConfig, spec: EnvSpec) -> None:
        super().__init__()
        if spec.observation is not None:
            raise NotImplementedError(f"no context layout for observations of {spec.name}")
        self.config = config
        self.n_actions, self.observation = spec.n_actions, spec.observation
        self.start = nn.Parameter(torch.zeros(config.width))
        self.encoder = nn.Linear(spec.n_actions + 1, config.width)
        self.transformer = Transformer(config, positions=spec.horizon + 1)
        self.head = nn.Linear(config.width, spec.n_actions)
        # Not read: what arms are like is in the weights. They belong to it all the same.
        features = None if spec.features is None else torch.tensor(spec.features)
        self.register_buffer("features", features)  # (A, D)

    def tokens(self, contexts: Contexts) -> Tensor:
        """What the transformer reads: (B, T + 1, D)."""
        tokens = self.encode(contexts.actions, contexts.rewards)  # (B, T, D)
        return torch.cat([self.start.expand(len(tokens), 1, -1), tokens], 1)

    def for_kernels(self, contexts: Contexts) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        columns = self.encoder.weight.T  # (A + 1, D)
        rows = torch.cat([self.start[None], columns[-1:], columns[:-1] + self.encoder.bias])
        return rows, (contexts.actions, contexts.rewards)

    def encode(self, actions: Tensor, rewards: Tensor) -> Tensor:
        """Tokens (..., D) of transitions with actions (...) and rewards (...)."""
        one_hot = F.one_hot(actions, self.n_actions).to(rewards.dtype)
        tokens: Tensor = self.encoder(torch.cat([one_hot, rewards.unsqueeze(-1)], -1))
        return tokens

    def begin(self, batch: int) -> tuple[KVCache, Tensor]:
        """A cache that holds the start token, and the logits (B, A) of the empty context."""
        cache = self.transformer.new_cache(batch, self.player())
        if cache.player is not None:
            return cache, self._play(cache)
        return cache, self._step(self.start.expand(batch, -1), cache)

    def extend(self, cache: KVCache, actions: Tensor, rewards: Tensor) -> Tensor:
        """Append one transition per task, (B,) and (B,); logits (B, A) of the longer context."""
        if cache.player is not None:
            return self._play(cache, (None, actions, rewards, None))
        return self._step(self.encode(actions, rewards), cache)

    has_player = True

    def player(self) -> NativePlayer | None:
        if not self.in_kernels:
            return None
        columns = self.encoder.weight.T  # (A + 1, D)
        rows = Rows(self.start, columns[-1], columns[:-1] + self.encoder.bias)
        return NativePlayer(self.transformer.flat_weights(), self.config, rows, self.head)

    def _play(self, cache: KVCache, transition: Any = None) -> Tensor:
        assert cache.player is not None
        logits = cache.player.step(cache.blocks, cache.position(), transition=transition)
        cache.advance()
        return logits

    # What the agent calls. There is nothing to ask about.

    def begin_at(self, batch: int, obs: Observation) -> tuple[KVCache, Tensor]:
        return self.begin(batch)

    def follow(self, cache: KVCache, transition: Transition, obs: Observation) -> Tensor:
        return self.extend(cache, transition.actions, transition.rewards)

    def ask_again(self, cache: KVCache, obs: Observation) -> Tensor:
        raise NotImplementedError("there is nothing to ask about")

    def _step(self, token: Tensor, cache: KVCache) -> Tensor:
        logits: Tensor = self.head(self.transformer.step(token, cache))
        return logits

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        self.transformer.initialise(generator)
        self.start.normal_(0.0, 0.02, generator=generator)
        for layer in (self.encoder, self.head):
            layer.weight.normal_(0.0, layer.in_features**-0.5, generator=generator)
        self.encoder.bias.zero_()
        self.head.bias.zero_()
