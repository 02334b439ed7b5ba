"""DPT's own layout for MDPs, kept for comparison: the query comes first, then the transitions.

Everything after the query depends on it, so nothing can be cached: an agent whose state changes at
every step reads its whole context again at every step. In training, all prefixes of a context share
its one query (`Contexts.queries` must be constant along time).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mithridate.model.two_stream import TwoStreamModel
from mithridate.types import Contexts, Observation, Transition


class QueryFirstModel(TwoStreamModel):
    """The same parts as the two-stream model, put together differently. (Its start token is not
    used.)"""

    has_player = False

    def player(self) -> None:
        """The kernels have no such layout."""
        return None

    streams = 1

    def tokens(self, contexts: Contexts) -> Tensor:
        c = contexts
        assert c.states is not None and c.next_states is not None and c.queries is not None
        tokens = self.encode(c.states, c.actions, c.rewards, c.next_states)  # (B, T, D)
        return torch.cat([self.ask(c.queries[:, :1]), tokens], 1)

    def begin_at(self, batch: int, obs: Observation) -> tuple[list[Tensor], Tensor]:  # type: ignore[override]
        read: list[Tensor] = []
        return read, self.ask_again(read, obs)

    def follow(  # type: ignore[override]
        self, cache: list[Tensor], transition: Transition, obs: Observation
    ) -> Tensor:
        cache.append(self.encode(*transition))  # type: ignore[arg-type]
        return self.ask_again(cache, obs)

    def ask_again(self, cache: list[Tensor], obs: Observation) -> Tensor:  # type: ignore[override]
        assert isinstance(obs, Tensor)
        hidden = self.transformer(torch.stack([self.ask(obs), *cache], 1))[:, -1]
        logits: Tensor = F.linear(hidden, self.head.weight, self.head.bias)
        return logits
