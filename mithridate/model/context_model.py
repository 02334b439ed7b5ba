"""What all in-context models share: a transformer over a context, a head, a loss over prefixes.

A layout says how a context becomes tokens (`hidden`) and how one is followed step by step
(`begin_at`, `follow`, `ask_again`), which is all that training and agents call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from mithridate.config import ModelConfig
from mithridate.model.dispatch import NativeLoss
from mithridate.model.loss import linear_cross_entropy
from mithridate.model.player import NativePlayer
from mithridate.model.threads import left_to_kernels
from mithridate.model.transformer import Transformer
from mithridate.observations import ObservationSpec
from mithridate.types import Contexts, Observation, Transition


class ContextModel(nn.Module, ABC):
    config: ModelConfig
    n_actions: int
    observation: ObservationSpec
    """What it was made for."""
    transformer: Transformer
    head: nn.Linear
    features: Tensor | None
    """(A, D): what is known of each action, if anything is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("features", None)

    @property
    def context_length(self) -> int:
        """Transitions that the model can hold."""
        return len(self.transformer.positions) - 1

    @property
    def in_kernels(self) -> bool:
        """Whether the native kernels do nearly all of its work."""
        return self.transformer.in_kernels

    def forward(self, contexts: Contexts) -> Tensor:
        """Logits after every prefix: (B, T + 1, A)."""
        logits: Tensor = self.head(self.hidden(contexts))
        return logits

    def loss(self, contexts: Contexts) -> Tensor:
        """Cross-entropy to the labels, averaged over all prefixes."""
        with left_to_kernels(self.in_kernels):
            if torch.is_grad_enabled() and self.transformer.in_kernels:
                return self._native_loss(contexts, *self.for_kernels(contexts))
            return linear_cross_entropy(self.hidden(contexts), self.head, contexts.labels)

    def _native_loss(
        self, contexts: Contexts, tokens: Tensor, transitions: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        return NativeLoss.apply(  # type: ignore[no-untyped-call,no-any-return]
            tokens, transitions, contexts.labels, self.streams, self.config,
            self.head.weight, self.head.bias, *self.transformer.parameters(),
        )  # fmt: skip

    streams = 1
    """Of tokens: context, and perhaps queries."""

    has_player = False
    """Whether the kernels have this layout."""

    def player(self) -> NativePlayer | None:
        """It in the kernels, with the weights as they are now, if they have this layout."""
        return None

    @abstractmethod
    def tokens(self, contexts: Contexts) -> Tensor:
        """What the transformer reads: (B, T + 1, D), or twice as many with two streams."""

    def for_kernels(self, contexts: Contexts) -> tuple[Any, ...]:
        """The same, or what it is made of, as NativeLoss takes it."""
        return (self.tokens(contexts),)

    def hidden(self, contexts: Contexts) -> Tensor:
        """What the head reads: (B, T + 1, D)."""
        tokens = self.tokens(contexts)
        if self.streams == 2:
            return self.transformer.two_streams(*tokens.chunk(2, 1))
        hidden: Tensor = self.transformer(tokens)
        return hidden

    @abstractmethod
    def begin_at(self, batch: int, obs: Observation) -> tuple[Any, Tensor]:
        """What is kept of the empty context, and its logits (B, A)."""

    @abstractmethod
    def follow(self, cache: Any, transition: Transition, obs: Observation) -> Tensor:
        """Append one transition per task; logits (B, A) for where the next action is due."""

    @abstractmethod
    def ask_again(self, cache: Any, obs: Observation) -> Tensor:
        """Logits (B, A) for another state, after the same context."""

    @abstractmethod
    def initialise(self, generator: torch.Generator) -> None: ...
