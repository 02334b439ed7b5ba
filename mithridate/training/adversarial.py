"""Adversarial training of AT-DPT (paper, Algorithm 1).

A step of the training loop is a round. First come rounds on synthetic poisoned contexts, which
need no rollouts. Then the game: the model acts in M tasks, each under an attacker of its own;
the attackers learn from the true rewards by REINFORCE; the model learns, by cross-entropy to the
oracle's actions or to a teacher's (teaching.py), from the poisoned contexts it has just lived
through, from those of the last few rounds, and from fresh synthetic ones. After each round some
tasks are replaced by new ones, whose attackers begin anew. The attackers of a part of the tasks may
chase another agent than the model (`target`; the model as it was at the start is one): they then
learn from that agent's rollouts, and the model has to live with the result. The attackers of the
last round are kept with the model (attack_files.py).

The game does not settle by itself: attackers that chase the model leave a trail that it forgets.
Memory, fresh tasks and synthetic contexts are what keeps it from going in circles.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mithridate.agents.in_context import InContextAgent, load
from mithridate.agents.named import fingerprint, make_agent, told
from mithridate.capabilities import forgets, is_privileged, learns
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.intervals import mean_ci95
from mithridate.model.optimiser import Optimiser
from mithridate.model.threads import left_to_kernels
from mithridate.model.widen import widened
from mithridate.registry import ATTACKERS, parse_call
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.scores import score, step_scores
from mithridate.stage_config import AdversarialConfig
from mithridate.tensor_files import misfit, part, prefixed, tensors_sha256
from mithridate.training.ahead import made_ahead
from mithridate.training.attack_files import KEPT, Part, as_used, write_cotrained
from mithridate.training.fitness import check_start, check_views, try_out
from mithridate.training.loop import Cadence, Values, Watcher
from mithridate.training.model_run import run_training
from mithridate.training.run_directory import RunDirectory
from mithridate.training.teaching import Teacher
from mithridate.training.threats import (
    chasing,
    episodes,
    fresh_tasks,
    last_tasks,
    level,
    population,
    renewed,
    stretches,
)
from mithridate.types import Agent, Contexts, Env, Poison, Tasks, Trajectory

NumberT = TypeVar("NumberT", int, float)
START, RIVAL = "start", "rival"
"""As targets: the model as it was before this training, and `config.rival`."""


class AdversarialTraining:
    """The trainee: a model, its optimiser, the tasks with their attackers, and the memory. What
    does not fit, or has changed since the run began, is found when it is made."""

    stage = "train"

    def __init__(self, config: AdversarialConfig) -> None:
        self.rng = Rng(config.seed).child("adversarial")
        self.env = env_of(config.env)
        check_views(self.env)
        self.start = _start(config, self.env)
        generator = self.rng.child("widen").torch_generator()
        self.model = copy.deepcopy(self.start.model)
        self.model = widened(self.model, config.widen, self.env.spec, generator)
        rival = None if config.rival is None else load(config.rival)
        self.config = config = _bound(config, self.start, rival)
        self.teacher = None if config.teacher is None else Teacher(config, config.teacher)
        if self.teacher is not None:
            bound = {"teacher_sha256": self.teacher.fingerprint}
            self.config = config = config.model_copy(update=bound)
        if config.relabel and (self.env.spec.observation or self.env.spec.features):
            raise UserError(f"relabel: the actions of '{self.env.spec.name}' are not all alike")
        self.rounds = config.synthetic.rounds + config.rounds
        self.optimiser = Optimiser(self.model, config.optimiser, self.rounds * config.iterations)
        self.loss_limit = config.explosion_factor * math.log(max(2, self.env.spec.n_actions))
        self.tasks = self._fresh_tasks(0, config.tasks)
        self.attacker, self.eps = population(config)
        self.remembered = min(_or(config.remembered, len(self.eps)), len(self.eps))
        """Trajectories of each round in the memory."""
        self.targets = targets(config, self.env, {START: self.start, RIVAL: rival})
        try_out(self.env, self.targets, (attacker for _, attacker in population(config)[0].parts))
        self.memory: list[Contexts] = []

    def _agent(self, temperature: float | None = None) -> InContextAgent:
        return InContextAgent(self.model, temperature=_or(temperature, self.config.temperature))

    # The rounds ------------------------------------------------------------------------------

    def step(self, step: int) -> Values:
        with left_to_kernels(self.model.in_kernels):
            return self._round(step)

    def _round(self, step: int) -> Values:
        game = step >= self.config.synthetic.rounds
        values = self._play(step) if game else {}
        rng = self.rng.child("round", step)
        first, count = step * self.config.iterations, self.config.iterations

        def batch(i: int) -> Contexts:
            return self._batch(first + i, game, rng.child("batch", i))

        for i, contexts in enumerate(made_ahead(batch, count, self.model.in_kernels)):
            values |= self.optimiser.step(self.model.loss(contexts), first + i, self.loss_limit)
        if game and step + 1 < self.rounds:  # those of the last round are kept
            self._renew(step)
        return values

    def _play(self, step: int) -> Values:
        """Roll out, remember, let the attackers learn; what to log."""
        config, rng = self.config, self.rng.child("rollout", step)
        tasks = self._episodes()

        def under_attack(agent: Any) -> tuple[Trajectory, Tensor]:
            trajectory = rollout(
                self.env, tasks, agent, self.attacker, self.eps, rng=rng,
                record_values=bool(config.suboptimal),
            )  # fmt: skip
            return trajectory, score(self.env, tasks, trajectory).sum(1)

        values: Values = {}
        number = step - config.synthetic.rounds
        # The model comes last: attackers learn from the rollout they were last reset for.
        if config.compare_every and number % config.compare_every == 0:
            values |= self._by_threat("frozen", under_attack(self.start)[1])
            if self.env.peer is not None:
                peer = make_agent(self.env.peer, told(config))[1]
                values |= self._by_threat(self.env.peer, under_attack(peer)[1])
        trajectory, scores = under_attack(self._agent())
        values = self._by_threat("score", scores) | values
        parts = zip(self.attacker.slices(), self.attacker.parts, strict=True)
        for i, (rows, (_, attacker)) in enumerate(parts):
            if learns(attacker):
                lived = trajectory.select(rows)
                if (target := self.targets[i]) is not None:
                    lived = rollout(
                        self.env, tasks.select(rows), target, attacker, self.eps[rows],
                        rng=rng.child("target", i), record_learning=True,
                    )  # fmt: skip
                learned = attacker.update(lived)
                values |= {f"{key}_{i}": value for key, value in learned.items()}
        kept = self._kept(rng)
        seen = self._taught(trajectory.select(kept).contexts(), rng.child("labels"))
        if self.teacher is not None:
            luck = rng.child("teacher")
            seen = self.teacher.teach(seen, self.eps[kept], self.env, tasks.luck[kept], luck)
        self.memory = [*self.memory, seen][-config.memory :]
        return values

    def _episodes(self) -> Tasks:
        """The tasks, once for each episode of the round."""
        if all(episodes(attacker) == 1 for _, attacker in self.attacker.parts):
            return self.tasks
        parts = zip(stretches(self.config), self.attacker.parts, strict=True)
        return type(self.tasks).cat(
            [self.tasks.select(rows).repeat(episodes(who)) for rows, (_, who) in parts]
        )

    def _kept(self, rng: Rng) -> Tensor | slice:
        """The episodes of a round that are remembered."""
        if self.remembered == len(self.eps):
            return slice(None)
        draw = rng.child("remembered").generator()
        which = draw.choice(len(self.eps), self.remembered, replace=False)
        return torch.from_numpy(np.sort(which))

    def _by_threat(self, name: str, scores: Tensor) -> Values:
        return {
            f"{name}_{i}_{parse_call(threat.attacker)[0]}": scores[rows].mean().item()
            for i, (rows, threat) in enumerate(
                zip(self.attacker.slices(), self.config.threats, strict=True)
            )
        }

    def _renew(self, step: int) -> None:
        """Replace some tasks of every part by fresh ones: the oldest first."""
        game = step - self.config.synthetic.rounds
        parts = []
        first = self.config.tasks * (game + 1)
        for rows, (_, attacker) in zip(stretches(self.config), self.attacker.parts, strict=True):
            here, k = self.tasks.select(rows), renewed(self.config, rows)
            if forgets(attacker):
                attacker.forget(here.ids[:k])
            parts += [here.select(slice(k, None)), self._fresh_tasks(first + rows.start, k)]
        self.tasks = type(self.tasks).cat(parts)

    def _fresh_tasks(self, first: int, n: int) -> Tasks:
        return fresh_tasks(self.config, self.env, first, n)

    # What the model learns from --------------------------------------------------------------

    def _batch(self, update: int, game: bool, rng: Rng) -> Contexts:
        batch, length = self.config.batches.shape(update)
        synthetic = round(batch * self.config.synthetic.share) if game else batch
        parts = []
        if synthetic:
            parts.append(self._synthetic(synthetic, length, rng.child("synthetic")))
        if batch > synthetic:
            draw = rng.child("memory").generator()
            which = draw.integers(0, len(self.memory) * self.remembered, batch - synthetic)
            rounds, rows = np.divmod(which, self.remembered)
            parts.append(self._remembered(rounds, rows, length))
        contexts = Contexts.cat(parts)
        if not self.config.relabel:
            return contexts
        return contexts.renumbered(self.env.spec.n_actions, rng.child("numbers").generator())

    def _remembered(
        self, rounds: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], length: int
    ) -> Contexts:
        """The contexts of these tasks (n,) in these rounds of the memory (n,), in this order."""
        lived = Contexts.cat(
            [
                self.memory[r].select(torch.from_numpy(rows[rounds == r]), length)
                for r in np.unique(rounds)
            ]
        )
        by_round = np.argsort(rounds, kind="stable")
        return lived.select(torch.from_numpy(np.argsort(by_round)), length)

    def _synthetic(self, n: int, length: int, rng: Rng) -> Contexts:
        """Pretraining contexts on fresh tasks, poisoned at random as the threats allow."""
        tasks = self.env.sample_tasks(n, rng.child("tasks"))
        draw = rng.child("eps").generator()
        threats = [
            level(self.config, number)
            for number, threat in enumerate(self.config.threats)
            if threat.attacker != "none"
        ]
        choices = np.array(threats or [(0.0, 0.0)], dtype=np.float32)
        eps, budget = torch.from_numpy(choices[draw.integers(0, len(choices), n)]).unbind(1)
        clean = torch.from_numpy(draw.random(n) < self.config.synthetic.clean)
        switching = self.config.synthetic.switching
        poison = Poison(eps.masked_fill(clean, 0.0), budget, switching, rng.child("poison"))
        contexts = self.env.sample_contexts(tasks, length, rng.child("contexts"), poison)
        return self._taught(contexts, rng.child("labels"))

    def _taught(self, contexts: Contexts, rng: Rng) -> Contexts:
        """A share of the labels replaced by the second-best action, ties at random. What is as good
        as the best is not second-best."""
        if not self.config.suboptimal:
            return replace(contexts, values=None)
        values = contexts.values
        if values is None:
            raise UserError(
                f"suboptimal labels need an environment whose contexts say what actions are worth; "
                f"'{self.env.spec.name}' does not"
            )
        draw = rng.generator()
        replaced = torch.from_numpy(draw.random(tuple(contexts.labels.shape)))
        ties = torch.from_numpy(draw.random(tuple(values.shape), dtype=np.float32))
        best = values == values.amax(2, keepdim=True)
        values = (values.double() + 1e-9 * ties).masked_fill(best, -math.inf)
        second = values.argmax(2)  # (B, T + 1), or (B, 1) if there is but one state
        labels = torch.where(replaced < self.config.suboptimal, second, contexts.labels)
        return replace(contexts, labels=labels, values=None)

    # Measuring -------------------------------------------------------------------------------

    def evaluate(self, step: int) -> Values:
        rng = self.rng.child("validation")
        return self._measure(self.config.evaluate_tasks, rng, self._agent())

    def measure(self, n: int, rng: Rng) -> Values:
        return self._measure(n, rng, self._agent(self.config.acts_at))

    def _measure(self, n: int, rng: Rng, agent: InContextAgent) -> Values:
        """The metric without an attack and under those that need no learning, on n tasks."""
        tasks = self.env.sample_tasks(n, rng.child("tasks"))
        values: Values = {}
        for name in ("none", *self.env.attacks):
            attacker = None
            if name != "none":
                attacker = ATTACKERS.create(name, budget=self.config.budget)
            scores = step_scores(self.env, tasks, agent, attacker, self.config.eps, rng=rng)
            label = "clean" if name == "none" else name
            mean, ci95 = mean_ci95(scores.sum(1).tolist())
            values |= {f"{label}_mean": mean, f"{label}_ci95": ci95}
        return values | {"clean_tasks": n}

    def cadence(self) -> Cadence:
        return Cadence(self.rounds, 1, self.config.evaluate_every, self.config.checkpoint_every)

    # Keeping ---------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        tensors = prefixed("model.", self.model.state_dict())
        tensors |= prefixed("optimiser.", self.optimiser.tensors())
        tensors |= prefixed("tasks.", self.tasks.tensors())
        for i, (_, attacker) in enumerate(self.attacker.parts):
            if learns(attacker):
                tensors |= prefixed(f"attacker{i}.", attacker.tensors())
        for i, contexts in enumerate(self.memory):
            tensors |= prefixed(f"memory{i}.", contexts.tensors())
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict(part(tensors, "model."))
        self.optimiser.load_tensors(part(tensors, "optimiser."))
        tasks = part(tensors, "tasks.")
        if misfit(tasks, self.tasks.tensors()) is not None:
            raise ValueError("these are the tasks of another run")
        self.tasks = type(self.tasks)(**tasks)
        for i, (_, attacker) in enumerate(self.attacker.parts):
            if learns(attacker) and (found := part(tensors, f"attacker{i}.")):
                attacker.load_tensors(found)
        self.memory = []
        while found := part(tensors, f"memory{len(self.memory)}."):
            self.memory.append(Contexts.of(found, self.remembered, self.env.spec.horizon))

    def keep(self, run: RunDirectory) -> None:
        """Write the attackers of the last round that learned against the model, with their tasks,
        if there are any."""
        agent, parts = self._agent(self.config.acts_at), {}
        for i in chasing(self.config):
            attacker: Any = self.attacker.parts[i][1]
            tasks = self.tasks.select(stretches(self.config)[i])
            if not torch.equal(tasks.ids, last_tasks(self.config, self.env, i).ids):
                raise run.damaged()  # of a version that renewed tasks after the last round, too
            eps, rng = level(self.config, i)[0], self.rng.child("kept", i)
            metrics = as_used(self.env, tasks, agent, attacker, eps, rng)
            parts[i] = Part(tasks, attacker.tensors(), metrics)
        if parts:
            digest = tensors_sha256(self.model.state_dict())
            write_cotrained(run.path / KEPT, self.config, digest, parts)


def targets(
    config: AdversarialConfig, env: Env, models: Mapping[str, InContextAgent | None]
) -> list[Agent | None]:
    """Whom each part's attackers chase, if it is not the model. `models`: the start and the
    rival, if there is one."""
    found: list[Agent | None] = []
    for threat in config.threats:
        agent: Agent | None = None
        if threat.target == RIVAL and config.rival is None:
            raise UserError("threats: the target is rival, but there is none: set it")
        if threat.target in (START, RIVAL):
            agent = models[threat.target]
        elif threat.target is not None:
            eps = _or(threat.eps, config.eps)
            name, agent = make_agent(
                threat.target.replace("{eps}", f"{eps:g}"), told(config, eps, threat.budget)
            )
            if is_privileged(agent):
                raise UserError(f"threats: '{name}' knows the attack; it cannot be a target")
        found.append(agent)
    return found


def _start(config: AdversarialConfig, env: Env) -> InContextAgent:
    """The model that training begins with, as an agent."""
    start = load(config.start)
    try:
        start.check(env.spec)
        check_start(start.model, env)
    except UserError as error:
        raise UserError(f"start '{config.start}': {error}") from None
    return start


def _bound(
    config: AdversarialConfig, start: InContextAgent, rival: InContextAgent | None
) -> AdversarialConfig:
    """The configuration, bound to the weights that its start and its rival have now."""
    found = {
        START: (config.start, config.start_sha256, fingerprint(config.start, start)),
        RIVAL: (config.rival, config.rival_sha256, rival and fingerprint("", rival)),
    }
    for name, (source, before, now) in found.items():
        if before not in (None, now):
            raise UserError(f"{name} '{source}' is not the model this run began with")
    return config.model_copy(update={f"{name}_sha256": x[2] for name, x in found.items()})


def _or(value: NumberT | None, default: NumberT) -> NumberT:
    return default if value is None else value


def train_adversarially(
    training: AdversarialTraining | AdversarialConfig,
    out: Path | str | None = None,
    watchers: list[Watcher] | None = None,
) -> Path:
    """Train in the directory `out` (default runs/train-<env>-<hash>), or go on where an earlier
    call stopped. Returns the path of the weights."""
    if isinstance(training, AdversarialConfig):
        training = AdversarialTraining(training)
    config = training.config
    temperature = _or(config.acts_at, config.temperature)
    return run_training(
        training, out, watchers, training.keep, kind="at-dpt", temperature=temperature
    )
