"""From what a user says to an agent: a name, a model, 'module:Class', or an object."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from mithridate.agents.adapt import as_agent
from mithridate.agents.in_context import load
from mithridate.errors import UserError, unknown
from mithridate.model.weights import zoo_names
from mithridate.registry import AGENTS
from mithridate.types import Agent

AgentLike = Any
"""str, an Agent, a plain single-task agent, or the class of either."""


def make_agent(agent: AgentLike) -> tuple[str, Agent]:
    """A label and the agent. Strings may be

    - a registered name, with parameters if wanted: 'ts', 'ucb1(constant=1,form=fixed)';
    - a shipped model ('dpt-bandit-s0'), a run's directory or a .safetensors file;
    - 'module:Class', a class of the user's.
    """
    if not isinstance(agent, str):
        name = agent.__name__ if isinstance(agent, type) else type(agent).__name__
        return name, as_agent(agent)
    name, parameters = _parse(agent)
    if name in AGENTS.names():
        return agent, AGENTS.create(name, **parameters)
    if name in zoo_names() or name.endswith(".safetensors") or Path(name).is_dir():
        if parameters.keys() - {"greedy"}:
            raise UserError(f"agent '{agent}': a trained model takes only greedy=true or false")
        return agent, load(name, greedy=bool(parameters.get("greedy", False)))
    if ":" in name:
        if parameters:
            raise UserError(f"agent '{agent}': parameters are not passed to a class of your own")
        return name.partition(":")[2], as_agent(_import(name))
    raise unknown("agent", name, [*AGENTS.names(), *zoo_names()])


def split_agents(text: str) -> list[str]:
    """'ts,ucb1(constant=1,form=log)' as ['ts', 'ucb1(constant=1,form=log)']."""
    names = [part.strip() for part in re.split(r",(?![^(]*\))", text)]
    if not all(names):
        raise UserError(f"--agents '{text}': expected names separated by commas")
    return names


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    match = re.fullmatch(r"([^()]+)(?:\((.*)\))?", text)
    if not match:
        raise UserError(f"agent '{text}': expected name or name(key=value,…)")
    name, inside = match[1], match[2]
    parameters: dict[str, Any] = {}
    for pair in inside.split(",") if inside else []:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise UserError(f"agent '{text}': expected key=value, not '{pair}'")
        try:
            parameters[key] = json.loads(value)
        except ValueError:
            parameters[key] = value
    return name, parameters


def _import(name: str) -> Any:
    """The object that 'package.module:Class' names; modules in the working directory count."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"agent '{name}': cannot import {module_name}: {error}") from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(f"agent '{name}': module {module_name} has no '{attribute}'") from None
