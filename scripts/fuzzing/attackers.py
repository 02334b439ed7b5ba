"""Driver `attackers`: files of trained attackers, damaged and forged."""

from __future__ import annotations

from random import Random
from typing import Any

from fuzzing.mutations import (
    Mutation,
    damaged_bytes,
    forged_header,
    forged_tensor,
    other_value,
    replaced,
)
from fuzzing.operations import _meta_of
from fuzzing.plans import Plan
from fuzzing.templates import Templates, commands, evaluate

FILE = "a/attackers.safetensors"
FORGED = ("nan", "inf", "all nan", "int", "bool", "float64", "half", "bfloat16", "missing",
          "extra", "wide", "flat", "empty", "large")  # fmt: skip
NO_IDS = ("negative", "twice", "others", "missing", "float64", "int", "nan", "empty")
USED = ("attacker.offsets", "attacker.log_spreads", "tasks.means")
HARMLESS = ("threads", "checkpoint_every", "target_sha256")
"""Settings that no result depends on."""


def generate(random: Random, templates: Templates) -> Plan:
    mutation = _mutation(random, templates)
    name, words, writes = random.choice((
        ("evaluate", evaluate("--agents", "ts", "--attackers", random.choice(("a", FILE, "a*"))),
         []),
        ("evaluate", evaluate("--agents", "ts,ucb1", "--attackers", f"none,{FILE}", "--json"), []),
        ("attack", [*commands("m")["attack"], "--out", "a"], ["a"]),
    ))  # fmt: skip
    return Plan(
        "attackers", f"{name}: {mutation.what}",
        group=mutation.group or mutation.what, wrong=mutation.wrong,
        files=[{"op": "copy", "from": "attackers", "to": "a"}, *mutation.steps],
        arguments=words, writes=writes,
    )  # fmt: skip


def _mutation(random: Random, templates: Templates) -> Mutation:
    chance = random.random()
    if chance < 0.15:
        return damaged_bytes(random, FILE, data=True)
    if chance < 0.36:
        return forged_tensor(random, FILE, "meta", FORGED)
    if chance < 0.4:
        return forged_tensor(random, FILE, "meta", ("huge",), random.choice(USED))
    if chance < 0.5:
        name = random.choice(("attacker.ids", "tasks.ids"))
        return forged_tensor(random, FILE, "meta", NO_IDS, name)
    if chance < 0.6:
        return forged_header(random, FILE)
    if chance < 0.68:
        found = replaced(random, FILE)
        # Without its attackers the directory is that of an unfinished run.
        return Mutation(found.what, found.wrong and "missing" not in found.what, found.steps)
    if chance < 0.72:
        return Mutation("attackers: format 99", True,
                        [{"op": "meta", "path": FILE, "at": ["format"], "raw": "99"}])  # fmt: skip
    meta: Any = _meta_of(templates.path / "attackers" / "attackers.safetensors")
    return other_value(random, FILE, meta, _has_a_meaning, op="meta")


def _has_a_meaning(at: list[Any]) -> bool:
    return at[0] in ("format", "sha256") or (at[0] == "config" and at[-1] not in HARMLESS)
