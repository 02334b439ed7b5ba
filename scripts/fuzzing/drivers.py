"""The drivers: who makes up the cases. Case number i depends on the seed, the driver and i only."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzzing import api, arguments, attackers, bandits, models, runs, stores, text
from fuzzing.plans import Plan
from fuzzing.templates import Templates

GENERATORS: dict[str, Callable[[Random, Templates], Plan]] = {
    "arguments": arguments.generate, "models": models.generate, "attackers": attackers.generate,
    "runs": runs.generate, "stores": stores.generate, "bandits": bandits.generate,
}  # fmt: skip
STRATEGIES: dict[str, Callable[[], st.SearchStrategy[Plan]]] = {
    "api": api.plans, "text": text.plans,
}  # fmt: skip
SHARES = {"arguments": 26, "models": 15, "attackers": 9, "runs": 12, "stores": 15, "api": 11,
          "text": 6, "bandits": 6}  # fmt: skip
"""Of a run of all drivers, in per cent."""
CHUNK = 100
"""Hypothesis makes so many cases at a time, all different."""


def plan_for(driver: str, number: int, root: int, templates: Templates) -> Plan:
    """Case `number` of a driver."""
    if driver in GENERATORS:
        return GENERATORS[driver](Random(f"{root}/{driver}/{number}"), templates)
    made = _chunk(driver, number // CHUNK, root)
    return made[number % len(made)]


@lru_cache(maxsize=4)
def _chunk(driver: str, number: int, root: int) -> list[Plan]:
    found: list[Plan] = []

    @seed(Random(f"{root}/{driver}/{number}").getrandbits(64))
    @settings(max_examples=CHUNK, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(STRATEGIES[driver]())
    def collect(plan: Plan) -> None:
        found.append(plan)

    collect()
    return found


def apportion(cases: int, only: str | None) -> dict[str, int]:
    """How many cases each driver has."""
    if only is not None:
        return {only: cases}
    if cases == 0:
        return {}
    return {driver: max(1, cases * share // 100) for driver, share in SHARES.items()}
