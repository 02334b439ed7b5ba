"""Driver `bandits`: files of `RobustBandit.save()`, and files of records, damaged and forged."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from fuzzing.mutations import (
    Mutation,
    damaged_bytes,
    forged_header,
    forged_tensor,
    other_value,
    pick,
    replaced,
)
from fuzzing.operations import _meta_of
from fuzzing.plans import Plan
from fuzzing.templates import Templates
from fuzzing.values import JSON_VALUES, NO_JSON

BANDIT, RECORDS = "bandit.safetensors", "records.jsonl"
FORGED = ("nan", "inf", "all nan", "int", "bool", "half", "bfloat16", "missing", "extra", "wide",
          "flat", "empty", "large", "negative", "others", "huge")  # fmt: skip
HARMLESS = {("rewards", "negative"), ("rewards", "empty"), ("arms", "int")}
"""What could have been saved just as well, or is what it was."""
FIELDS = ("mean", "ci95", "agent", "attacker", "target", "replication", "norm", "tasks", "eps",
          "budget", "level", "level_budget", "agent_name")  # fmt: skip


def generate(random: Random, templates: Templates) -> Plan:
    if random.random() < 0.4:
        mutation = _records(random)
        return Plan(
            "bandits", f"records: {mutation.what}", group=mutation.group or mutation.what,
            files=[{"op": "copy", "from": RECORDS, "to": RECORDS}, *mutation.steps],
            call={"do": "records", "path": RECORDS}, reads=[RECORDS],
        )  # fmt: skip
    mutation = _mutation(random, templates)
    return Plan(
        "bandits", mutation.what, group=mutation.group or mutation.what, wrong=mutation.wrong,
        files=[{"op": "copy", "from": BANDIT, "to": BANDIT}, *mutation.steps],
        call={"do": "bandit", "path": BANDIT}, reads=[BANDIT],
    )  # fmt: skip


def _mutation(random: Random, templates: Templates) -> Mutation:
    chance = random.random()
    if chance < 0.2:
        return damaged_bytes(random, BANDIT, data=True)
    if chance < 0.3:
        return forged_header(random, BANDIT)
    if chance < 0.4:
        return replaced(random, BANDIT)
    if chance < 0.7:
        how, name = random.choice(FORGED), random.choice(("arms", "rewards"))
        found = forged_tensor(random, BANDIT, "meta", (how,), name)
        return Mutation(found.what, (name, how) not in HARMLESS, found.steps, found.group)
    meta: Any = _meta_of(templates.path / BANDIT)
    return other_value(random, BANDIT, meta, lambda at: at[0] in ("format", "version"), op="meta")


def _records(random: Random) -> Mutation:
    chance = random.random()
    if chance < 0.2:
        found = damaged_bytes(random, RECORDS)
        return Mutation(found.what, False, found.steps)
    if chance < 0.3:
        return replaced(random, RECORDS, wrong=False)
    if chance < 0.5:
        word, text = pick(random, NO_JSON)
        return Mutation(word, False, [{"op": "write", "path": RECORDS, "text": text}])
    key, (word, raw) = random.choice(FIELDS), pick(random, JSON_VALUES)
    step = {"op": "line", "path": RECORDS, "at": [key], "raw": raw, "number": 0}
    return Mutation(f"{json.dumps(key)} {word}", False, [step])
