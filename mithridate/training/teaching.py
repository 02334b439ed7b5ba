"""Labels from a teacher: an algorithm that looks over the model's shoulder.

The optimal action is one label for all of a bandit's episode, however little of it could have been
known. A teacher that follows the episode, sees the rewards that the model saw and says after each
step what it would do now gives a label for each prefix, drawn from what could be known: the same in
expectation, if the teacher is Bayes' rule for the attacks at hand, and far less noisy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mithridate.agents.named import fingerprint, make_agent, told
from mithridate.capabilities import is_episodic, is_privileged
from mithridate.errors import UserError
from mithridate.observations import Observation, each
from mithridate.rng import Rng
from mithridate.stage_config import AdversarialConfig
from mithridate.types import Agent, Contexts, Env

AT_ONCE = 100
"""Contexts that are followed at a time."""


class Teacher:
    """One for each share of poisoned steps, which it is told."""

    def __init__(self, config: AdversarialConfig, name: str) -> None:
        self._config, self._name = config, name
        agent = self.agent(config.eps)
        if is_privileged(agent):
            raise UserError(f"teacher '{name}' knows what a model cannot: take another")
        if is_episodic(agent):
            raise UserError(f"teacher '{name}' learns over episodes, and contexts have but one")
        self.fingerprint = fingerprint(name, agent)
        if config.teacher_sha256 not in (None, self.fingerprint):
            raise UserError(f"teacher '{name}' has changed since this run began")

    def agent(self, eps: float) -> Agent:
        return make_agent(self._name, told(self._config, eps))[1]

    def teach(self, contexts: Contexts, eps: Tensor, env: Env, ids: Tensor, rng: Rng) -> Contexts:
        """The contexts (B,) with its labels. `ids`: numbers for the luck of each."""
        labels = contexts.labels.clone()
        for level in eps.unique().tolist():  # type: ignore[no-untyped-call]
            here = torch.nonzero(eps == level)[:, 0]
            for start in range(0, len(here), AT_ONCE):
                rows = here[start : start + AT_ONCE]
                some = contexts.select(rows, contexts.actions.shape[1])
                agent = self.agent(float(f"{level:.6g}"))
                agent.reset(env.spec, len(rows), rng.streams(ids[rows]))
                labels[rows] = _followed(agent, some)
        return replace(contexts, labels=labels)


def _followed(agent: Any, contexts: Contexts) -> Tensor:
    """(B, T + 1): what the agent would do after each prefix."""
    steps = contexts.actions.shape[1]
    labels = []
    for t in range(steps + 1):
        labels.append(agent.act(_at(contexts, contexts.queries, t)))
        if t < steps:
            agent.observe(
                _at(contexts, contexts.states, t),
                contexts.actions[:, t].contiguous(),
                contexts.rewards[:, t].contiguous(),
                _at(contexts, contexts.next_states, t),
            )
    return torch.stack(labels, 1)


def _at(contexts: Contexts, places: Tensor | None, t: int) -> Observation:
    if places is None:
        return None
    here = places[:, t].contiguous()
    return here if contexts.bank is None else each(contexts.bank, lambda frames: frames[here])
