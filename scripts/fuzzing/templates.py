"""What cases start from: a valid model, attackers, interrupted runs and a store, all tiny.

They are made once, in a process of their own: autograd does not survive a fork.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SMOKE = ("--preset", "smoke")
SHORT = ("env.horizon=5",)
SMALL = (*SHORT, "batches.long_length=5", "batches.short_length=3", "batches.long_batch=2",
         "batches.short_batch=2", "evaluate_tasks=2", "final_tasks=2",
         "checkpoint_every=1")  # fmt: skip
STEPS = (*SMALL, "steps=3", "log_every=1", "evaluate_every=2")
ROUNDS = (*SMALL, "tasks=5", "rounds=2", "iterations=1", "synthetic.rounds=1")
ATTACK = (*SHORT, "tasks=2", "rounds=3")
MODEL_STAGES = ("pretrain.steps=2", "pretrain.final_tasks=2", "pretrain.evaluate_tasks=2",
                "train.rounds=1", "train.iterations=1", "train.tasks=5", "train.final_tasks=2",
                "evaluate.tasks=2")  # fmt: skip
RECIPE = "bandit_training"


def with_sets(words: Sequence[str], sets: Sequence[str]) -> list[str]:
    return [*words, *SMOKE, *(word for text in sets for word in ("--set", text))]


def evaluate(*words: str) -> list[str]:
    """The cheapest evaluation."""
    return with_sets(["evaluate", "bandit", *words], (*SHORT, "tasks=2", "rounds=1"))


def commands(model: str) -> dict[str, list[str]]:
    """Trainings that take no time, by command; `model`: what `train` starts from."""
    return {
        "pretrain": with_sets(["pretrain", "bandit"], STEPS),
        "distill": with_sets(["distill", "bandit", "--source", "ts"],
                             (*STEPS, "tasks=2", "refresh_every=2")),
        "train": with_sets(["train", "bandit", "--from", model], ROUNDS),
        "attack": with_sets(["attack", "bandit", "--target", "ts"], ATTACK),
    }  # fmt: skip


def reproduce(*words: str) -> list[str]:
    return with_sets(["reproduce", RECIPE, "--replications", "1", *words], MODEL_STAGES)


def build(templates: Path) -> None:
    """Fill the directory."""
    _apart(lambda: _build(templates))
    (templates / "made").write_text("yes\n")


def _apart(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("error: the templates could not be made; is the library sound?")


def _build(templates: Path) -> None:
    os.chdir(templates)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    made = commands("model")
    _must([*made["pretrain"], "--out", "model"])
    _must([*made["train"], "--out", "at"])
    _must([*made["attack"], "--out", "attackers"])
    for name, words in made.items():
        shutil.copytree("model", templates / name / "model")
        os.chdir(templates / name)
        _interrupted([*words, "--out", "run"], after=1 if name == "train" else 2)
        os.chdir(templates)
    _must(reproduce("--store", "store"))
    _partial_graphs(templates / "store")
    _records(templates / "store", templates / "records.jsonl")
    _bandit(templates / "bandit.safetensors")


def _records(store: Path, path: Path) -> None:
    import mithridate as mi

    path.write_text("".join(json.dumps(dict(row)) + "\n" for row in mi.read_records(store)))


def _bandit(path: Path) -> None:
    import mithridate as mi

    bandit = mi.RobustBandit(3, seed=0)
    for step in range(12):
        bandit.observe(bandit.act(), 0.1 * (step % 7))
    bandit.save(path)


def _must(words: list[str]) -> None:
    from mithridate.cli import run

    code = run(words)
    if code != 0:
        raise RuntimeError(f"{' '.join(words)}: exit code {code}")


def _interrupted(words: list[str], after: int) -> None:
    """Stop the command just after it has written a checkpoint for the `after`th time."""
    from mithridate.cli import run
    from mithridate.training.run_directory import RunDirectory

    original, written = RunDirectory.save_checkpoint, 0

    def save(self: Any, *arguments: Any) -> None:
        nonlocal written
        original(self, *arguments)
        written += 1
        if written == after:
            raise KeyboardInterrupt

    RunDirectory.save_checkpoint = save  # type: ignore[assignment,method-assign]
    keep, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: SIM115
    try:
        code = run(words)
    finally:
        RunDirectory.save_checkpoint = original  # type: ignore[method-assign]
        sys.stderr = keep
    if code != 130:
        raise RuntimeError(f"{' '.join(words)}: exit code {code}, not interrupted")


def _partial_graphs(root: Path) -> None:
    """Recipes of which only a little was computed: attackers with their log, and a picture."""
    from mithridate.experiments.executors import run_graph
    from mithridate.experiments.plan import plan
    from mithridate.experiments.recipes import RECIPES
    from mithridate.experiments.stages import in_order
    from mithridate.experiments.store import Store

    store = Store.open(root)
    few = ("attack.rounds=1", "attack.tasks=2", "evaluate.tasks=2")
    for name in ("bandit_main", "darkroom2_main"):
        planned = plan(RECIPES[name], "smoke", 1, 0, few)
        cells = [stage for stage in planned.cells
                 if stage.label.startswith(("TS / paper(TS)", "NPG / none"))][:1]  # fmt: skip
        pictures = [p for p in planned.pictures if "victim" not in p.inputs][:1]
        stages = in_order([*cells, *pictures])
        run_graph(stages, store)
        graph = planned.describe() | {
            "stages": [stage.describe() for stage in stages],
            "cells": [stage.name for stage in cells],
            "trainings": [],
            "pictures": [stage.name for stage in pictures],
        }
        store.remember(planned.name, graph)


class Templates:
    """What generators look up in the templates."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def json(self, name: str) -> Any:
        return json.loads(next(iter(sorted(self.path.glob(name)))).read_text())

    def files(self, name: str) -> list[str]:
        """Of one template, relative to it."""
        top = self.path / name
        return sorted(str(p.relative_to(top)) for p in top.rglob("*") if p.is_file())
