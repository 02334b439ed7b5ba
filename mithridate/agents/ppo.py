"""Proximal policy optimisation (Schulman et al., 2017) in CleanRL's form (Huang et al., 2022), for
environments whose observations are arrays or images.

Each task has a network, an optimiser and luck of its own, and learns from its own episodes alone.
Tasks take their turns: a minibatch of one task fills a core, stacked networks are no faster, and a
task is learned bit for bit the same, whoever is beside it. The weights change only after
`update_every` episodes, so what a network says of a view is asked once in between.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mithridate.agents.ppo_network import Network, Seen
from mithridate.agents.sampling import argmax_random_ties, sample
from mithridate.config import (
    Config,
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
)
from mithridate.errors import UserError
from mithridate.observations import Views, looked_at, parts
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.sizes import require
from mithridate.types import EnvSpec, Observation

ADAM_EPS = 1e-5
COPIES = 4
"""Of the weights that there are while a task learns: themselves, two moments, gradients."""


class PPOConfig(Config):
    episodes: NonNegative = 100
    """Episodes of learning before the evaluated one."""
    update_every: Positive = 1
    """Episodes of which an update is made."""
    epochs: Positive = 4
    """How often an update goes over its episodes."""
    minibatches: Positive = 4
    """Gradient steps in an epoch."""
    learning_rate: PositiveFloat = 2.5e-4
    """Adam's."""
    anneal: bool = True
    """Whether the learning rate falls to zero, linearly, over the updates."""
    discount: Fraction = 0.99
    """γ."""
    trace: Fraction = 0.95
    """λ of the generalised advantage estimate."""
    clip: PositiveFloat = 0.1
    """How far the ratio of probabilities may be from 1, and a value from what it was."""
    clip_values: bool = True
    """Whether the values' loss is clipped, too."""
    entropy: NonNegativeFloat = 0.01
    """Weight of the entropy bonus."""
    value_weight: NonNegativeFloat = 0.5
    """Weight of the values' loss."""
    clip_norm: PositiveFloat = 0.5
    """Gradient norm above which a task's gradients are scaled down."""
    width: Positive = 128
    """Units of the hidden layer."""
    greedy: bool = False
    """Whether it takes the most probable action in the evaluated episode."""


@AGENTS.register("ppo")
class PPO:
    light = True
    step_seconds = 8e-4
    """For estimates: what a step of one task takes, its share of the updates included."""
    Config = PPOConfig

    def __init__(self, config: PPOConfig | None = None) -> None:
        self.config = config or PPOConfig()
        self.learning_episodes = self.config.episodes

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        if not parts(spec.observation):
            raise UserError("ppo needs an environment whose observations are arrays or images")
        self._spec, self._rng = spec, rng
        network = Network(parts(spec.observation), spec.n_actions, self.config.width)
        require(4.0 * COPIES * network.size * batch, f"ppo with networks for {batch} tasks")
        self.learners = [Learner(network, n, self.config) for n in rng.normal(network.size)]
        """One for each task."""
        self._said: list[dict[int, Tensor]] = [{} for _ in range(batch)]
        self._seen: list[tuple[Observation, Tensor, Tensor]] = []
        self._lived = 0  # steps
        self._updates = 0

    @property
    def _learning(self) -> bool:
        return self._lived < self.learning_episodes * self._spec.horizon

    def act(self, obs: Observation) -> Tensor:
        logits, uniform = self.logits(obs), self._rng.uniform()
        if not torch.isfinite(logits).all():
            raise UserError("ppo: what it learned is not finite; choose a smaller learning_rate")
        if self.config.greedy and not self._learning:
            return argmax_random_ties(logits, uniform)
        return sample(logits, uniform)

    @torch.no_grad()
    def logits(self, obs: Observation) -> Tensor:
        """(B, A): of each task's network for its observation."""
        if not isinstance(self._spec.observation, Views) or not isinstance(obs, Tensor):
            seen = _named(looked_at(obs, self._spec.observation))
            every = [
                learner({name: x[i : i + 1] for name, x in seen.items()})[0]
                for i, learner in enumerate(self.learners)
            ]
            return torch.cat(every)
        numbers = obs.tolist()
        new = [i for i, n in enumerate(numbers) if n not in self._said[i]]
        if new:
            seen = self._spec.observation.look(obs[new])
            for k, i in enumerate(new):
                one = {name: x[k : k + 1] for name, x in seen.items()}
                self._said[i][numbers[i]] = self.learners[i](one)[0]
        return torch.cat([said[n] for said, n in zip(self._said, numbers, strict=True)])

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        if not self._learning:
            return
        self._seen.append((obs, actions, rewards))
        self._lived += 1
        enough = self.config.update_every * self._spec.horizon
        if len(self._seen) == enough or not self._learning:
            self._update()

    def _update(self) -> None:
        """Every task learns from the episodes that were kept."""
        c, horizon = self.config, self._spec.horizon
        steps = len(self._seen)
        planned = -(-self.learning_episodes // c.update_every)
        rate = c.learning_rate * (1 - self._updates / planned if c.anneal else 1)
        order = [self._rng.uniform(steps).argsort(dim=1, stable=True) for _ in range(c.epochs)]
        for i, learner in enumerate(self.learners):
            seen, where = self._shown([_row(obs, i) for obs, _, _ in self._seen])
            actions = torch.stack([taken[i] for _, taken, _ in self._seen])
            rewards = torch.stack([paid[i] for _, _, paid in self._seen])
            with torch.enable_grad():
                lived = learner.judged(seen, where, actions, rewards.view(-1, horizon))
                learner.learn(lived, [epoch[i] for epoch in order], rate)
        self._seen, self._said = [], [{} for _ in self.learners]
        self._updates += 1

    def _shown(self, rows: list[Observation]) -> tuple[Seen, Tensor]:
        """What there was to see, views each once, and where in that each step is."""
        spec, first = self._spec.observation, rows[0]
        if isinstance(spec, Views) and isinstance(first, Tensor):
            numbers, where = torch.stack(rows).unique(return_inverse=True)  # type: ignore[arg-type,no-untyped-call]
            return spec.look(numbers), where
        named = [_named(row) for row in rows]
        seen = {name: torch.stack([row[name] for row in named]) for name in named[0]}
        return seen, torch.arange(len(rows), device=self._rng.device)


class Lived(NamedTuple):
    """Steps (T,) of one task, as its network judged them before it learns from them."""

    seen: Seen
    where: Tensor
    """(T,): which of the `seen` each step saw."""
    actions: Tensor
    log_probs: Tensor
    """(T,): of the actions."""
    values: Tensor
    advantages: Tensor


class Learner:
    """One task's network and optimiser."""

    def __init__(self, network: Network, normal: Tensor, config: PPOConfig) -> None:
        self._network, self.config = network, config
        self.weights = {k: w.requires_grad_() for k, w in network.initial(normal).items()}
        self._adam = torch.optim.Adam(
            self.weights.values(), config.learning_rate, eps=ADAM_EPS, fused=True
        )

    def __call__(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Logits (N, A) and values (N,)."""
        return self._network(self.weights, seen)

    @torch.no_grad()
    def judged(self, seen: Seen, where: Tensor, actions: Tensor, rewards: Tensor) -> Lived:
        """Of episodes with rewards (E, horizon), one after the other."""
        c = self.config
        logits, values = (x[where] for x in self(seen))
        advantages = estimated(rewards, values.view(rewards.shape), c.discount, c.trace)
        taken = _of(actions, logits.log_softmax(1))
        return Lived(seen, where, actions, taken, values, advantages.flatten())

    def learn(self, lived: Lived, orders: list[Tensor], rate: float) -> None:
        """An epoch for each order (T,) of the steps."""
        for group in self._adam.param_groups:
            group["lr"] = rate
        for order in orders:
            pieces = max(1, min(self.config.minibatches, len(order) // 2))
            for rows in order.tensor_split(pieces):
                self._adam.zero_grad()
                self.loss(lived, rows).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self.weights.values(), self.config.clip_norm)
                self._adam.step()
        self._adam.zero_grad()

    def loss(self, lived: Lived, rows: Tensor) -> Tensor:
        """Of the policy, the values and the entropy, in a minibatch of steps (M,)."""
        c = self.config
        frames, back = lived.where[rows].unique(return_inverse=True)  # type: ignore[no-untyped-call]
        logits, values = (x[back] for x in self({k: x[frames] for k, x in lived.seen.items()}))
        log_probs = logits.log_softmax(1)  # (M, A)
        ratio = (_of(lived.actions[rows], log_probs) - lived.log_probs[rows]).exp()
        advantage = lived.advantages[rows]
        spread = advantage.std(correction=int(len(rows) > 1))
        good = (advantage - advantage.mean()) / (spread + 1e-8)
        policy = -torch.min(good * ratio, good * ratio.clamp(1 - c.clip, 1 + c.clip)).mean()
        before, target = lived.values[rows], lived.advantages[rows] + lived.values[rows]
        off = (values - target).square()
        if c.clip_values:
            held = before + (values - before).clamp(-c.clip, c.clip)
            off = torch.max(off, (held - target).square())
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        return policy + c.value_weight * 0.5 * off.mean() - c.entropy * entropy


def estimated(rewards: Tensor, values: Tensor, discount: float, trace: float) -> Tensor:
    """(E, T): generalised advantage estimates; an episode's end is worth nothing."""
    found = torch.empty_like(rewards)
    after = running = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        surprise = rewards[:, t] + discount * after - values[:, t]
        running = surprise + discount * trace * running
        found[:, t], after = running, values[:, t]
    return found


def _of(actions: Tensor, values: Tensor) -> Tensor:
    """(N,): the entries of values (N, A) for actions (N,)."""
    return values.gather(1, actions[:, None]).squeeze(1)


def _named(obs: Observation) -> Seen:
    """Arrays by name, as `parts` has them."""
    assert obs is not None
    return {"": obs} if isinstance(obs, Tensor) else obs


def _row(obs: Observation, i: int) -> Observation:
    """One task's."""
    if isinstance(obs, dict):
        return {name: x[i] for name, x in obs.items()}
    return None if obs is None else obs[i]
