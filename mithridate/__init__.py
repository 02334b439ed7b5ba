"""Mithridate: in-context reinforcement learning that survives reward poisoning.

The names below are the public face; each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mithridate.agents.any_bandit import RobustBandit as RobustBandit
    from mithridate.agents.in_context import load as load
    from mithridate.agents.named import make_agent as make_agent
    from mithridate.agents.single_task import Solo as Solo
    from mithridate.envs import make_env as make_env
    from mithridate.errors import UserError as UserError
    from mithridate.evaluation.crossplay import evaluate as evaluate
    from mithridate.evaluation.kinds import Kind as Kind
    from mithridate.registry import AGENTS as AGENTS
    from mithridate.registry import ATTACKERS as ATTACKERS
    from mithridate.registry import ENVS as ENVS
    from mithridate.registry import KINDS as KINDS
    from mithridate.report.records import read_curves as read_curves
    from mithridate.report.records import read_records as read_records
    from mithridate.rng import Rng as Rng
    from mithridate.stress.run import stress_test as stress_test

_HOME = {
    "AGENTS": "mithridate.registry",
    "ATTACKERS": "mithridate.registry",
    "ENVS": "mithridate.registry",
    "KINDS": "mithridate.registry",
    "Kind": "mithridate.evaluation.kinds",
    "Rng": "mithridate.rng",
    "RobustBandit": "mithridate.agents.any_bandit",
    "Solo": "mithridate.agents.single_task",
    "UserError": "mithridate.errors",
    "evaluate": "mithridate.evaluation.crossplay",
    "load": "mithridate.agents.in_context",
    "make_agent": "mithridate.agents.named",
    "make_env": "mithridate.envs",
    "read_curves": "mithridate.report.records",
    "read_records": "mithridate.report.records",
    "stress_test": "mithridate.stress.run",
}
__all__ = sorted(_HOME)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mithridate' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
