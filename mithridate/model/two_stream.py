"""The in-context model of MDPs: two streams through the same blocks.

Context stream: a start token, then one token per transition (s, a, r, s'), causal. Query stream:
one token per state that is asked about; query h sees the first h transitions and is seen by nobody.
So the context can be cached although the query changes at every step, and all prefixes are trained
at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mithridate.config import ModelConfig
from mithridate.model.cache import KVCache
from mithridate.model.context_model import ContextModel
from mithridate.model.transformer import Transformer
from mithridate.types import Contexts, EnvSpec, Observation, Transition


class TwoStreamModel(ContextModel):
    def __init__(self, config: ModelConfig, spec: EnvSpec) -> None:
        super().__init__()
        if spec.n_states is None:
            raise NotImplementedError(f"no context layout for observations of {spec.name}")
        self.config = config
        self.n_actions, self.n_states = spec.n_actions, spec.n_states
        self.start = nn.Parameter(torch.zeros(config.width))
        self.encoder = nn.Linear(2 * spec.n_states + spec.n_actions + 1, config.width)
        self.query = nn.Linear(spec.n_states, config.width)
        self.transformer = Transformer(config, positions=spec.horizon + 1)
        self.head = nn.Linear(config.width, spec.n_actions)

    def hidden(self, contexts: Contexts) -> Tensor:
        """What the head reads: (B, T + 1, D)."""
        c = contexts
        assert c.states is not None and c.next_states is not None and c.queries is not None
        tokens = self.encode(c.states, c.actions, c.rewards, c.next_states)  # (B, T, D)
        start = self.start.expand(len(tokens), 1, -1)
        return self.transformer.two_streams(torch.cat([start, tokens], 1), self.ask(c.queries))

    def encode(self, states: Tensor, actions: Tensor, rewards: Tensor, after: Tensor) -> Tensor:
        """Tokens (..., D) of transitions, each field (...)."""
        # A product with a one-hot vector is a column of the matrix.
        columns = self.encoder.weight.T  # (2 S + A + 1, D)
        s, a = self.n_states, self.n_actions
        tokens: Tensor = (
            F.embedding(states, columns[:s])
            + F.embedding(after, columns[s : 2 * s])
            + F.embedding(actions, columns[2 * s : 2 * s + a])
            + rewards.unsqueeze(-1) * columns[-1]
            + self.encoder.bias
        )
        return tokens

    def ask(self, states: Tensor) -> Tensor:
        """Query tokens (..., D) of states (...)."""
        tokens: Tensor = F.embedding(states, self.query.weight.T) + self.query.bias
        return tokens

    def begin_at(self, batch: int, obs: Observation) -> tuple[KVCache, Tensor]:
        """A cache that holds the start token, and the logits (B, A) of the empty context."""
        cache = self.transformer.new_cache(batch)
        cache.tables = self._tables()
        return cache, self._step(self.start.expand(batch, -1), obs, cache)

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """What tokens are sums of, laid out for single steps: rows for each state and action
        (S · A, D), for each state that is reached (S, D), and whole queries (S, D)."""
        parts = [self.n_states, self.n_states, self.n_actions, 1]
        before, after, actions, _ = torch.split(self.encoder.weight.T, parts)
        pairs = before[:, None] + actions + self.encoder.bias  # (S, A, D)
        every = torch.arange(self.n_states, device=self.start.device)
        return pairs.flatten(0, 1), after.contiguous(), self.ask(every)

    def follow(self, cache: KVCache, transition: Transition, obs: Observation) -> Tensor:
        """Append one transition per task; logits (B, A) for where the next action is due."""
        states, actions, rewards, reached = transition
        assert isinstance(states, Tensor) and isinstance(reached, Tensor)
        pairs, after, _ = cache.tables
        token = F.embedding(states * self.n_actions + actions, pairs) + F.embedding(reached, after)
        return self._step(token.addcmul(rewards[:, None], self.encoder.weight[:, -1]), obs, cache)

    def ask_again(self, cache: KVCache, obs: Observation) -> Tensor:
        """Logits (B, A) for another state, after the same context."""
        assert cache.last is not None
        cache.length -= 1  # the last token is written once more, over itself
        return self._step(cache.last, obs, cache)

    def _step(self, token: Tensor, obs: Observation, cache: KVCache) -> Tensor:
        assert isinstance(obs, Tensor)
        cache.last = token
        query = F.embedding(obs, cache.tables[2])
        logits: Tensor = self.head(self.transformer.step_with_query(token, query, cache))
        return logits

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        self.transformer.initialise(generator)
        self.start.normal_(0.0, 0.02, generator=generator)
        # One-hot inputs: of the encoder's, four are not zero at a time, of the query's one.
        self.encoder.weight.normal_(0.0, 0.5, generator=generator)
        self.query.weight.normal_(0.0, 1.0, generator=generator)
        self.head.weight.normal_(0.0, self.head.in_features**-0.5, generator=generator)
        for layer in (self.encoder, self.query, self.head):
            layer.bias.zero_()
