"""What records and graphs of the first edition did not say, and how it can be told. Only formats.py
asks, when it reads them; nobody else derives what something is from what it is called."""

from __future__ import annotations

import re
from typing import Any

from mithridate.evaluation.kinds import untrained
from mithridate.registry import parse_call

LABEL = r"(?:(\w+) attack on|train) (.*) #(\d{1,9}), eps (\S{1,30}), B (\S{1,30})"


def kind_of(attacker: str, target: str | None) -> str:
    """The kind of the attack in a record without one."""
    if target is None:
        return untrained(attacker)
    name, parameters = parse_call(attacker, "attacker")
    if name == "pooled":
        return "pooled"
    if name == "gaussian" and parameters.get("keep") == "best":
        return "kept"
    if name == "adaptive":
        return "from_nothing" if parameters.get("tilt") == 0 else "adaptive"
    return "learned"


def about(label: str) -> dict[str, Any] | None:
    """What a stage that trains attackers or a model is about, as its label says."""
    match = re.fullmatch(LABEL, label)
    if match is None:
        return None
    kind, who, number, eps, budget = match.groups()
    try:
        level = {"eps": float(eps), "budget": float(budget)}
    except ValueError:
        return None
    return {"kind": kind, "who": who, "replication": int(number) - 1, **level}
