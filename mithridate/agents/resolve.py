"""From what a user says to an agent: a name, a model, 'module:Class', or an object."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mithridate.agents.adapt import as_agent
from mithridate.agents.in_context import load
from mithridate.errors import UserError, shown, unknown
from mithridate.files import read_bytes
from mithridate.model.weights import zoo_names
from mithridate.registry import AGENTS, parse_call
from mithridate.types import Agent, Follows
from mithridate.users_code import import_module

AgentLike = Any
"""str, an Agent, a plain single-task agent, or the class of either."""


Told = Mapping[str, float]
"""What an algorithm may be told about the situation it is in, by name."""


def told(config: Any, eps: float | None = None, budget: float | None = None) -> Told:
    """What a configuration with an environment, eps and a budget (or others in their place) says to
    algorithms that ask: the paper's robust baselines are told how much corruption there is, and
    all are told the noise."""
    eps = config.eps if eps is None else eps
    known = {"eps": eps, "trimmed": min(eps, 0.49)}  # more than half cannot be trimmed away
    known["budget"] = config.budget if budget is None else budget
    noise = getattr(config.env, "noise_std", None)
    return known if noise is None else known | {"noise_std": max(float(noise), 1e-3)}


def make_agent(agent: AgentLike, situation: Told | None = None) -> tuple[str, Agent]:
    """A label and the agent. What it is not given, and what follows from the `situation`, does
    (`follows` of its class). Strings may be

    - a registered name, with parameters if wanted: 'ts', 'ucb1(constant=1,form=fixed)';
    - a shipped model ('dpt-bandit-s0'), a run's directory or a .safetensors file;
    - 'module:Class', a class of the user's.
    """
    if not isinstance(agent, str):
        name = agent.__name__ if isinstance(agent, type) else type(agent).__name__
        return name, as_agent(agent)
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
        return name.partition(":")[2], as_agent(_import(name))
    raise unknown("agent", name, [*AGENTS.names(), *zoo_names()])


class Victim:
    """An agent under its label, in one or several replications (models of several seeds)."""

    def __init__(
        self, label: str, sources: Sequence[AgentLike], situation: Told | None = None
    ) -> None:
        if not sources:
            raise UserError(f"agent '{shown(label, 40)}': an empty list has no replication")
        self.label = label
        self._sources = list(sources)
        self._agents = [make_agent(source, situation)[1] for source in sources]

    @property
    def count(self) -> int:
        """How many models of several seeds there are."""
        return len(self._agents)

    def replication(self, number: int) -> Agent:
        return self._agents[number % len(self._agents)]

    def source(self, number: int) -> str | None:
        """What names the agent, if a string does."""
        found = self._sources[number % len(self._sources)]
        return found if isinstance(found, str) else None

    def episodes(self) -> int:
        """That it lives through in an evaluation: those it learns in, and the one measured."""
        return int(getattr(self._agents[0], "learning_episodes", 0)) + 1

    @property
    def privileged(self) -> bool:
        return hasattr(self._agents[0], "reveal")


def make_victims(
    agents: Sequence[AgentLike] | Mapping[str, AgentLike], situation: Told | None = None
) -> list[Victim]:
    """Strings may carry a label and a pattern: 'AT-DPT=at-dpt-bandit-s*' is one victim with a
    replication for each model that matches. In a mapping, a list is one victim's replications."""
    if not isinstance(agents, Mapping | Sequence) or isinstance(agents, str) or not agents:
        raise UserError(f"agents: a list or a mapping with at least one, not {shown(agents, 40)}")
    if isinstance(agents, Mapping):
        return [
            Victim(label, agent if isinstance(agent, list) else _matching(agent), situation)
            for label, agent in agents.items()
        ]
    victims: list[Victim] = []
    seen: dict[str, int] = {}
    for agent in agents:
        label, spec = _label(agent) if isinstance(agent, str) else (make_agent(agent)[0], agent)
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:  # two of the same name get a number
            label = f"{label} #{seen[label]}"
        victims.append(Victim(label, _matching(spec), situation))
    return victims


def _label(text: str) -> tuple[str, str]:
    """'LABEL=SPEC', or a SPEC that labels itself."""
    if match := re.match(r"([^()=:]+)=(.+)", text):
        return match[1].strip(), match[2].strip()
    return (text.partition(":")[2] if ":" in text and "(" not in text else text), text


def _matching(agent: AgentLike) -> list[AgentLike]:
    """The models that a pattern stands for, by number; anything else stands for itself."""
    if not isinstance(agent, str) or "*" not in agent:
        return [agent]
    found = fnmatch.filter(zoo_names(), agent) or glob.glob(agent)
    if not found:
        raise UserError(f"agent '{agent}': nothing matches")
    return sorted(found, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])


def split_names(text: str, option: str = "--agents") -> list[str]:
    """'ts,ucb1(constant=1,form=log)' as ['ts', 'ucb1(constant=1,form=log)']."""
    names, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            names.append("")
        else:
            names[-1] += letter
    names = [name.strip() for name in names]
    if not all(names):
        raise UserError(f"{option} '{text}': expected names separated by commas")
    return names


def _import(name: str) -> Any:
    """The object that 'package.module:Class' names; modules in the working directory count."""
    module_name, _, attribute = name.partition(":")
    module = import_module(module_name, f"agent '{name}'")
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(f"agent '{name}': module {module_name} has no '{attribute}'") from None


def source_sha256(name: str) -> str | None:
    """Fingerprint of the file that defines 'package.module:Class', if there is one."""
    _import(name)
    path = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    if path is None:
        return None
    return hashlib.sha256(read_bytes(Path(path), "source")).hexdigest()
