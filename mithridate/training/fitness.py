"""What does not fit is found before a run's directory is made."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mithridate.agents.in_context import InContextAgent
from mithridate.capabilities import is_privileged
from mithridate.contexts import LONGER
from mithridate.errors import UserError
from mithridate.model.context_model import ContextModel
from mithridate.observations import Views, looked_at
from mithridate.rng import Rng
from mithridate.types import Agent, Attacker, Contexts, Env, EnvSpec, Secrets
from mithridate.users_code import blaming


def try_out(env: Env, agents: Iterable[Agent | None], attackers: Iterable[Attacker | None]) -> None:
    """Raise a UserError if one of them is not for this environment."""
    tasks = env.sample_tasks(1, Rng(0))
    for attacker in attackers:
        if attacker is not None:
            with blaming(attacker):
                attacker.reset(env.spec, tasks.copy(), Rng(0).streams(tasks.ids))
    for agent in agents:
        if agent is not None:
            with blaming(agent):
                if is_privileged(agent):
                    agent.reveal(Secrets(env, tasks.copy(), 0.0, None))
                agent.reset(env.spec, 1, Rng(0).streams(tasks.ids))
            if isinstance(agent, InContextAgent):
                check_views(env)


def check_views(env: Env) -> None:
    """Raise a UserError if nobody can look at what this environment shows."""
    if isinstance(env.spec.observation, Views):
        seen = env.observe(env.reset(env.sample_tasks(1, Rng(0))))
        looked_at(seen, env.spec.observation)


def check_start(model: ContextModel, env: Env) -> None:
    """Raise a UserError unless the model, trained on in `env`, can be loaded as a model of `env`:
    being able to act there is not enough."""
    if env.spec.features is not None and model.features is None:
        raise UserError(
            "it was trained where arms have no features, and would not know that it belongs to "
            "these; pretrain one here"
        )
    if model.context_length != env.spec.horizon:
        raise UserError(
            f"it was trained for {model.context_length} steps, here are {env.spec.horizon}; "
            f"train with --set env.horizon={model.context_length}, or pretrain one here"
        )


def check_contexts(contexts: Contexts, spec: EnvSpec, batch: int, length: int) -> None:
    """Raise a UserError unless an environment's contexts have the form that models learn from."""
    what = f"environment {spec.name}: sample_contexts() must return"
    for name, tensor in contexts._by_task().items():
        if name == "values":
            continue
        kind = torch.float32 if name == "rewards" else torch.int64
        shape = (batch, length + (name in LONGER))
        if tensor.dtype != kind or tuple(tensor.shape) != shape:
            raise UserError(f"{what} {name} as {kind} of shape {shape}")
        most = spec.n_actions if name in ("actions", "labels") else spec.n_states
        if kind == torch.int64 and most is not None:
            low, high = torch.aminmax(tensor)
            if low < 0 or high >= most:
                raise UserError(f"{what} {name} in 0…{most - 1}")
