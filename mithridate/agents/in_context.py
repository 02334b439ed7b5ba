"""The in-context agent: frozen weights, everything learned is in the context (paper, Algorithm 2).

At each step it samples from the predicted distribution over actions, which is posterior sampling
(Lee et al., 2023, theorem 1), or takes the most probable action if `greedy`. A `temperature` below
1 sharpens the distribution: under attack the posterior stays broad for long, and posterior sampling
pays for it at every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mithridate.agents.sampling import sample
from mithridate.config import COLDEST, HOTTEST
from mithridate.errors import UserError, shown
from mithridate.model.context_model import ContextModel
from mithridate.model.player import choose
from mithridate.model.threads import left_to_kernels
from mithridate.model.weights import load_model
from mithridate.observations import describe, equal
from mithridate.rng import TaskStreams
from mithridate.tables import Playing, unchanged
from mithridate.types import EnvSpec, Observation, Transition

NOT_FINITE = "this model's predictions are not finite: its weights are of no use"
SPENT = "this agent's episodes are over: reset it first"


class InContextAgent:
    def __init__(
        self, model: ContextModel, *, greedy: bool = False, temperature: float = 1.0
    ) -> None:
        if not isinstance(greedy, bool):
            raise UserError(f"greedy must be true or false, not {shown(greedy, 40)}")
        real = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if not real or not COLDEST <= temperature <= HOTTEST:
            raise UserError(
                f"temperature must be a number from {COLDEST:g} to {HOTTEST:g}, not "
                f"{shown(temperature, 40)}; see greedy"
            )
        self.model = model
        self.greedy = greedy
        self.temperature = temperature
        self.card: dict[str, Any] = {}
        """What the weights are; filled by `load`."""

    def check(self, spec: EnvSpec) -> None:
        """Raise a UserError if the model cannot act in this environment."""
        if spec.n_actions != self.model.n_actions:
            raise UserError(
                f"this model was trained for {self.model.n_actions} actions; "
                f"the environment has {spec.n_actions}"
            )
        if self.model.observation != spec.observation:
            raise UserError(
                f"this model was trained for {describe(self.model.observation)}; "
                f"the environment has {describe(spec.observation)}"
            )
        features = self.model.features
        if features is not None:
            here = None if spec.features is None else torch.tensor(spec.features)
            if here is None or not torch.equal(features.cpu(), here):
                raise UserError(
                    "this model was trained for arms with other features; it knows nothing of "
                    "these: use it where it was trained, or train one here"
                )
        if spec.horizon > self.model.context_length:
            raise UserError(
                f"this model holds {self.model.context_length} transitions; "
                f"the horizon is {spec.horizon}"
            )

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self.check(spec)
        self._rng = rng
        self._batch = batch
        self._pending: Transition | None = None
        self._asked: Observation = None
        self._begun = False
        self._spent = False
        """Whether its episodes were played in the kernels, and nothing is left to ask it about."""

    @torch.no_grad()
    def act(self, obs: Observation = None) -> Tensor:
        with left_to_kernels(self.model.in_kernels):
            logits = self.logits(obs)
            if self.model.in_kernels:
                uniforms = None if self.greedy else self._rng.uniform()
                return choose(logits, uniforms, 0.0 if self.greedy else self.temperature)
            if self.greedy:
                return logits.argmax(1)
            return sample(logits / self.temperature, self._rng.uniform())

    def logits(self, obs: Observation = None) -> Tensor:
        """(B, A) for the context so far. A transition enters the cache when it is first needed."""
        if self._spent:
            raise UserError(SPENT)
        if not self._begun:
            self._cache, self._logits = self.model.begin_at(self._batch, obs)
            self._begun = True
        elif self._pending is not None:
            self._logits = self.model.follow(self._cache, self._pending, obs)
        elif obs is not None and not equal(obs, self._asked):
            self._logits = self.model.ask_again(self._cache, obs)
        self._pending, self._asked = None, obs
        if not torch.isfinite(self._logits).all():
            raise UserError(NOT_FINITE)
        return self._logits

    @torch.no_grad()
    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        if self._spent or self._pending is not None or not self._begun:
            self.logits(obs)  # nobody has asked for an action since the transition before
        self._pending = Transition(obs, actions, rewards, next_obs)

    # Whole episodes in the kernels -------------------------------------------------------------

    def plays(self, steps: int) -> bool:
        asked = ("reset", "act", "logits", "observe")
        return (
            unchanged(self, InContextAgent, *asked)
            and steps <= self.model.context_length
            and self.model.in_kernels
            and self.model.has_player
        )

    @torch.no_grad()
    def playing(self, steps: int) -> Playing:
        player = self.model.player()
        self._spent = True
        uniforms = None if self.greedy else self._rng.ahead("uniform", steps)
        return Playing(player, 0.0 if self.greedy else self.temperature, uniforms, NOT_FINITE)


TRAINED_IN: dict[str, type[InContextAgent]] = {}
"""By environment, the agents of models that do more than act where they were trained."""


def load(source: str, *, greedy: bool = False, temperature: float | None = None) -> InContextAgent:
    """A trained agent: the name of a shipped model, a run's directory, or a .safetensors file.
    The temperature is the one it was trained to act with, unless told otherwise."""
    model, card = load_model(source)
    if temperature is None:
        temperature = float(card.get("temperature", 1.0))
    kind = TRAINED_IN.get(str(card["env"]["name"]), InContextAgent)
    agent = kind(model, greedy=greedy, temperature=temperature)
    agent.card = card
    return agent
