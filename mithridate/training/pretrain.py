"""Pretraining of the Decision-Pretrained Transformer (Lee et al., 2023; paper, section 4).

Cross-entropy to the oracle's action after every prefix of a context, on tasks and contexts that
are sampled anew at every step (there is no stored dataset to overfit to).
"""

from __future__ import annotations

import math
from pathlib import Path

from torch import Tensor

from mithridate.agents.in_context import InContextAgent
from mithridate.envs import env_of
from mithridate.intervals import mean_ci95
from mithridate.model.layouts import make_model
from mithridate.model.optimiser import Optimiser
from mithridate.model.threads import left_to_kernels
from mithridate.rng import Rng
from mithridate.scores import total_scores
from mithridate.stage_config import PretrainConfig
from mithridate.tensor_files import part, prefixed
from mithridate.training.fitness import check_contexts, check_views
from mithridate.training.loop import Cadence, Values, Watcher
from mithridate.training.model_run import run_training
from mithridate.types import Contexts


class Pretraining:
    """The trainee: a fresh model, its optimiser and the stream of contexts."""

    stage = "pretrain"

    def __init__(self, config: PretrainConfig) -> None:
        self.config = config
        self.rng = Rng(config.seed).child("pretrain")
        self.env = env_of(config.env)
        check_views(self.env)
        self.model = make_model(config.model, self.env.spec)
        self.model.initialise(self.rng.child("initialise").torch_generator())
        self.optimiser = Optimiser(self.model, config.optimiser, config.steps)
        self.loss_limit = config.explosion_factor * math.log(max(2, self.env.spec.n_actions))

    def step(self, step: int) -> Values:
        with left_to_kernels(self.model.in_kernels):
            contexts = self.contexts(*self.config.batches.shape(step), self.rng.child("step", step))
            return self.optimiser.step(self.model.loss(contexts), step, self.loss_limit)

    def contexts(self, batch: int, length: int, rng: Rng) -> Contexts:
        """What to learn from."""
        tasks = self.env.sample_tasks(batch, rng.child("tasks"))
        contexts = self.env.sample_contexts(tasks, length, rng.child("contexts"))
        check_contexts(contexts, self.env.spec, batch, length)
        return contexts

    def evaluate(self, step: int) -> Values:
        return self.measure(self.config.evaluate_tasks, self.rng.child("validation"))

    def measure(self, n: int, rng: Rng) -> Values:
        """The clean metric on n tasks drawn from `rng`."""
        tasks = self.env.sample_tasks(n, rng.child("tasks"))
        totals = total_scores(self.env, tasks, InContextAgent(self.model), rng=rng)
        mean, ci95 = mean_ci95(totals.tolist())
        return {"clean_mean": mean, "clean_ci95": ci95, "clean_tasks": n}

    def cadence(self) -> Cadence:
        c = self.config
        return Cadence(c.steps, c.log_every, c.evaluate_every, c.checkpoint_every)

    def tensors(self) -> dict[str, Tensor]:
        tensors = prefixed("model.", self.model.state_dict())
        return tensors | prefixed("optimiser.", self.optimiser.tensors())

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict(part(tensors, "model."))
        self.optimiser.load_tensors(part(tensors, "optimiser."))


def pretrain(
    training: Pretraining | PretrainConfig,
    out: Path | str | None = None,
    watchers: list[Watcher] | None = None,
) -> Path:
    """Pretrain in the directory `out` (default runs/pretrain-<env>-<hash>), or go on where an
    earlier call stopped. Returns the path of the weights."""
    if isinstance(training, PretrainConfig):
        training = Pretraining(training)
    return run_training(training, out, watchers, kind="dpt")
