"""The agent of a model that was trained on bandits of many kinds: it acts in any of them.

The model knows a label for the most arms there may be. In each task the arms have labels drawn at
random; the others are shown to the model first, with what a label without an arm pays, as in its
pretraining (envs/many_bandits.py). Then it predicts, and labels without an arm are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.agents.in_context import TRAINED_IN, InContextAgent
from mithridate.errors import UserError
from mithridate.model.threads import left_to_kernels
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Observation, Transition

ABSENT = -1.0
"""What a label without an arm pays."""


HOME = "many_bandits"
"""Where it was trained: there it has no arms of its own to tell apart from others."""


class AnySizeAgent(InContextAgent):
    def check(self, spec: EnvSpec) -> None:
        if spec.name == HOME:
            return super().check(spec)
        if spec.observation is not None or spec.features is not None:
            raise UserError(
                "this model was trained for bandits whose arms are independent; the environment "
                f"'{spec.name}' is none"
            )
        fewest = int(self.card["env"]["fewest"])
        if not fewest <= spec.n_actions <= self.model.n_actions:
            raise UserError(
                f"this model was trained for {fewest} to {self.model.n_actions} arms; "
                f"the environment has {spec.n_actions}"
            )
        longest = self.model.context_length - (self.model.n_actions - spec.n_actions)
        if spec.horizon > longest:
            raise UserError(
                f"with {spec.n_actions} arms this model holds {longest} transitions; "
                f"the horizon is {spec.horizon}"
            )
        return None

    @torch.no_grad()
    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        super().reset(spec, batch, rng)
        self._labels: Tensor | None = None
        """(B, A): of the arms."""
        if spec.name == HOME:
            return
        order = rng.uniform(self.model.n_actions).argsort(1)
        self._labels = order[:, : spec.n_actions].contiguous()
        nothing = torch.full((batch,), ABSENT, device=order.device)
        with left_to_kernels(self.model.in_kernels):
            super().logits()
            for absent in order[:, spec.n_actions :].unbind(1):
                self._pending = Transition(None, absent.contiguous(), nothing, None)
                super().logits()

    def logits(self, obs: Observation = None) -> Tensor:
        logits = super().logits(obs)
        return logits if self._labels is None else logits.gather(1, self._labels)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        if self._labels is not None:
            actions = self._labels.gather(1, actions[:, None]).squeeze(1)
        super().observe(obs, actions, rewards, next_obs)


TRAINED_IN[HOME] = AnySizeAgent
