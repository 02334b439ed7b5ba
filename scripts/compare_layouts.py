"""Darkroom2: two streams against DPT's query-first layout. Same steps, batches, width, contexts.

    python scripts/compare_layouts.py [--steps 2000] [--seed 0]

Prints, for both, the clean reward over fresh tasks and the seconds of training and of a rollout.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import torch

from mithridate.agents.in_context import InContextAgent
from mithridate.intervals import mean_ci95
from mithridate.model.optimiser import Optimiser
from mithridate.model.query_first import QueryFirstModel
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import PretrainConfig
from mithridate.training.pretrain import Pretraining
from mithridate.types import Contexts


class QueryFirst(Pretraining):
    """Pretraining with the other layout: one state, drawn at random, is asked about after every
    prefix, as in DPT."""

    def __init__(self, config: PretrainConfig) -> None:
        super().__init__(config)
        self.model: Any = QueryFirstModel(config.model, self.env.spec)
        self.model.initialise(self.rng.child("initialise").torch_generator())
        self.optimiser = Optimiser(self.model, config.optimiser, config.steps)

    def contexts(self, batch: int, length: int, rng: Rng) -> Contexts:
        tasks = self.env.sample_tasks(batch, rng.child("tasks"))
        found = self.env.sample_contexts(tasks, length, rng.child("contexts"))
        states = self.env.spec.n_states
        asked = torch.from_numpy(rng.child("query").generator().integers(0, states, batch))
        labels = self.env.optimal_action(tasks, asked)
        shape = found.labels.shape
        return replace(
            found, queries=asked[:, None].expand(shape), labels=labels[:, None].expand(shape)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=200)
    options = parser.parse_args()
    config = resolve(
        PretrainConfig, "pretrain", "darkroom2", seed=options.seed, steps=options.steps
    )
    torch.set_num_threads(config.threads)
    for name, trainee in (
        ("two streams", Pretraining(config)),
        ("query first", QueryFirst(config)),
    ):
        begun = time.monotonic()
        for step in range(config.steps):
            trainee.step(step)
        trained = time.monotonic() - begun
        rng = Rng(options.seed).child("compare")
        tasks = trainee.env.sample_tasks(options.tasks, rng.child("tasks"))
        begun = time.monotonic()
        trajectory = rollout(trainee.env, tasks, InContextAgent(trainee.model), rng=rng)
        rolled = time.monotonic() - begun
        mean, ci95 = mean_ci95(trainee.env.score(tasks, trajectory).sum(1).tolist())
        print(
            f"{name}: reward {mean:.1f} ± {ci95:.1f} over {options.tasks} tasks; "
            f"{config.steps} steps in {trained:.0f} s; rollout {rolled:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
