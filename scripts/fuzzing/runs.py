"""Driver `runs`: the same command goes on in the directory of an interrupted run that somebody has
been at."""

from __future__ import annotations

from random import Random
from typing import Any

from fuzzing.mutations import (
    Mutation,
    damaged_bytes,
    forged_header,
    forged_tensor,
    linked_to_decoy,
    no_json,
    other_value,
    pick,
    replaced,
)
from fuzzing.operations import _meta_of
from fuzzing.plans import Plan
from fuzzing.templates import Templates, commands
from fuzzing.values import JSON_VALUES, NO_JSON

CONFIG, LOG, CHECKPOINT = "run/config.json", "run/log.jsonl", "run/checkpoint.safetensors"
LOCK = "run/.lock"
FORGED = ("nan", "inf", "all nan", "int", "bool", "float64", "half", "missing", "extra", "wide",
          "flat", "empty", "large")  # fmt: skip
NO_STEP = ("-1", "1.5", "99", "9223372036854775808", "1e308", "NaN", "null", '"two"', "[]", "true",
           "1e999", "{}")  # fmt: skip


def generate(random: Random, templates: Templates) -> Plan:
    command = random.choice(("pretrain", "pretrain", "train", "attack", "distill"))
    mutation = _mutation(random, templates, command)
    words = [*commands("model")[command], "--out", "run", *random.choice(([], ["--json"]))]
    return Plan(
        "runs", f"{command}: {mutation.what}",
        group=mutation.group or mutation.what, wrong=mutation.wrong,
        files=[{"op": "copy", "from": command, "to": "."}, *mutation.steps],
        arguments=words, writes=["run"], reads=["model"],
    )  # fmt: skip


def _mutation(random: Random, templates: Templates, command: str) -> Mutation:
    chance = random.random()
    if chance < 0.12:
        return damaged_bytes(random, CHECKPOINT, data=True)
    if chance < 0.3:
        return forged_tensor(random, CHECKPOINT, "meta", FORGED)
    if chance < 0.36:
        return forged_header(random, CHECKPOINT)
    if chance < 0.45:
        return Mutation("checkpoint: its step is none", True,
                        [{"op": "meta", "path": CHECKPOINT, "at": ["step"],
                          "raw": random.choice(NO_STEP)}])  # fmt: skip
    if chance < 0.5:
        meta: Any = _meta_of(templates.path / command / CHECKPOINT)
        return other_value(random, CHECKPOINT, meta, lambda at: at == ["sha256"], op="meta")
    if chance < 0.6:
        return _config(random, templates, command)
    if chance < 0.8:
        return _log(random, templates, command)
    if chance < 0.9:
        path = random.choice((LOCK, LOG, CHECKPOINT, CONFIG))
        return linked_to_decoy(random, path)
    path = random.choice((LOCK, LOG, CONFIG, CHECKPOINT, "run/model.safetensors", "run/model.json",
                          "run/attackers.safetensors"))  # fmt: skip
    found = replaced(random, path, wrong=path in (CONFIG, CHECKPOINT))
    # A checkpoint that is gone is a run that begins anew.
    harmless = path == CHECKPOINT and "missing" in found.what
    return Mutation(found.what, found.wrong and not harmless, found.steps)


def _config(random: Random, templates: Templates, command: str) -> Mutation:
    if random.random() < 0.5:
        return no_json(random, CONFIG)
    document = templates.json(f"{command}/{CONFIG}")
    return other_value(random, CONFIG, document, lambda at: at == ["hash"])


def _log(random: Random, templates: Templates, command: str) -> Mutation:
    """A line cut short by a crash is nobody's fault; but no log may bring a run down."""
    if random.random() < 0.3:
        return no_json(random, LOG, wrong=False)
    number = random.randrange(4)
    if random.random() < 0.5:
        word, raw = pick(random, NO_JSON)
        return Mutation(f"log.jsonl: a line of {word}", False,
                        [{"op": "line", "path": LOG, "number": number, "raw": raw}])  # fmt: skip
    key = random.choice(("step", "seconds", "loss", "score_mean"))
    word, raw = pick(random, JSON_VALUES)
    return Mutation(f"log.jsonl: {key} is {word}", False,
                    [{"op": "line", "path": LOG, "number": number, "at": [key],
                      "raw": raw}])  # fmt: skip
