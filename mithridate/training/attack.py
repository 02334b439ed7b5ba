"""Training attackers against a fixed target (the attacker half of the paper's Algorithm 1).

The target is a black box: any agent, registered, trained, or a class of the user's. One attacker
for each of M tasks, or one network for all of them; a step of the training loop is a round: roll
the target out under attack, let the attackers learn from the true rewards.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mithridate.agents.named import AgentLike, fingerprint, make_agent, told
from mithridate.attackers import make_attacker
from mithridate.capabilities import is_privileged, learns, repeats, settles, starts
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.files import parse_json, shown
from mithridate.intervals import mean_ci95
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.scores import score, step_scores
from mithridate.settings import parse
from mithridate.stage_config import AttackConfig
from mithridate.tensor_files import (
    SQUARES,
    misfit,
    part,
    prefixed,
    read_tensors,
    sealed,
    write_sealed,
)
from mithridate.training.fitness import try_out
from mithridate.training.loop import Cadence, Values, Watcher, train
from mithridate.training.run_directory import RunDirectory
from mithridate.types import Agent, Attacker, Env, Tasks, Trajectory
from mithridate.versions import versions

FORMAT = 2
"""2: what is said of the attackers is sealed with them."""
METRICS = ("final_mean", "final_ci95", "used_norm_mean", "used_norm_max")
AT_ONCE = 1000
"""Episodes that are rolled out at a time, where tasks do not learn from each other."""
LARGEST = 1e9
"""No number that a trained attacker acts by is larger. (Squared gradients are.)"""


class AttackTraining:
    """The trainee: the attackers. The target does not learn. What does not fit, or has changed
    since the run began, is found when it is made."""

    def __init__(
        self,
        config: AttackConfig,
        target: AgentLike | None = None,
        agent: Agent | None = None,
        start: LearnedAttack | None = None,
    ) -> None:
        """`target`: an object to attack, if it is not what `config.target` names; `agent`: what
        `config.target` names, if it is at hand. `start`: attackers of the same tasks to begin
        with."""
        self.rng = Rng(config.seed).child("attack")
        self.env = env_of(config.env)
        named = config.target if target is None else target  # whatever its truth value is
        self.target = make_agent(named, told(config))[1] if agent is None else agent
        self.attacker = learning_attacker(config)
        try_out(self.env, [self.target], [learning_attacker(config)])
        self.attacker.learning = True
        self.tasks = _tasks(config, self.env)
        self.config = _bound(config, self.target, by_name=target is None)
        if start is not None:
            self._begin_with(start)

    def _begin_with(self, start: LearnedAttack) -> None:
        if not starts(self.attacker):
            raise UserError(f"attacker '{self.config.attacker}' cannot begin with others")
        if misfit(start.tasks.tensors(), self.tasks.tensors()) is not None or not all(
            torch.equal(start.tasks.tensors()[k], t) for k, t in self.tasks.tensors().items()
        ):
            raise UserError(f"attackers {shown(start.path)} belong to other tasks")
        self.attacker.begin_with(start.attacker)

    @property
    def name(self) -> str:
        """Of the run's directory, unless told."""
        return f"attack-{self.env.spec.name}-{self.config.hash()}"

    @property
    def steps(self) -> int:
        """Rounds, and one more if the attackers have finalists to choose from."""
        return self.config.rounds + settles(self.attacker)

    def step(self, step: int) -> Values:
        if step == self.config.rounds and settles(self.attacker):
            return self._settle()
        rng = self.rng.child("rollout", step)
        scores, learned = [], []
        for tasks in self._parts(self.attacker.episodes if repeats(self.attacker) else 1):
            trajectory, totals = self._play(tasks, rng)
            scores.append(totals)
            learned.append((len(tasks), self.attacker.update(trajectory)))
        mean, ci95 = mean_ci95(torch.cat(scores).tolist())
        return {"score_mean": mean, "score_ci95": ci95, **_together(learned)}

    def _play(self, tasks: Tasks, rng: Rng) -> tuple[Trajectory, Tensor]:
        """What happens in one rollout, and the metric of each episode (B,)."""
        trajectory = rollout(
            self.env, tasks, self.target, self.attacker, self.config.eps, rng=rng,
            record_learning=True,
        )  # fmt: skip
        scores = score(self.env, tasks, trajectory)[:, -self.env.spec.horizon :]
        return trajectory, scores.sum(1)

    def _parts(self, episodes: int) -> Iterator[Tasks]:
        """So many episodes of each task; as many tasks at once as memory has room for, unless they
        learn from each other."""
        if episodes == 1:
            yield self.tasks
            return
        apart = repeats(self.attacker) and not self.attacker.together
        size = max(1, AT_ONCE // episodes) if apart else len(self.tasks)
        for start in range(0, len(self.tasks), size):
            yield self.tasks.select(slice(start, start + size)).repeat(episodes)

    def _settle(self) -> Values:
        """Let the finalists of every task meet the same luck, and the attackers choose."""
        attacker, rng = self.attacker, self.rng.child("settle")
        scores = []
        for tasks in self._parts(attacker.trials):
            earned, tried = [], []
            for finalist in range(attacker.finalists):
                attacker.present(finalist)
                trajectory, totals = self._play(tasks, rng)
                total = trajectory.true_rewards[:, -self.env.spec.horizon :].sum(1)
                earned.append(total.view(-1, attacker.trials).cpu())
                tried.append(attacker.played())
                scores.append(totals)
            attacker.settle(torch.stack(earned, 1), torch.stack(tried, 1))
            attacker.present(None)
        mean, ci95 = mean_ci95(torch.cat(scores).tolist())
        return {"finalists_mean": mean, "finalists_ci95": ci95}

    def evaluate(self, step: int) -> Values:
        """The target under the attackers as they are used: within the budget."""
        self.attacker.learning = False
        scores = step_scores(
            self.env, self.tasks, self.target, self.attacker, self.config.eps,
            rng=self.rng.child("final"), block=len(self.tasks),
        ).sum(1)  # fmt: skip
        self.attacker.learning = True
        mean, ci95 = mean_ci95(scores.tolist())
        cost = self.attacker.cost()
        return {
            "final_mean": mean, "final_ci95": ci95,
            "used_norm_mean": cost.mean().item(), "used_norm_max": cost.max().item(),
        }  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = self.attacker.tensors()
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.attacker.load_tensors(tensors)


def _together(parts: Sequence[tuple[int, Values]]) -> Values:
    """What several parts of the tasks say of themselves: the largest of what is called max, and
    the mean, by their sizes, of everything else."""
    if len(parts) == 1:
        return parts[0][1]
    total = sum(size for size, _ in parts)
    return {
        name: max(values[name] for _, values in parts)
        if name.endswith("_max")
        else sum(size * values[name] for size, values in parts) / total
        for name in parts[0][1]
    }


def _tasks(config: AttackConfig, env: Env) -> Tasks:
    """Those that the attackers belong to."""
    return env.sample_tasks(config.tasks, Rng(config.seed).child("attack", "tasks"))


def learning_attacker(config: AttackConfig) -> Any:
    """The attackers before the first round."""
    seed = Rng(config.seed).child("attack", "network").integer()
    attacker = make_attacker(config.attacker, config.budget, seed=seed, rounds=config.rounds)
    if not learns(attacker):
        raise UserError(f"attacker '{config.attacker}' does not learn; evaluate it as it is")
    return attacker


def attack(
    training: AttackTraining | AttackConfig,
    out: Path | str | None = None,
    watchers: list[Watcher] | None = None,
    *,
    target: AgentLike | None = None,
) -> Path:
    """Train in the directory `out` (default runs/attack-<env>-<hash>), or go on where an earlier
    call stopped. `target`: an object to attack, if it is not what the configuration names. Returns
    the path of the attackers."""
    if isinstance(training, AttackConfig):
        training = AttackTraining(training, target)
    config = training.config
    torch.set_num_threads(config.threads)
    run = RunDirectory(Path(out) if out else Path("runs") / training.name, config)
    path = run.path / "attackers.safetensors"
    try:
        if not path.exists():
            cadence = Cadence(training.steps, 1, training.steps, config.checkpoint_every)
            train(training, cadence, run, watchers)
            _save(path, training)
    finally:
        run.close()
    return path


def _bound(config: AttackConfig, target: Agent, by_name: bool) -> AttackConfig:
    """The configuration, bound to the weights or the source code that its target has now."""
    if is_privileged(target):
        raise UserError(f"'{config.target}' knows the attack; there is nothing to learn against it")
    digest = fingerprint(config.target if by_name else "", target)
    if config.target_sha256 not in (None, digest):
        raise UserError(f"target '{config.target}' has changed since this run began")
    return config.model_copy(update={"target_sha256": digest})


def _save(path: Path, trainee: AttackTraining) -> None:
    tensors = prefixed("attacker.", trainee.tensors())
    tensors |= prefixed("tasks.", trainee.tasks.tensors())
    metrics = trainee.evaluate(trainee.config.rounds)
    meta = {
        "format": FORMAT,
        "config": trainee.config.to_json(),
        "metrics": {k: None if math.isnan(v) else v for k, v in metrics.items()},
        "versions": versions(),
    }
    write_sealed(path, tensors, meta)


def _is_moment(name: str) -> bool:
    """Whether it is one of Adam's, which the attack does not depend on."""
    return name.startswith("optimiser.") or name.rpartition(".")[2] in ("first", SQUARES)


class LearnedAttack:
    """Attackers from a file, with the tasks they belong to. Whoever made the file, they are what
    their configuration says: of this format, for these tasks, within the budget."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if os.path.isdir(self.path):
            self.path = self.path / "attackers.safetensors"
        tensors, metadata, data = read_tensors(self.path, "file of attackers")
        meta = self._meta(metadata)
        if meta["format"] != FORMAT:
            raise UserError(
                f"attackers {shown(self.path)}: format {shown(meta['format'], 40)}; this version "
                f"reads {FORMAT}: train them again"
            )
        if sealed(tensors, metadata) is None:
            raise self._damaged("checksum differs; restore them")
        if not all(name.startswith(("attacker.", "tasks.")) for name in tensors):
            raise self._damaged("there is more in it than attackers and tasks")
        where = f"attackers {shown(self.path)}"
        self.config = parse(AttackConfig, meta["config"], where)
        self.env: Env = env_of(self.config.env)
        self.metrics: dict[str, float | None] = meta["metrics"]
        self.sha256: str = hashlib.sha256(data).hexdigest()
        self.tasks = self._checked_tasks(part(tensors, "tasks."))
        self.attacker: Attacker = self._checked_attacker(part(tensors, "attacker."))

    def _meta(self, metadata: dict[str, Any]) -> dict[str, Any]:
        try:
            meta = parse_json(metadata["meta"])
            sound = isinstance(meta["config"], dict) and {"format", "sha256"} <= meta.keys()
            sound &= meta["metrics"].keys() == set(METRICS)
            sound &= all(x is None or isinstance(x, float) for x in meta["metrics"].values())
        except (KeyError, TypeError, ValueError, AttributeError):
            sound = False
        if not sound:
            raise UserError(f"{shown(self.path)} is not a file of trained attackers")
        found: dict[str, Any] = meta
        return found

    def _checked_tasks(self, found: dict[str, Tensor]) -> Tasks:
        """The tasks of the file, which must be those that its configuration stands for."""
        expected = _tasks(self.config, self.env)
        if misfit(found, expected.tensors()) is not None:
            raise self._damaged("their tasks are of another form")
        if not all(torch.allclose(found[k], t) for k, t in expected.tensors().items()):
            raise self._damaged("their tasks are not those of their configuration")
        return type(expected)(**found)

    def _checked_attacker(self, found: dict[str, Tensor]) -> Attacker:
        try:
            attacker = learning_attacker(self.config)
        except UserError as error:
            raise self._damaged(str(error)) from None
        acting = [t for name, t in found.items() if not _is_moment(name) and t.numel()]
        if any(t.is_floating_point() and t.abs().max() > LARGEST for t in acting):
            raise self._damaged("there are numbers that no training gives")
        try:
            attacker.load_tensors(found)
            streams = Rng(0).streams(self.tasks.ids)
            attacker.reset(self.env.spec, self.tasks.copy(), streams)
            norm = attacker.cost().max().item()
            if (difference := misfit(attacker.tensors(), found)) is not None:
                raise ValueError(difference)
        except (
            UserError, KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError
        ):  # fmt: skip
            raise self._damaged("they do not fit their configuration") from None
        if not norm <= self.config.budget * (1 + 1e-6):
            raise self._damaged(f"their norm is {norm:g}, their budget {self.config.budget:g}")
        return attacker  # type: ignore[no-any-return]

    def _damaged(self, why: str) -> UserError:
        return UserError(f"attackers {shown(self.path)} are damaged: {why}")
