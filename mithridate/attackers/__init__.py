"""Reward poisoning. Importing this package registers all attackers."""

from typing import Any

from mithridate.attackers import adaptive as adaptive
from mithridate.attackers import few_arms as few_arms
from mithridate.attackers import gaussian as gaussian
from mithridate.attackers import structured_arms as structured_arms
from mithridate.attackers import structured_rooms as structured_rooms
from mithridate.attackers import tabular as tabular
from mithridate.attackers import uniform as uniform
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS


def make_attacker(text: str, budget: float, **defaults: Any) -> Any:
    """The attacker that 'name' or 'name(key=value,…)' stands for, within `budget`."""
    attacker = ATTACKERS.make(text, budget=budget, **defaults)
    own = getattr(getattr(attacker, "config", None), "budget", budget)
    if own > budget:
        raise UserError(f"attacker '{text}': its budget exceeds the one it is given, {budget:g}")
    return attacker
