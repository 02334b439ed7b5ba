"""Training attackers against a fixed target (the attacker half of the paper's Algorithm 1).

The target is a black box: any agent, registered, trained, or a class of the user's. One attacker
for each of M tasks, or one network for all of them; a step of the training loop is a round: roll
the target out under attack, let the attackers learn from the true rewards.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from mithridate.agents.in_context import InContextAgent
from mithridate.agents.resolve import AgentLike, make_agent, source_sha256, told
from mithridate.attackers.budget import make_attacker
from mithridate.config import AttackConfig
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import step_scores
from mithridate.evaluation.statistics import mean_ci95
from mithridate.files import write_atomic
from mithridate.model.weights import tensors_sha256
from mithridate.registry import ENVS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.training.loop import Cadence, Values, Watcher, train
from mithridate.training.run_directory import RunDirectory, part
from mithridate.training.trial import try_out
from mithridate.types import Attacker, Env, Tasks
from mithridate.versions import versions

FORMAT = 1


class AttackTraining:
    """The trainee: the attackers. The target does not learn."""

    def __init__(self, config: AttackConfig, target: AgentLike | None = None) -> None:
        self.config = config
        self.rng = Rng(config.seed).child("attack")
        self.env = env_of(config.env)
        self.target = make_agent(config.target if target is None else target, told(config))[1]
        self.attacker = _attacker(config)
        self.attacker.learning = True
        self.tasks = self.env.sample_tasks(config.tasks, self.rng.child("tasks"))

    def step(self, step: int) -> Values:
        trajectory = rollout(
            self.env, self.tasks, self.target, self.attacker, self.config.eps,
            rng=self.rng.child("rollout", step), record_learning=True,
        )  # fmt: skip
        scores = self.env.score(self.tasks, trajectory)[:, -self.env.spec.horizon :]
        mean, ci95 = mean_ci95(scores.sum(1).tolist())
        learned: Values = self.attacker.update(trajectory)
        return {"score_mean": mean, "score_ci95": ci95, **learned}

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


def _attacker(config: AttackConfig) -> Any:
    seed = Rng(config.seed).child("attack", "network").integer()
    return make_attacker(config.attacker, config.budget, seed=seed)


def attack(
    config: AttackConfig,
    out: Path | str | None = None,
    watchers: list[Watcher] | None = None,
    *,
    target: AgentLike | None = None,
) -> Path:
    """Train in the directory `out` (default runs/attack-<env>-<hash>), or go on where an earlier
    call stopped. `target`: an object to attack, if it is not what `config.target` names. Returns
    the path of the attackers."""
    torch.set_num_threads(config.threads)
    where = Path(out) if out else default_directory(config, target)
    config = with_fingerprint(config, target)
    agent = make_agent(config.target if target is None else target, told(config))[1]
    try_out(env_of(config.env), [agent], [_attacker(config)])
    run = RunDirectory(where, config)
    path = run.path / "attackers.safetensors"
    try:
        if not path.exists():
            trainee = AttackTraining(config, target)
            cadence = Cadence(config.rounds, 1, config.rounds, config.checkpoint_every)
            train(trainee, cadence, run, watchers)
            _save(path, trainee)
    finally:
        run.close()
    return path


def with_fingerprint(config: AttackConfig, target: AgentLike | None = None) -> AttackConfig:
    """The configuration, bound to the weights or the source code that its target has now."""
    agent = make_agent(config.target if target is None else target, told(config))[1]
    if hasattr(agent, "reveal"):
        raise UserError(f"'{config.target}' knows the attack; there is nothing to learn against it")
    if not hasattr(_attacker(config), "update"):
        raise UserError(f"attacker '{config.attacker}' does not learn; evaluate it as it is")
    digest = None
    if isinstance(agent, InContextAgent):
        digest = tensors_sha256(agent.model.state_dict())
        agent.check(env_of(config.env).spec)
    elif target is None and ":" in config.target:
        digest = source_sha256(config.target)
    if config.target_sha256 not in (None, digest):
        raise UserError(f"target '{config.target}' has changed since this run began")
    return config.model_copy(update={"target_sha256": digest})


def default_directory(config: AttackConfig, target: AgentLike | None = None) -> Path:
    return Path("runs") / run_name(config, target)


def run_name(config: AttackConfig, target: AgentLike | None = None) -> str:
    return f"attack-{config.env.name}-{with_fingerprint(config, target).hash()}"


def _save(path: Path, trainee: AttackTraining) -> None:
    tensors = {f"attacker.{k}": t for k, t in trainee.tensors().items()}
    tensors |= {f"tasks.{k}": t for k, t in trainee.tasks.tensors().items()}
    metrics = trainee.evaluate(trainee.config.rounds)
    meta = {
        "format": FORMAT,
        "config": trainee.config.to_json(),
        "metrics": {k: None if math.isnan(v) else v for k, v in metrics.items()},
        "versions": versions(),
        "sha256": tensors_sha256(tensors),
    }
    contiguous = {name: t.contiguous() for name, t in tensors.items()}
    write_atomic(path, save_tensors(contiguous, metadata={"meta": json.dumps(meta)}))


class LearnedAttack:
    """Attackers from a file, with the tasks they belong to."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            self.path = self.path / "attackers.safetensors"
        try:
            data = self.path.read_bytes()
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            meta: dict[str, Any] = json.loads(header["__metadata__"]["meta"])
            tensors = load_tensors(data)
            damaged = tensors_sha256(tensors) != meta["sha256"]
            config = meta["config"]
            self.config = AttackConfig.model_construct(**config)
            env: Env = ENVS.create(config["env"]["name"], **config["env"])
        except OSError as error:
            raise UserError(f"cannot read attackers {self.path}: {error.strerror}") from None
        except (SafetensorError, ValueError, KeyError, TypeError):
            raise UserError(f"{self.path} is not a file of trained attackers") from None
        if damaged:
            raise UserError(f"attackers {self.path} are damaged: checksum differs; restore them")
        self.env = env
        self.metrics: dict[str, float | None] = meta["metrics"]
        self.sha256: str = hashlib.sha256(data).hexdigest()

        self.attacker: Attacker = _attacker(self.config)
        self.attacker.load_tensors(part(tensors, "attacker."))  # type: ignore[attr-defined]
        found = part(tensors, "tasks.")
        self.tasks: Tasks = type(env.sample_tasks(0, Rng(0)))(**found)
