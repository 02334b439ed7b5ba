"""Carries out a call in Python, in the process of its case, and says what came of it.

A call is JSON; values that are none, such as NaN or a tensor, are Python expressions (`value`).
What is said: `outcome` (accepted or refused), the `message` of a refusal, and `harm` if the call
did damage, e.g. if an agent acts differently after a bad call than its twin that never saw it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import mithridate as mi
from fuzzing import strangers
from fuzzing.decoys import Place

Call = dict[str, Any]
SETTINGS = {"tasks": 3, "threads": 1}


def perform(call: Call, place: Place, said: int) -> int:
    """An exception other than UserError goes on, for the case to die of."""
    answer: dict[str, Any] = {"outcome": "accepted"}
    try:
        answer |= DO[call["do"]](call, place) or {}
    except mi.UserError as error:
        answer = {"outcome": "refused", "message": str(error)}
    except SystemExit as stop:
        answer["harm"] = f"it ended the process: SystemExit({stop.code})"
    os.write(said, json.dumps(answer).encode())
    return 0


def value(text: str) -> Any:
    """A Python expression from a plan."""
    names = {"torch": torch, "np": np, "mi": mi, "math": math, "nan": math.nan, "inf": math.inf}
    return eval(text, {**names, "strangers": strangers})


def _env(name: str = "bandit") -> Any:
    small = {"size": 3} if name == "darkroom2" else {"arms": 3}
    return mi.make_env(name, horizon=5, **small)


# Plain calls -----------------------------------------------------------------------------------


def _make_env(call: Call, place: Place) -> dict[str, Any]:
    env = mi.make_env(value(call["name"]), **{k: value(v) for k, v in call["settings"].items()})
    return {"value": str(env.config)[:200]}


def _evaluate(call: Call, place: Place) -> dict[str, Any]:
    env = value(call["env"]) if "env" in call else _env()
    agents = value(call["agents"]) if "agents" in call else ["ts"]
    settings = {k: value(v) for k, v in call["settings"].items()}
    result = mi.evaluate(env, agents, **{**SETTINGS, **settings})
    return {"value": str(result.summary())[:200]}


def _load(call: Call, place: Place) -> None:
    mi.load(value(call["source"]), **{k: value(v) for k, v in call["settings"].items()})


def _make_agent(call: Call, place: Place) -> None:
    mi.make_agent(value(call["agent"]))


def _text(call: Call, place: Place) -> None:
    from mithridate.attackers import make_attacker
    from mithridate.evaluation.kinds import named
    from mithridate.evaluation.victims import make_victims, split_names
    from mithridate.experiments.plan import plan
    from mithridate.experiments.recipes import RECIPES, recipe_named
    from mithridate.registry import ENVS, parse_call
    from mithridate.settings import resolve
    from mithridate.stage_config import EvaluateConfig

    line = call["line"]
    targets: dict[str, Callable[[], Any]] = {
        "parse_call": lambda: parse_call(line), "split_names": lambda: split_names(line),
        "assignment": lambda: resolve(EvaluateConfig, "evaluate", "bandit", "smoke", [line]),
        "stage set": lambda: plan(RECIPES["bandit_training"], "smoke", 1, 0, [line]),
        "recipe": lambda: recipe_named(line), "agent": lambda: mi.make_agent(line),
        "attacker": lambda: make_attacker(line, 3.0), "victims": lambda: make_victims([line]),
        "environment": lambda: ENVS.get(line), "column": lambda: named(line).title,
    }  # fmt: skip
    targets[call["target"]]()


# Files -----------------------------------------------------------------------------------------


def _bandit(call: Call, place: Place) -> dict[str, Any]:
    """Whoever loads a bandit has one that works."""
    bandit = mi.RobustBandit.load(call["path"])
    for reward in (0.4, 0.9):
        arm = bandit.act()
        bandit.observe(arm, reward)
    best = bandit.best()
    if not 0 <= arm < bandit.n_arms or not np.isfinite(best).all():
        return {"harm": f"it loads a bandit that pulls {arm} and says {best}"}
    return {"value": f"{bandit.n_arms} arms"}


def _records(call: Call, place: Place) -> dict[str, Any]:
    """Records from a file, and what is made of them."""
    found = mi.read_records(call["path"])
    frame, rliable = found.to_pandas(), found.where(environment="bandit").rliable()
    return {"value": f"{len(frame)} rows, {len(rliable)} algorithms"}


# An agent in a loop of one's own ---------------------------------------------------------------


def _solo(call: Call, place: Place) -> dict[str, Any]:
    """The bad call in the midst of good ones; afterwards the agent acts as its twin does."""
    # Shipped models know their own environment only.
    env = mi.make_env(call["env"]) if call["agent"].startswith("dpt-") else _env(call["env"])
    solo, twin = (mi.Solo(_solo_agent(call["agent"], place), env.spec, seed=3) for _ in "ab")
    rooms = env.spec.n_states is not None
    answer: dict[str, Any] = {"outcome": "accepted"}
    for step in range(4):
        obs = torch.tensor(step % 4) if rooms else None
        if step == call["after"]:
            answer = _bad(solo, call, obs)
        actions = solo.act(obs), twin.act(obs)
        if actions[0] != actions[1]:
            return {**answer, "harm": f"after the bad call it does {actions[0]}, "
                                      f"its twin {actions[1]} ({answer['outcome']})"}  # fmt: skip
        following = torch.tensor((step + 1) % 4) if rooms else None
        for each in (solo, twin):
            each.observe(actions[0], 0.25 * (step + 1), obs, following)
    return answer


def _solo_agent(name: str, place: Place) -> Any:
    return mi.load(place.fill(name)) if name.startswith("@") else mi.make_agent(name)[1]


def _bad(solo: Any, call: Call, obs: Any) -> dict[str, Any]:
    given = {"action": "0", "reward": "0.5"} | call["given"]
    values = {k: value(v) for k, v in given.items()}
    try:
        if call["method"] == "act":
            solo.act(values.get("obs"))
        else:
            values.setdefault("obs", obs)
            values.setdefault("next_obs", obs)
            solo.observe(**values)
    except mi.UserError as error:
        return {"outcome": "refused", "message": str(error)}
    return {"outcome": "accepted", "value": str(call["given"])}


# Users' agents and attackers -------------------------------------------------------------------


def _stranger(call: Call, place: Place) -> dict[str, Any]:
    """A user's class in an evaluation. With a `twin`, an honest one, the scores must agree."""
    env = _env(call.get("env", "bandit"))
    settings: dict[str, Any] = {**SETTINGS, "eps": 0.4}
    found = []
    for name in [call["name"], *([call["twin"]] if "twin" in call else [])]:
        agents: Any = {"me": "ts" if env.spec.n_states is None else "q_learning"}
        if call["role"] == "agent":
            agents = {"me": strangers.agent(name, call.get("answer"))}
            settings["attackers"] = call.get("attackers", "none")
        else:
            settings["attackers"] = strangers.attacker(name, call.get("answer"))
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            result = mi.evaluate(env, agents, **settings)
        found.append([(r.mean, r.ci95) for r in result.records])
    if len(found) == 2 and repr(found[0]) != repr(found[1]):
        return {"harm": f"its scores are {found[0]}, those of an honest twin {found[1]}"}
    return {"value": str(found[0])}


def _module(call: Call, place: Place) -> dict[str, Any]:
    """A user's class on the command line: standard output is one JSON document."""
    import io

    from mithridate.cli import run

    output = io.StringIO()
    words = ["evaluate", "bandit", "--agents", "mine:Mine", "--preset", "smoke", "--json",
             "--set", "env.horizon=5", "--set", "tasks=2"]  # fmt: skip
    with contextlib.redirect_stdout(output):
        code = run(words)
    if code == 2:
        raise mi.UserError("refused")
    try:
        json.loads(output.getvalue())
    except ValueError:
        return {"harm": f"standard output is no JSON: {output.getvalue()[:80]!r}"}
    return {"value": f"exit code {code}", "stderr": sys.stderr.encoding}


DO: dict[str, Callable[[Call, Place], dict[str, Any] | None]] = {
    "make_env": _make_env, "evaluate": _evaluate, "load": _load, "make_agent": _make_agent,
    "solo": _solo, "stranger": _stranger, "text": _text, "module": _module,
    "bandit": _bandit, "records": _records,
}  # fmt: skip
