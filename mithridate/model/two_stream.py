"""The in-context model of MDPs: two streams through the same blocks.

Context stream: a start token, then one token per transition (s, a, r, s'), causal. Query stream:
one token per state that is asked about; query h sees the first h transitions and is seen by nobody.
So the context can be cached although the query changes at every step, and all prefixes are trained
at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mithridate.config import ModelConfig
from mithridate.model.cache import KVCache
from mithridate.model.context_model import ContextModel
from mithridate.model.embedding import ObservationEmbedding, Remembered
from mithridate.model.player import NativePlayer
from mithridate.model.player import Rows as TokenRows
from mithridate.model.transformer import Transformer
from mithridate.observations import Views, looked_at
from mithridate.types import Contexts, EnvSpec, Observation, Transition


class Rows(NamedTuple):
    """What the tokens of observations are sums of, (S, D) or (N, D) each."""

    before: Tensor
    """Where a transition begins."""
    after: Tensor
    """Where it ends."""
    asked: Tensor
    """What is asked about."""


class TwoStreamModel(ContextModel):
    def __init__(self, config: ModelConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.config = config
        self.n_actions, self.observation = spec.n_actions, spec.observation
        self.embedding: ObservationEmbedding | None = None
        self.size = config.width
        """How long the vector of an observation is; a one-hot one if states have numbers."""
        if spec.n_states is not None:
            self.size = spec.n_states
        self.start = nn.Parameter(torch.zeros(config.width))
        self.encoder = nn.Linear(2 * self.size + spec.n_actions + 1, config.width)
        self.query = nn.Linear(self.size, config.width)
        self.transformer = Transformer(config, positions=spec.horizon + 1)
        self.head = nn.Linear(config.width, spec.n_actions)
        if spec.n_states is None:
            self.embedding = ObservationEmbedding(spec.observation, config.width)

    streams = 2

    def tokens(self, contexts: Contexts) -> Tensor:
        """What the transformer reads, context and queries: (B, 2 (T + 1), D)."""
        c = contexts.banked() if isinstance(self.observation, Views) else contexts
        assert c.states is not None and c.next_states is not None and c.queries is not None
        rows = self.rows(looked_at(c.bank, self.observation))  # each frame is there once
        tokens = self.encode(c.states, c.actions, c.rewards, c.next_states, rows)  # (B, T, D)
        start = self.start.expand(len(tokens), 1, -1)
        return torch.cat([start, tokens, self.ask(c.queries, rows)], 1)

    def rows(self, bank: Observation = None) -> Rows:
        """What tokens are sums of. A product with a one-hot vector is a column of the matrix: where
        states have numbers, the rows of a state are columns of the weights. Otherwise observations
        (N, ...) are embedded, each once, and a row belongs to a place in the bank."""
        if self.embedding is None:
            columns = self.encoder.weight.T  # (2 S + A + 1, D)
            before, after = columns[: self.size], columns[self.size : 2 * self.size]
            return Rows(before, after, self.query.weight.T)
        return self._rows_of(self.embedding(bank))

    def _rows_of(self, vectors: Tensor) -> Rows:
        """Of observations with these vectors (N, D)."""
        columns = self.encoder.weight.T
        before, after = columns[: self.size], columns[self.size : 2 * self.size]
        return Rows(vectors @ before, vectors @ after, vectors @ self.query.weight.T)

    def encode(
        self, states: Tensor, actions: Tensor, rewards: Tensor, after: Tensor,
        rows: Rows | None = None,
    ) -> Tensor:  # fmt: skip
        """Tokens (..., D) of transitions, each field (...)."""
        found = self.rows() if rows is None else rows
        tokens: Tensor = (
            F.embedding(states, found.before)
            + F.embedding(after, found.after)
            + F.embedding(actions, self.encoder.weight.T[2 * self.size : -1])
            + rewards.unsqueeze(-1) * self.encoder.weight.T[-1]
            + self.encoder.bias
        )
        return tokens

    def ask(self, states: Tensor, rows: Rows | None = None) -> Tensor:
        """Query tokens (..., D) of states (...)."""
        found = self.rows() if rows is None else rows
        tokens: Tensor = F.embedding(states, found.asked) + self.query.bias
        return tokens

    def begin_at(self, batch: int, obs: Observation) -> tuple[KVCache, Tensor]:
        """A cache that holds the start token, and the logits (B, A) of the empty context."""
        cache = self.transformer.new_cache(batch, self.player())
        if cache.player is not None:
            return cache, self._play(cache, None, obs)
        if self.embedding is None:
            cache.tables = self._tables()
        else:
            cache.embed = Remembered(self.embedding)
        return cache, self._step(self.start.expand(batch, -1), obs, cache)

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """What tokens are sums of, laid out for single steps: rows for each state and action
        (S · A, D), for each state that is reached (S, D), and whole queries (S, D)."""
        before, after, _ = self.rows()
        actions = self.encoder.weight.T[2 * self.size : -1]
        pairs = before[:, None] + actions + self.encoder.bias  # (S, A, D)
        every = torch.arange(self.size, device=self.start.device)
        return pairs.flatten(0, 1), after.contiguous(), self.ask(every)

    @property
    def has_player(self) -> bool:  # type: ignore[override]
        """The kernels have no images."""
        return self.embedding is None

    def player(self) -> NativePlayer | None:
        if not self.in_kernels or not self.has_player:
            return None
        pairs, reached, asked = self._tables()
        rows = TokenRows(self.start, self.encoder.weight[:, -1], pairs, reached, asked)
        return NativePlayer(self.transformer.flat_weights(), self.config, rows, self.head)

    def _play(self, cache: KVCache, transition: Any, obs: Observation) -> Tensor:
        assert cache.player is not None and isinstance(obs, Tensor)
        cache.last = transition
        logits = cache.player.step(cache.blocks, cache.position(), asked=obs, transition=transition)
        cache.advance()
        return logits

    def follow(self, cache: KVCache, transition: Transition, obs: Observation) -> Tensor:
        """Append one transition per task; logits (B, A) for where the next action is due."""
        if cache.player is not None:
            return self._play(cache, transition, obs)
        states, actions, rewards, reached = transition
        if self.embedding is not None:
            every = torch.arange(len(actions), device=actions.device)
            seen = self._rows_of(torch.cat([cache.embed(states), cache.embed(reached)]))
            token = self.encode(every, actions, rewards, every + len(every), seen)
            return self._step(token, obs, cache)
        assert isinstance(states, Tensor) and isinstance(reached, Tensor)
        pairs, after, _ = cache.tables
        token = F.embedding(states * self.n_actions + actions, pairs) + F.embedding(reached, after)
        return self._step(token.addcmul(rewards[:, None], self.encoder.weight[:, -1]), obs, cache)

    def ask_again(self, cache: KVCache, obs: Observation) -> Tensor:
        """Logits (B, A) for another state, after the same context."""
        cache.length -= 1  # the last token is written once more, over itself
        if cache.player is not None:
            return self._play(cache, cache.last, obs)
        return self._step(cache.last, obs, cache)

    def _step(self, token: Tensor, obs: Observation, cache: KVCache) -> Tensor:
        cache.last = token
        if self.embedding is None:
            assert isinstance(obs, Tensor)
            query = F.embedding(obs, cache.tables[2])
        else:
            query = self.query(cache.embed(obs))
        logits: Tensor = self.head(self.transformer.step_with_query(token, query, cache))
        return logits

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        self.transformer.initialise(generator)
        self.start.normal_(0.0, 0.02, generator=generator)
        # One-hot inputs: of the encoder's, four are not zero at a time, of the query's one.
        self.encoder.weight.normal_(0.0, 0.5, generator=generator)
        self.query.weight.normal_(0.0, 1.0, generator=generator)
        if self.embedding is not None:  # of a vector, all are: their sum is to be as large
            self.encoder.weight[:, : 2 * self.size] *= self.size**-0.5
            self.query.weight *= self.size**-0.5
            self.embedding.initialise(generator)
        self.head.weight.normal_(0.0, self.head.in_features**-0.5, generator=generator)
        for layer in (self.encoder, self.query, self.head):
            layer.bias.zero_()
