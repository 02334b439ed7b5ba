"""Reward poisoning. Importing this package registers all attackers."""

from collections.abc import Mapping
from typing import Any

from mithridate.attackers import adaptive as adaptive
from mithridate.attackers import disguise as disguise
from mithridate.attackers import few_arms as few_arms
from mithridate.attackers import gaussian as gaussian
from mithridate.attackers import literature as literature
from mithridate.attackers import replay as replay
from mithridate.attackers import search as search
from mithridate.attackers import structured_arms as structured_arms
from mithridate.attackers import structured_boxes as structured_boxes
from mithridate.attackers import structured_rooms as structured_rooms
from mithridate.attackers import tabular as tabular
from mithridate.attackers import uniform as uniform
from mithridate.errors import UserError, shown
from mithridate.registry import ATTACKERS, parse_call
from mithridate.types import Follows


def make_attacker(
    text: str, budget: float, facts: Mapping[str, float] | None = None, **defaults: Any
) -> Any:
    """The attacker that 'name' or 'name(key=value,…)' stands for, within `budget`. What it is not
    given, and what follows from the environment's `facts`, does (`follows` of its class)."""
    name, _ = parse_call(text, "attacker")
    cls = ATTACKERS.get(name)
    if "budget" not in cls.Config.model_fields:
        raise UserError(f"attacker '{shown(name)}': its Config needs a field 'budget'")
    follows: Follows = getattr(cls, "follows", {})
    known = facts or {}
    told = {field: known[fact] for field, fact in follows.items() if fact in known}
    attacker = ATTACKERS.make(text, budget=budget, **defaults, **told)
    if attacker.config.budget > budget:
        raise UserError(f"attacker '{text}': its budget exceeds the one it is given, {budget:g}")
    return attacker
