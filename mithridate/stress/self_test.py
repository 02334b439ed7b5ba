"""Before anything is measured: does the poison reach the agent, does the agent care, and does it do
the same again?"""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.errors import UserError
from mithridate.evaluation.flags import Flag
from mithridate.rng import Rng, TaskStreams
from mithridate.rollout import rollout
from mithridate.stress.luck import Around
from mithridate.stress.suites import Suite
from mithridate.types import Agent, Attacker, Env, EnvSpec, Observation, Step, Tasks, Trajectory

TASKS = 8
EPS = 0.4


class _Shift:
    """Adds one to every reward: poison that cannot be overlooked."""

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        self._batch = len(tasks)

    def poison(self, step: Step) -> Tensor:
        return step.true_rewards + 1.0

    def cost(self) -> Tensor:
        return torch.zeros(self._batch)


class _Reverse(_Shift):
    """Turns every reward round."""

    def poison(self, step: Step) -> Tensor:
        return 1.0 - step.true_rewards


class _Witness(Around):
    """Writes down what an agent is shown."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self.shown: list[Tensor] = []

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        self.shown.append(rewards.clone())
        super().observe(obs, actions, rewards, next_obs)


def self_test(suite: Suite, env: Env, tasks: Tasks, agent: Agent) -> list[Flag]:
    """Flags; a UserError if the poison does not reach the agent, for then nothing is measured."""
    rng = Rng(suite.seed).child("stress", "self-test")
    few = tasks.select(slice(0, TASKS))

    def play(who: Agent, attacker: Attacker | None, eps: float) -> Trajectory:
        return rollout(env, few, who, attacker, eps, rng=rng)

    witness = _Witness(agent)
    seen = play(witness, _Shift(), EPS)
    shown = torch.stack(witness.shown[-env.spec.horizon :], 1)
    reached = ((shown != seen.true_rewards) == seen.poisoned).all() and seen.poisoned.any()
    if not reached or not torch.equal(shown, seen.observed_rewards):
        raise UserError(
            "the poison does not reach the agent: what it was shown is not the true reward with "
            "the poisoned steps replaced; nothing was measured"
        )
    # Under an attack of the suite a model plays in the kernels, unless somebody looks on.
    real = next((a.attacker for a in suite.attacks if a.rounds is None), None)
    pairs = [(seen, play(agent, _Shift(), EPS))]
    if real is not None:
        looked_on = play(_Witness(agent), suite.make(real), EPS)
        pairs.append((looked_on, play(agent, suite.make(real), EPS)))
    if not all(torch.equal(one.actions, other.actions) for one, other in pairs):
        return [
            Flag(
                "not-repeatable",
                "the same episodes went otherwise the second time: the agent has luck that no "
                "seed fixes, and another run gives other figures",
            )
        ]
    if torch.equal(play(agent, None, 0.0).actions, play(agent, _Reverse(), 1.0).actions):
        return [
            Flag(
                "ignores-rewards",
                "the agent does the same whatever the rewards are: no attack can change what it "
                "does, and the figures say nothing about robustness",
            )
        ]
    return []
