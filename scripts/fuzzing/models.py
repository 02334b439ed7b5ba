"""Driver `models`: weights and cards, damaged and forged, for every command that takes a model."""

from __future__ import annotations

from random import Random
from typing import Any

from fuzzing.mutations import (
    Mutation,
    damaged_bytes,
    forged_header,
    forged_tensor,
    no_json,
    other_value,
    replaced,
)
from fuzzing.plans import Plan
from fuzzing.templates import SMALL, Templates, commands, evaluate, with_sets

WEIGHTS, CARD = "m/model.safetensors", "m/model.json"
FORGED = ("nan", "inf", "all nan", "int", "bool", "float64", "half", "bfloat16", "missing", "extra",
          "wide", "flat", "empty", "large")  # fmt: skip
MEANING = ("env", "model", "temperature", "sha256", "format")
"""Parts of a card that say how the weights are used."""
OTHERS: dict[str, list[tuple[list[Any], tuple[str, ...]]]] = {
    "model": [
        (["model", "heads"], ("1", "4", "8", "16")), (["model", "layers"], ("1", "3")),
        (["model", "width"], ("8", "32")), (["env", "noise_std"], ("0.5", "0", "3.0")),
        (["env", "arms"], ("2", "4")), (["env", "horizon"], ("4", "6", "500")),
        (["env", "name"], ('"darkroom2"', '"linear_bandit"')), (["format"], ("99", "0", "1", "3")),
        (["temperature"], ("0.5", "2", "1e-30")),
    ],
    "at": [
        (["temperature"], ("1.0", "0.5", "0.01", "1e-39", "1e30")), (["model", "heads"], ("4",)),
    ],
}  # fmt: skip
"""Values that would do just as well, if the weights had been trained so."""


def generate(random: Random, templates: Templates) -> Plan:
    which = random.choice(("model", "model", "at"))
    mutation = _mutation(random, templates, which)
    name, words, writes = _use(random)
    return Plan(
        "models", f"{name}: {mutation.what}",
        group=mutation.group or mutation.what, wrong=mutation.wrong,
        files=[{"op": "copy", "from": which, "to": "m"}, *mutation.steps],
        arguments=words, writes=writes,
    )  # fmt: skip


def _mutation(random: Random, templates: Templates, which: str) -> Mutation:
    chance = random.random()
    if chance < 0.15:
        return damaged_bytes(random, WEIGHTS)
    if chance < 0.4:
        return forged_tensor(random, WEIGHTS, "card", FORGED)
    if chance < 0.5:
        forged = forged_header(random, WEIGHTS)
        return Mutation(forged.what, True, [*forged.steps, {"op": "seal card", "path": WEIGHTS}])
    if chance < 0.6:
        return replaced(random, random.choice((WEIGHTS, CARD)))
    if chance < 0.67:
        return no_json(random, CARD)
    if chance < 0.8:
        at, values = random.choice(OTHERS[which])
        raw = random.choice(values)
        return Mutation(f"card: {'.'.join(at)} is another", True,
                        [{"op": "json", "path": CARD, "at": at, "raw": raw}])  # fmt: skip
    return other_value(
        random, CARD, templates.json(f"{which}/model.json"), lambda at: at[0] in MEANING
    )


def _use(random: Random) -> tuple[str, list[str], list[str]]:
    """A command that takes the model, its words, and what it may write."""
    source = random.choice(("m", WEIGHTS))
    training = commands(source)["train"]
    quick = ("tasks=2", "refresh_every=2", "steps=1", "log_every=1", "evaluate_every=2")
    return random.choice((
        ("evaluate", evaluate("--agents", random.choice((source, f"X={source}", "X=m*",
                                                         f"{source}(greedy=true)"))), ["runs"]),
        ("evaluate", evaluate("--agents", f"{source},ts", "--json"), ["runs"]),
        ("evaluate", evaluate("--agents", "ts", "--attackers", f"learned({source})"), ["runs"]),
        ("attack", with_sets(["attack", "bandit", "--target", source, "--out", "out"],
                             ("env.horizon=5", "tasks=2", "rounds=1")), ["out"]),
        ("train", [*training, "--out", "out"], ["out"]),
        ("distill", with_sets(["distill", "bandit", "--source", source, "--out", "out"],
                              (*SMALL, *quick)), ["out"]),
    ))  # fmt: skip
