"""A training that ends in a model: its directory, checkpoints, and the card beside the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from mithridate.config import AdversarialConfig, PretrainConfig
from mithridate.model.context_model import ContextModel
from mithridate.model.weights import save_model
from mithridate.rng import Rng
from mithridate.training.loop import Cadence, Trainee, Values, Watcher, train
from mithridate.training.run_directory import RunDirectory, explain_divergence
from mithridate.versions import STAGES


class ModelTrainee(Trainee, Protocol):
    model: ContextModel
    rng: Rng

    def cadence(self) -> Cadence: ...

    def measure(self, n: int, rng: Rng) -> Values:
        """For the card: how the model fares on n tasks drawn from `rng`."""
        ...


def run_training(
    config: PretrainConfig | AdversarialConfig,
    directory: Path,
    make: Callable[[], ModelTrainee],
    watchers: list[Watcher] | None,
    stage: str,
    **card: Any,
) -> Path:
    """Train in `directory`, or go on where an earlier call stopped. Returns the path of the
    weights. `make` is not called if the run is finished; `stage`: what kind of training it is;
    `card`: what its card says besides."""
    torch.set_num_threads(config.threads)
    run = RunDirectory(directory, config)
    try:
        if not run.model_path.with_suffix(".json").exists():
            trainee = make()
            with explain_divergence(run):
                train(trainee, trainee.cadence(), run, watchers)
            about = {
                "env": config.env.to_json(),
                "seed": config.seed,
                "stage_version": STAGES[stage],
                "config_hash": config.hash(),
                "training": config.to_json(),
                "metrics": trainee.measure(config.final_tasks, trainee.rng.child("final")),
            }
            save_model(run.model_path, trainee.model, {**card, **about})
    finally:
        run.close()
    return run.model_path
