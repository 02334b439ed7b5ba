"""From what a user says to an agent: a name, a model, 'module:Class', or an object."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from inspect import isfunction
from pathlib import Path
from typing import Any

from mithridate.agents.conventions import any_agent
from mithridate.agents.in_context import InContextAgent, load
from mithridate.errors import UserError, unknown
from mithridate.files import read_bytes
from mithridate.model.weights import zoo_names
from mithridate.registry import AGENTS, parse_call
from mithridate.tensor_files import tensors_sha256
from mithridate.types import Agent, Follows
from mithridate.users_code import import_module

AgentLike = Any
"""str, an Agent, a plain single-task agent, one of another library's (conventions.py), the class of
one, or a function that makes one."""


Told = Mapping[str, float]
"""What an algorithm may be told about the situation it is in, by name."""


def told(config: Any, eps: float | None = None, budget: float | None = None) -> Told:
    """What a configuration with an environment, eps and a budget (or others in their place) says to
    algorithms that ask: the paper's robust baselines are told how much corruption there is, and
    all are told the noise."""
    eps = config.eps if eps is None else eps
    known = {"eps": eps, "trimmed": min(eps, 0.49)}  # more than half cannot be trimmed away
    known["budget"] = config.budget if budget is None else budget
    facts: Told = config.env.facts()
    return known | dict(facts)


def make_agent(agent: AgentLike, situation: Told | None = None) -> tuple[str, Agent]:
    """A label and the agent. What it is not given, and what follows from the `situation`, does
    (`follows` of its class). Strings may be

    - a registered name, with parameters if wanted: 'ts', 'ucb1(constant=1,form=fixed)';
    - a shipped model ('dpt-bandit-s0'), a run's directory or a .safetensors file;
    - 'module:Class', a class of the user's, or a function or an object there.
    """
    if not isinstance(agent, str):
        named = isinstance(agent, type) or isfunction(agent)
        name = agent.__name__ if named else type(agent).__name__
        return name, any_agent(agent)
    name, parameters = parse_call(agent)
    if AGENTS.known(name) is not None:
        follows: Follows = getattr(AGENTS.get(name), "follows", {})
        known = situation or {}
        defaults = {field: known[fact] for field, fact in follows.items() if fact in known}
        return agent, AGENTS.create(name, **{**defaults, **parameters})
    if name in zoo_names() or name.endswith(".safetensors") or os.path.isdir(name):
        if parameters.keys() - {"greedy", "temperature"}:
            raise UserError(f"agent '{agent}': a trained model takes only greedy and temperature")
        return agent, load(name, **parameters)
    if ":" in name:
        if parameters:
            raise UserError(f"agent '{agent}': parameters are not passed to a class of your own")
        return name.partition(":")[2], any_agent(_import(name))
    raise unknown("agent", name, [*AGENTS.names(), *zoo_names()])


def _import(name: str) -> Any:
    """The object that 'package.module:Class' names; modules in the working directory count."""
    module_name, _, attribute = name.partition(":")
    module = import_module(module_name, f"agent '{name}'")
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(f"agent '{name}': module {module_name} has no '{attribute}'") from None


def fingerprint(name: str, agent: Agent) -> str | None:
    """Of an agent that may change under its name: of a model's weights, or of the file that defines
    'package.module:Class', if there is one."""
    if isinstance(agent, InContextAgent):
        return tensors_sha256(agent.model.state_dict())
    if ":" not in name:
        return None
    path = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    return None if path is None else hashlib.sha256(read_bytes(Path(path), "source")).hexdigest()
