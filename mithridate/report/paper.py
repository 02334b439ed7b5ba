"""The paper's tables as numbers ("Robust In-Context Reinforcement Learning Under Reward Poisoning
Attacks", ICML 2026), and the names under which it knows our agents and attackers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from mithridate.config import EnvConfig
from mithridate.evaluation.kinds import Heading, named
from mithridate.settings import parse

ALGORITHMS = {
    "ts": "TS", "rts": "RTS", "rts(level=unknown)": "RTS (C unk.)",
    "rts(level=known)": "RTS (C known)", "ucb1": "UCB1.0", "crucb": "crUCB",
    "crucb(variant=low)": "crUCB (low sigma0)", "crucb(variant=original)": "crUCB (orig.)",
    "linucb": "LinUCB", "crlinucb": "CRLinUCBv2", "crlinucb(variant=v1)": "CRLinUCBv1",
    "crlinucb(variant=v3)": "CRLinUCBv3", "npg": "NPG", "q_learning": "Q-learning",
    "ppo": "PPO",
}  # fmt: skip
CLEAN_AT_HIGH_EPS = ("CRLinUCBv1", "CRLinUCBv3")
"""Whose clean value the paper gives at every eps, although they are tuned to eps: it is taken for
that of 0.4, see docs/linear.md."""
TABLES = {
    "bandit": "bandit_full", "linear_bandit": "linear_full", "darkroom2": "darkroom2_full",
    "miniworld": "miniworld_full",
}  # fmt: skip
"""The table with all of an environment's rows."""


@cache
def tables() -> dict[str, Any]:
    text = (Path(__file__).parent / "paper_tables.json").read_text()
    result: dict[str, Any] = json.loads(text)
    return result


def paper_value(
    env: EnvConfig,
    agent: str,
    column: str | Heading,
    *,
    eps: float,
    budget: float,
    table: str | None = None,
) -> tuple[float, float] | None:
    """The paper's mean and 95 % half-width for one cell of a table (by default the one with all of
    an environment's rows), or None if it has no such cell, or another environment (more arms, a
    shorter horizon, …).

    `agent` and `column` are labels of an evaluation: our names ('ts', 'learned(ts)', 'none') or the
    paper's ('TS', 'learned(TS)').
    """
    heading = named(column) if isinstance(column, str) else column
    found = tables().get(table or TABLES.get(env.name, ""))
    if found is None or not is_the_papers(env):
        return None
    setting = found["setting"]
    if setting.get("B", budget) != budget or setting.get("eps", eps) != eps:
        return None
    if eps != 0.4 and heading.kind == "clean" and ALGORITHMS.get(agent, agent) in CLEAN_AT_HIGH_EPS:
        return None
    algorithm = _canonical(ALGORITHMS.get(agent, agent))
    wanted = heading.described.paper(ALGORITHMS.get(heading.of, heading.of), table)
    for row in found["rows"]:
        here = row.get("eps", eps) == eps and row.get("B_test", budget) == budget
        if not here or _canonical(row["algorithm"]) != algorithm:
            continue
        for name, cell in row["cells"].items():
            if _canonical(name) == _canonical(wanted) and cell is not None:
                return cell["mean"], cell["ci95"]
    return None


def paper_clean(env: EnvConfig, agent: str) -> tuple[float, float] | None:
    """The paper's clean value at eps = 0.4, whatever its budget there."""
    found = tables().get(TABLES.get(env.name, ""))
    budget = 3.0 if found is None else found["setting"].get("B", 3.0)
    return paper_value(env, agent, "none", eps=0.4, budget=budget)


def is_the_papers(env: EnvConfig) -> bool:
    """Whether this is the environment of the paper, not a smaller or larger one. Which of its tasks
    are drawn does not matter: the paper does not say how it split them."""
    any_tasks = {name: getattr(env, name) for name in env.which_tasks}
    return env == parse(type(env), {"name": env.name, **any_tasks})


def colour_range(env: EnvConfig, column: str | Heading) -> tuple[float, float] | None:
    """From where to where the paper's orange scale goes, at eps = 0.4; None if it has none."""
    if env.name != "bandit" or not is_the_papers(env):
        return None
    return (named(column) if isinstance(column, str) else column).described.scale


def orange(value: float, scale: tuple[float, float], *, lower_is_better: bool = True) -> float:
    """The share of orange, the rest being white: 50 % at the good end of the scale, 5 % at the
    other."""
    low, high = scale
    badness = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0
    return 0.05 + 0.45 * (1 - badness if lower_is_better else badness)


def _canonical(name: str) -> str:
    aliases: dict[str, str] = tables()["_aliases"]
    return aliases.get(name, name)
