"""THE interaction loop: every agent, environment and attacker meets here, and only here.

Nobody can change the world that he is measured in. What agents and attackers are handed is theirs:
a copy, which they may write to; what is recorded is recorded before they are asked. What they give
back is checked. (They are not locked in: code that goes looking for the loop's variables finds
them, see SECURITY.md.)"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mithridate import fast
from mithridate.capabilities import is_episodic, is_learning, is_light, is_privileged
from mithridate.errors import UserError, shown
from mithridate.model.threads import left_to_kernels
from mithridate.observations import describe, fits, own
from mithridate.rng import Rng
from mithridate.sizes import STEP, require
from mithridate.types import (
    Agent,
    Attacker,
    Env,
    EnvSpec,
    Observation,
    Secrets,
    State,
    Step,
    Tasks,
    Trajectory,
)
from mithridate.users_code import blaming

MOST_EPISODES = 1_000_000


@torch.no_grad()
def rollout(
    env: Env,
    tasks: Tasks,
    agent: Agent,
    attacker: Attacker | None = None,
    eps: float | Tensor = 0.0,
    *,
    rng: Rng,
    record_learning: bool = False,
    record_values: bool = False,
    on_step: Callable[[], None] | None = None,
) -> Trajectory:
    """Let `agent` act in every task; each reward is replaced with probability `eps` (a number, or
    one for each task) by the attacker's. One episode is recorded; an agent that learns lives
    through others first; `record_learning` keeps them too. `record_values` keeps what actions were
    worth in the last episode. `on_step` is called after every step.
    """
    with blaming(agent, attacker, env), left_to_kernels(is_light(agent)):
        return _rollout(
            env, tasks, agent, attacker, eps, rng, record_learning, record_values, on_step
        )


def _rollout(
    env: Env,
    tasks: Tasks,
    agent: Agent,
    attacker: Attacker | None,
    eps: float | Tensor,
    rng: Rng,
    record_learning: bool,
    record_values: bool,
    on_step: Callable[[], None] | None,
) -> Trajectory:
    spec, batch, device = env.spec, len(tasks), tasks.device
    secrets = Secrets(env, tasks.copy(), eps, attacker)
    privileged = is_privileged(agent)
    if is_privileged(agent):
        agent.reveal(secrets)
    agent.reset(spec, batch, rng.child("agent").streams(tasks.luck, device))
    if attacker is not None:
        attacker.reset(spec, tasks.copy(), rng.child("attacker").streams(tasks.luck, device))

    learning = _learning_episodes(agent)
    if learning == 0 and not is_episodic(agent):
        plan = fast.plan(env, tasks, agent, attacker, eps, rng)
        if plan is not None:
            return _played(plan, env, tasks, attacker, record_values, on_step)
    first = -learning if record_learning else 0
    keyed = spec.n_attack_keys > 1
    record = _Recorder(batch, first, spec.horizon, device, keyed)
    key = torch.zeros(batch, dtype=torch.int64, device=device)
    values: list[Tensor] = []  # (B, A) each
    for episode in range(-learning, 1):
        if episode in (-learning, 0):
            # Learning has luck of its own, so that in what is measured all agents have the same.
            luck = rng.child("learning") if episode < 0 else rng
            noise = luck.child("noise").streams(tasks.luck, device)
            contamination = luck.child("contamination").streams(tasks.luck, device)
        state = env.reset(tasks)
        obs = own(_observed(env.observe(state), spec, batch))
        record.begin(episode, obs)
        if is_episodic(agent):
            agent.begin_episode()
        for t in range(spec.horizon):
            if privileged:
                secrets.state = own(state)
            actions = _actions(agent.act(own(obs)), spec, batch, agent)
            if state is not None or t == 0:  # without states it is always the same
                optimal = _optimal(env, tasks, state)
            if keyed:
                key = _keys(env.attack_key(tasks, state), spec, batch)
            if record_values and episode == 0 and (state is not None or not values):
                values.append(_values(env, tasks, state))
            next_state, paid = env.step(tasks, state, actions, noise.normal(spec.noise_size))
            true = checked_rewards(paid, batch, env)
            next_obs = own(env.observe(next_state))
            hit = contamination.uniform().squeeze(1) < eps  # (B,)
            proposed = true
            if attacker is not None:
                step = Step(own(obs), own(state), own(actions), own(true), own(next_obs), own(key))
                proposed = checked_rewards(attacker.poison(step), batch, attacker)
            observed = torch.where(hit, proposed, true)
            record.step(
                episode, t, next_obs, keys=key,
                actions=actions, true_rewards=true, proposed_rewards=proposed,
                observed_rewards=observed, poisoned=hit, optimal_actions=optimal,
            )  # fmt: skip
            agent.observe(own(obs), actions, observed, own(next_obs))
            state, obs = next_state, next_obs
            if on_step is not None:
                on_step()
        if is_episodic(agent):
            agent.end_episode()
    if record_values and state is not None:
        values.append(_values(env, tasks, state))
    return record.trajectory(
        _optimal(env, tasks, state), torch.stack(values, 1) if values else None
    )


@left_to_kernels()
def _played(
    plan: fast.Plan,
    env: Env,
    tasks: Tasks,
    attacker: Attacker | None,
    record_values: bool,
    on_step: Callable[[], None] | None,
) -> Trajectory:
    """The trajectory of an episode in the kernels, held to what the loop holds each step to."""
    batch, horizon = plan.hit.shape
    require(STEP * batch * horizon, f"1 episodes of {batch} tasks")
    played = plan.play(on_step)
    _finite(played.true_rewards, env)
    if attacker is not None:
        _finite(played.proposed_rewards, attacker)
    if not played.finite:
        raise UserError(plan.playing.not_finite)
    states = plan.visited(played)  # (B, T + 1)
    optimal = plan.world.optimal.gather(1, states)
    seen = env.spec.observation is not None
    values = None
    if record_values:
        asked = states.unbind(1) if seen else (None,)
        values = torch.stack([env.action_values(tasks, state) for state in asked], 1)
    one = played.actions.new_zeros(1, 1).expand_as(played.actions)  # a single number stands for all
    return Trajectory(
        observations=states[:, None].contiguous() if seen else None,
        actions=played.actions,
        true_rewards=played.true_rewards,
        proposed_rewards=played.proposed_rewards,
        observed_rewards=played.observed_rewards,
        poisoned=plan.hit,
        optimal_actions=optimal[:, :-1].contiguous(),
        optimal_after=optimal[:, -1].clone(),
        keys=played.states if env.spec.n_attack_keys > 1 else one,
        values=values,
    )


def _learning_episodes(agent: Agent) -> int:
    found: Any = agent.learning_episodes if is_learning(agent) else 0
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MOST_EPISODES:
        raise UserError(
            f"agent {type(agent).__name__}: learning_episodes must be a whole number in "
            f"0…{MOST_EPISODES}, not {shown(found, 40)}"
        )
    return found


def _plain(thing: Any) -> bool:
    """Whether it is a tensor with numbers in memory: not sparse, and not on another device."""
    return isinstance(thing, Tensor) and thing.layout == torch.strided and not thing.is_meta


def checked_rewards(rewards: Any, batch: int, giver: Env | Attacker) -> Tensor:
    """Rewards (B,) of one step in memory of their own, or an error that says what is wrong."""
    if not _plain(rewards) or not rewards.is_floating_point():
        kind = rewards.dtype if isinstance(rewards, Tensor) else type(rewards).__name__
        raise UserError(f"{_said(giver)} must return rewards as a tensor of floats, not {kind}")
    if rewards.shape != (batch,):
        raise UserError(
            f"{_said(giver)} must return ({batch},) rewards, not {tuple(rewards.shape)}"
        )
    found: Tensor = rewards.detach().to(torch.float32, copy=True)
    _finite(found, giver)
    return found


def _finite(found: Tensor, giver: Env | Attacker) -> None:
    # A sum is quicker, and finite if all are; what is merely large is looked at more closely.
    if not math.isfinite(found.sum().item()) and not torch.isfinite(found).all():
        raise UserError(f"{_said(giver)} returned a reward that is not finite")


def _said(giver: Env | Attacker) -> str:
    """Who gave a reward, and how."""
    if hasattr(giver, "poison"):
        return f"attacker {type(giver).__name__}: poison()"
    return f"environment {giver.spec.name}: step()"


def _observed(obs: Any, spec: EnvSpec, batch: int) -> Observation:
    """The environment's first observation, or an error if it is not what the spec says."""
    if not fits(obs, spec.observation, batch):
        raise UserError(
            f"environment {spec.name}: observe() must return what its spec says: "
            f"{describe(spec.observation)}, for {batch} tasks"
        )
    found: Observation = obs
    return found


def _keys(keys: Any, spec: EnvSpec, batch: int) -> Tensor:
    """The environment's keys (B,), or an error that says what is wrong."""
    what = f"environment {spec.name}: attack_key()"
    if not _plain(keys) or keys.dtype != torch.int64 or keys.shape != (batch,):
        raise UserError(f"{what} must return an int64 tensor of shape ({batch},)")
    low, high = torch.aminmax(keys)
    if low < 0 or high >= spec.n_attack_keys:
        raise UserError(f"{what} must return keys in 0…{spec.n_attack_keys - 1}")
    found: Tensor = keys
    return found


def _optimal(env: Env, tasks: Tasks, state: State) -> Tensor:
    """The oracle's actions (B,), or an error that says what is wrong."""
    found: Any = env.optimal_action(tasks, state)
    if not _plain(found) or found.dtype != torch.int64 or found.shape != (len(tasks),):
        what = f"environment {env.spec.name}: optimal_action()"
        raise UserError(f"{what} must return an int64 tensor of shape ({len(tasks)},)")
    actions: Tensor = found
    return actions


def _values(env: Env, tasks: Tasks, state: State) -> Tensor:
    """What actions are worth (B, A), or an error that says what is wrong."""
    found: Any = env.action_values(tasks, state)
    shape = (len(tasks), env.spec.n_actions)
    if not _plain(found) or not found.is_floating_point() or found.shape != shape:
        what = f"environment {env.spec.name}: action_values()"
        raise UserError(f"{what} must return a tensor of floats of shape {shape}")
    values: Tensor = found
    return values


def _actions(actions: Any, spec: EnvSpec, batch: int, agent: Agent) -> Tensor:
    """The agent's actions in memory of their own, or an error that says what is wrong."""
    name = type(getattr(agent, "wraps", agent)).__name__
    if not _plain(actions) or actions.dtype != torch.int64:
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
    found: Tensor = actions.clone()
    return found


class _Recorder:
    """Pre-allocated storage for a Trajectory. Episodes before the `first` are not kept."""

    def __init__(
        self, batch: int, first: int, horizon: int, device: torch.device, keyed: bool
    ) -> None:
        self._first, self._horizon = first, horizon
        episodes = 1 - first
        shape = (episodes * horizon, batch)  # a step is a row, and written at once
        require(STEP * math.prod(shape), f"{episodes} episodes of {batch} tasks")
        types = {
            "actions": torch.int64,
            "true_rewards": torch.float32,
            "proposed_rewards": torch.float32,
            "observed_rewards": torch.float32,
            "poisoned": torch.bool,
            "optimal_actions": torch.int64,
        }
        if keyed:
            types["keys"] = torch.int64
        self._fields = {
            name: torch.empty(shape, dtype=t, device=device) for name, t in types.items()
        }
        self._shape = (batch, episodes, horizon + 1)
        self._observations: dict[str, Tensor] = {}  # (B, E, horizon + 1, ...) each, by name

    def begin(self, episode: int, obs: Observation) -> None:
        if episode >= self._first:
            if not self._observations:
                self._observations = {k: self._room(x) for k, x in _named(obs).items()}
            self._keep(episode, 0, obs)

    def _room(self, obs: Tensor) -> Tensor:
        """For all that there will be of it."""
        shape = (*self._shape, *obs.shape[1:])
        what = f"the observations of {self._shape[1]} episodes of {self._shape[0]} tasks"
        require(float(obs.element_size()) * math.prod(shape), what)
        return obs.new_empty(shape)

    def _keep(self, episode: int, t: int, obs: Observation) -> None:
        for name, value in _named(obs).items():
            self._observations[name][:, episode - self._first, t] = value

    def step(self, episode: int, t: int, next_obs: Observation, **values: Tensor) -> None:
        if episode < self._first:
            return
        self._keep(episode, t + 1, next_obs)
        for name, field in self._fields.items():
            field[(episode - self._first) * self._horizon + t] = values[name]

    def trajectory(self, optimal_after: Tensor, values: Tensor | None) -> Trajectory:
        by_task = {name: field.T.contiguous() for name, field in self._fields.items()}  # (B, T)
        if "keys" not in by_task:  # there is but one: a single number stands for all
            by_task["keys"] = by_task["actions"].new_zeros(1, 1).expand_as(by_task["actions"])
        seen: Observation = self._observations.get(BARE)
        return Trajectory(
            observations=self._observations or None if seen is None else seen,
            optimal_after=optimal_after, values=values, **by_task,
        )  # fmt: skip


BARE = ""
"""The name of an observation that has none."""


def _named(obs: Observation) -> dict[str, Tensor]:
    if isinstance(obs, dict):
        return obs
    return {} if obs is None else {BARE: obs}
