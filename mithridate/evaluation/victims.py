"""Whom an evaluation measures: agents under labels, in several replications."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Mapping, Sequence

from mithridate.agents.named import AgentLike, Told, make_agent
from mithridate.capabilities import is_learning, is_privileged
from mithridate.errors import UserError, shown
from mithridate.model.weights import zoo_names
from mithridate.types import Agent


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
        agent = self._agents[0]
        return (agent.learning_episodes if is_learning(agent) else 0) + 1

    @property
    def privileged(self) -> bool:
        return is_privileged(self._agents[0])


def make_victims(
    agents: Sequence[AgentLike] | Mapping[str, AgentLike], situation: Told | None = None
) -> list[Victim]:
    """Strings may carry a label and a pattern: 'AT-DPT=at-dpt-bandit-s*' is one victim with a
    replication for each model that matches. In a mapping, a list is one victim's replications.
    Victims that are made already stay as they are."""
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
        if isinstance(agent, Victim):
            victims.append(agent)
            continue
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
