"""A training that ends in a model: its directory, checkpoints, and the card beside the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from mithridate.capabilities import is_prepared
from mithridate.model.context_model import ContextModel
from mithridate.model.weights import save_model
from mithridate.rng import Rng
from mithridate.stage_config import AdversarialConfig, PretrainConfig
from mithridate.training.loop import Cadence, Trainee, Values, Watcher, train
from mithridate.training.run_directory import RunDirectory, explain_divergence
from mithridate.types import Env
from mithridate.versions import STAGES


class ModelTrainee(Trainee, Protocol):
    stage: str
    """What kind of training it is."""
    env: Env
    model: ContextModel
    rng: Rng

    @property
    def config(self) -> PretrainConfig | AdversarialConfig: ...

    def cadence(self) -> Cadence: ...

    def measure(self, n: int, rng: Rng) -> Values:
        """For the card: how the model fares on n tasks drawn from `rng`."""
        ...


def run_name(trainee: ModelTrainee) -> str:
    """Of the run's directory, unless told."""
    return f"{trainee.stage}-{trainee.config.env.name}-{trainee.config.hash()}"


def _prepare(env: Env, watchers: list[Watcher]) -> None:
    """What steps would otherwise wait for. An interruption loses little: see the environment."""

    def progress(done: int, total: int) -> None:
        for watcher in watchers:
            watcher.prepared(done, total)

    if is_prepared(env):
        env.prepare(progress)


def run_training(
    trainee: ModelTrainee,
    out: Path | str | None,
    watchers: list[Watcher] | None,
    keep: Callable[[RunDirectory], None] | None = None,
    **card: Any,
) -> Path:
    """Train in `out` (default runs/<name>), or go on where an earlier call stopped. Returns the
    path of the weights. `keep` writes what is kept beside them, and `card` is what their card says
    besides."""
    config = trainee.config
    torch.set_num_threads(config.threads)
    run = RunDirectory(Path(out) if out else Path("runs") / run_name(trainee), config)
    try:
        if not run.model_path.with_suffix(".json").exists():
            _prepare(trainee.env, watchers or [])
            with explain_divergence(run):
                train(trainee, trainee.cadence(), run, watchers)
            if keep is not None:
                keep(run)  # the card, which says that the run is finished, comes last
            about = {
                "env": config.env.to_json(),
                "seed": config.seed,
                "stage_version": STAGES[trainee.stage],
                "config_hash": config.hash(),
                "training": config.to_json(),
                "metrics": trainee.measure(config.final_tasks, trainee.rng.child("final")),
            }
            save_model(run.model_path, trainee.model, {**card, **about})
    finally:
        run.close()
    return run.model_path
