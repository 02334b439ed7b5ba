"""THE interaction loop: every agent, environment and attacker meets here, and only here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mithridate.errors import UserError
from mithridate.rng import Rng
from mithridate.types import (
    Agent,
    Attacker,
    Env,
    EnvSpec,
    Observation,
    Secrets,
    Step,
    Tasks,
    Trajectory,
)


@torch.no_grad()
def rollout(
    env: Env,
    tasks: Tasks,
    agent: Agent,
    attacker: Attacker | None = None,
    eps: float | Tensor = 0.0,
    *,
    rng: Rng,
    episodes: int = 1,
    record_learning: bool = False,
    on_step: Callable[[], None] | None = None,
) -> Trajectory:
    """Let `agent` act in every task; each reward is replaced with probability `eps` (a number, or
    one for each task) by the attacker's. Only the last `episodes` episodes are recorded; an agent
    with `learning_episodes` lives through those first; `record_learning` keeps them too. `on_step`
    is called after every step.
    """
    spec, batch, device = env.spec, len(tasks), tasks.device
    secrets = Secrets(env, tasks, eps, attacker)
    if hasattr(agent, "reveal"):
        agent.reveal(secrets)
    agent.reset(spec, batch, rng.child("agent").streams(tasks.ids, device))
    if attacker is not None:
        attacker.reset(spec, tasks, rng.child("attacker").streams(tasks.ids, device))

    learning: int = getattr(agent, "learning_episodes", 0)
    first = -learning if record_learning else 0
    record = _Recorder(batch, first, episodes - first, spec.horizon, device)
    for episode in range(-learning, episodes):
        if episode in (-learning, 0):
            # Learning has luck of its own, so that in what is measured all agents have the same.
            luck = rng.child("learning") if episode < 0 else rng
            noise = luck.child("noise").streams(tasks.ids, device)
            contamination = luck.child("contamination").streams(tasks.ids, device)
        state = env.reset(tasks)
        obs = env.observe(state)
        record.begin(episode, obs)
        getattr(agent, "begin_episode", _nothing)()
        for t in range(spec.horizon):
            secrets.state = state
            actions = _checked(agent.act(obs), spec, batch, agent)
            optimal = env.optimal_action(tasks, state)
            next_state, true = env.step(tasks, state, actions, noise.normal(spec.noise_size))
            next_obs = env.observe(next_state)
            hit = contamination.uniform().squeeze(1) < eps  # (B,)
            proposed = true
            if attacker is not None:
                proposed = attacker.poison(Step(t, obs, state, actions, true, next_obs))
            observed = torch.where(hit, proposed, true)
            agent.observe(obs, actions, observed, next_obs)
            record.step(
                episode, t, next_obs,
                actions=actions, true_rewards=true, proposed_rewards=proposed,
                observed_rewards=observed, poisoned=hit, optimal_actions=optimal,
            )  # fmt: skip
            state, obs = next_state, next_obs
            if on_step is not None:
                on_step()
        getattr(agent, "end_episode", _nothing)()
    return record.trajectory(env.optimal_action(tasks, state))


def _nothing() -> None:
    pass


def _checked(actions: Any, spec: EnvSpec, batch: int, agent: Agent) -> Tensor:
    """The agent's actions, or an error that says what is wrong with them."""
    name = type(agent).__name__
    if not isinstance(actions, Tensor) or actions.dtype != torch.int64:
        kind = actions.dtype if isinstance(actions, Tensor) else type(actions).__name__
        raise UserError(f"agent {name}: act() must return an int64 tensor, not {kind}")
    if actions.shape != (batch,):
        raise UserError(
            f"agent {name}: act() must return shape ({batch},), not {tuple(actions.shape)}"
        )
    low, high = torch.aminmax(actions)
    if low < 0 or high >= spec.n_actions:
        raise UserError(
            f"agent {name}: act() must return actions in 0…{spec.n_actions - 1}, "
            f"not {int(low if low < 0 else high)}"
        )
    return actions


class _Recorder:
    """Pre-allocated storage for a Trajectory. Episodes before the `first` are not kept."""

    def __init__(
        self, batch: int, first: int, episodes: int, horizon: int, device: torch.device
    ) -> None:
        self._first, self._horizon = first, horizon
        shape = (episodes * horizon, batch)  # a step is a row, and written at once
        types = {
            "actions": torch.int64,
            "true_rewards": torch.float32,
            "proposed_rewards": torch.float32,
            "observed_rewards": torch.float32,
            "poisoned": torch.bool,
            "optimal_actions": torch.int64,
        }
        self._fields = {
            name: torch.zeros(shape, dtype=t, device=device) for name, t in types.items()
        }
        self._observations: list[list[Observation]] = []

    def begin(self, episode: int, obs: Observation) -> None:
        if episode >= self._first:
            self._observations.append([obs])

    def step(self, episode: int, t: int, next_obs: Observation, **values: Tensor) -> None:
        if episode < self._first:
            return
        self._observations[-1].append(next_obs)
        for name, value in values.items():
            self._fields[name][(episode - self._first) * self._horizon + t] = value

    def trajectory(self, optimal_after: Tensor) -> Trajectory:
        by_task = {name: field.T.contiguous() for name, field in self._fields.items()}  # (B, T)
        return Trajectory(observations=self._stacked(), optimal_after=optimal_after, **by_task)

    def _stacked(self) -> Observation:
        """(B, E, horizon + 1, ...)"""
        first = self._observations[0][0] if self._observations else None
        if first is None:
            return None

        def stack(pick: Callable[[Any], Tensor]) -> Tensor:
            episodes = [torch.stack([pick(o) for o in e], 1) for e in self._observations]
            return torch.stack(episodes, 1)

        if isinstance(first, dict):
            return {name: stack(lambda o, name=name: o[name]) for name in first}  # type: ignore[misc]
        return stack(lambda o: o)
