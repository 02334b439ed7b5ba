"""Algorithm Distillation (Laskin et al., 2022): learning to imitate a learning algorithm.

The source algorithm acts in fresh tasks, in their order, under attack if wanted; the model learns,
by cross-entropy, the source's next action after every prefix of what the source saw. Rollouts cost
more than updates, so trajectories are used several times: every few steps some new ones replace the
oldest of a pool.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from mithridate.agents.named import fingerprint, make_agent, told
from mithridate.attackers import make_attacker
from mithridate.capabilities import is_privileged, learns
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.stage_config import DistillConfig
from mithridate.tensor_files import part, prefixed
from mithridate.training.fitness import try_out
from mithridate.training.loop import Values, Watcher
from mithridate.training.model_run import run_training
from mithridate.training.pretrain import Pretraining
from mithridate.types import Attacker, Contexts, Trajectory


class Distillation(Pretraining):
    """The trainee: as in pretraining, but the contexts and their labels are the source's."""

    stage = "distill"
    config: DistillConfig

    def __init__(self, config: DistillConfig) -> None:
        self.source = make_agent(config.source, told(config))[1]
        self.attacker = source_attacker(config)
        if is_privileged(self.source):
            raise UserError(f"source '{config.source}' knows what a model cannot: distil another")
        try_out(env_of(config.env), [self.source], [self.attacker])
        digest = fingerprint(config.source, self.source)
        if config.source_sha256 not in (None, digest):
            raise UserError(f"source '{config.source}' has changed since this run began")
        super().__init__(config.model_copy(update={"source_sha256": digest}))
        self.rng = Rng(config.seed).child("distill")
        self.pool: list[Contexts] = []

    def step(self, step: int) -> Values:
        if step % self.config.refresh_every == 0:
            self.pool = [*self.pool, self._fresh(step)][-self.config.pool :]
        return super().step(step)

    def contexts(self, batch: int, length: int, rng: Rng) -> Contexts:
        draw = rng.child("pool").generator()
        whole = Contexts.cat(self.pool)
        rows = torch.from_numpy(draw.integers(0, len(whole.actions), batch))
        return whole.select(rows, min(length, whole.actions.shape[1]))

    def _fresh(self, step: int) -> Contexts:
        rng = self.rng.child("source", step)
        tasks = self.env.sample_tasks(self.config.tasks, rng.child("tasks"))
        return histories(
            rollout(self.env, tasks, self.source, self.attacker, self.config.eps, rng=rng)
        )

    def tensors(self) -> dict[str, Tensor]:
        tensors = super().tensors()
        for i, contexts in enumerate(self.pool):
            tensors |= prefixed(f"pool{i}.", contexts.tensors())
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        self.pool = []
        while found := part(tensors, f"pool{len(self.pool)}."):
            horizon = self.env.spec.horizon - 1  # see `histories`
            self.pool.append(Contexts.of(found, self.config.tasks, horizon))


def histories(trajectory: Trajectory) -> Contexts:
    """What the source saw, labelled with what it did next. The last step has no successor, so the
    contexts are one transition shorter than the episode."""
    shorter = trajectory.contexts().select(slice(None), trajectory.actions.shape[1] - 1)
    return replace(shorter, labels=trajectory.actions)


def source_attacker(config: DistillConfig) -> Attacker | None:
    """Who poisons what the source sees."""
    if config.attacker == "none":
        return None
    attacker: Attacker = make_attacker(config.attacker, config.budget, config.env.facts())
    if learns(attacker):
        raise UserError(f"attacker '{config.attacker}' learns; a source needs one that does not")
    return attacker


def distill(
    training: Distillation | DistillConfig,
    out: Path | str | None = None,
    watchers: list[Watcher] | None = None,
) -> Path:
    """Distil in the directory `out` (default runs/distill-<env>-<hash>), or go on where an earlier
    call stopped. Returns the path of the weights."""
    if isinstance(training, DistillConfig):
        training = Distillation(training)
    return run_training(training, out, watchers, kind="ad")
