"""Training attackers against a fixed target (the attacker half of the paper's Algorithm 1).

The target is a black box: any agent, registered, trained, or a class of the user's. One attacker
for each of M tasks, or one network for all of them; a step of the training loop is a round: roll
the target out under attack, let the attackers learn from the true rewards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mithridate.agents.named import AgentLike, fingerprint, make_agent, told
from mithridate.capabilities import is_privileged, repeats, settles, starts
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.files import shown
from mithridate.intervals import mean_ci95
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.scores import score
from mithridate.stage_config import AttackConfig
from mithridate.tensor_files import misfit
from mithridate.training.attack_files import KEPT, as_used, attack_tasks, write_attackers
from mithridate.training.attack_files import LearnedAttack as LearnedAttack
from mithridate.training.attack_files import learning_attacker as learning_attacker
from mithridate.training.fitness import try_out
from mithridate.training.loop import Cadence, Values, Watcher, train
from mithridate.training.run_directory import RunDirectory
from mithridate.types import Agent, Tasks, Trajectory

AT_ONCE = 1000
"""Episodes that are rolled out at a time, where tasks do not learn from each other."""


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
        self.tasks = attack_tasks(config, self.env)
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
        rng = self.rng.child("final")
        return as_used(self.env, self.tasks, self.target, self.attacker, self.config.eps, rng)

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
    path = run.path / KEPT
    try:
        if not path.exists():
            cadence = Cadence(training.steps, 1, training.steps, config.checkpoint_every)
            train(training, cadence, run, watchers)
            tensors, tasks = training.tensors(), training.tasks
            write_attackers(path, config, tasks, tensors, training.evaluate(config.rounds))
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
