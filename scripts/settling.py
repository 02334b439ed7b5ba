"""Whether learned attackers keep what they find, round by round.

    python scripts/settling.py bandit ts --kind steady --seed 3
    python scripts/settling.py darkroom2 dpt-v1-darkroom2-s0 --kind steady --tasks 40
    python scripts/settling.py bandit ts --kind search --after steady    begin with what those found

Attackers are trained as `mithridate attack` trains them, and kept as they were after every round.
All of them are measured on one luck, which says what the best round was; that round and the last
one are measured on another. With arms it also says where the best arm's offset is negative.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from mithridate.capabilities import settles
from mithridate.envs import make_env
from mithridate.evaluation.kinds import fitting
from mithridate.intervals import mean_ci95
from mithridate.rng import Rng
from mithridate.scores import step_scores
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig, EvaluateConfig
from mithridate.training.attack import AttackTraining, LearnedAttack, attack


def totals(training: AttackTraining, attacker: Any, luck: str, repeats: int) -> Tensor:
    """(B,): each task's metric, the mean over so many episodes of this luck."""
    c = training.config
    return torch.stack([
        step_scores(
            training.env, training.tasks, training.target, attacker, c.eps if attacker else 0.0,
            rng=Rng(c.seed).child("settling", luck, k), block=len(training.tasks),
        ).sum(1)
        for k in range(repeats)
    ]).mean(0)  # fmt: skip


def snapshot(training: AttackTraining) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in training.tensors().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env")
    parser.add_argument("target")
    parser.add_argument("--kind", default="steady")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--after", help="the kind whose attackers these begin with")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument(
        "--repeats", type=int, default=4, help="episodes of a task in a measurement"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    told = parser.parse_args()
    console = Console(stderr=True)
    env = make_env(told.env)
    evaluation = resolve(EvaluateConfig, "evaluate", told.env)

    def config_of(name: str, rounds: int | None = None) -> AttackConfig:
        kind = fitting(name, env.spec)
        return resolve(
            AttackConfig, "attack", told.env, "laptop", told.set, target=told.target,
            tasks=told.tasks, seed=told.seed, attacker=kind.attacker_in(env.spec),
            rounds=rounds or kind.rounds(evaluation),
        )  # fmt: skip

    config, start = config_of(told.kind, told.rounds), None
    torch.set_num_threads(config.threads)
    if told.after is not None:
        with tempfile.TemporaryDirectory() as folder:
            start = LearnedAttack(attack(config_of(told.after), folder))
    training = AttackTraining(config, start=start)
    kept = []
    for step in track(range(config.rounds), "learning", console=console):
        training.step(step)
        kept.append(snapshot(training))
    if settles(training.attacker):
        training.step(config.rounds)
        kept.append(snapshot(training))
    training.attacker.learning = False
    better = 1.0 if training.env.spec.metric.better == "lower" else -1.0

    def under(state: dict[str, Tensor], luck: str, repeats: int) -> Tensor:
        training.attacker.load_tensors(state)
        return totals(training, training.attacker, luck, repeats)

    clean = totals(training, None, "measured", told.repeats)
    chosen_on = [
        under(state, "choosing", told.repeats).mean().item() * better
        for state in track(kept, "choosing", console=console)
    ]
    best = max(range(len(kept)), key=chosen_on.__getitem__)
    print(f"{told.env}, {told.target}, {config.attacker}, {config.rounds} rounds")
    print(f"eps {config.eps:g}, budget {config.budget:g}, {told.tasks} tasks, seed {told.seed}")
    print("rounds on the luck of choosing:", " ".join(f"{better * x:.1f}" for x in chosen_on))
    found = {}
    for name, at in (("best round", best), ("last round", len(kept) - 1)):
        scores = under(kept[at], "measured", told.repeats)
        found[name] = scores.mean().item() - clean.mean().item()
        cost = training.attacker.cost()
        print(f"{name} ({at + 1}): {_shown(scores)}, norm {cost.mean():.2f}")
    print(f"clean: {_shown(clean)}")
    share = found["last round"] / found["best round"]
    print(f"the last round has {100 * share:.0f} % of the best round's effect")
    means = getattr(training.tasks, "means", None)
    if means is not None and env.spec.n_attack_keys == 1:
        offset = training.attacker.adds().mean[:, 0].gather(1, means.argmax(1)[:, None])
        negative, positive = (offset < 0).float().mean(), (offset > 0).float().mean()
        print(f"the best arm's offset is below 0 in {100 * negative:.0f} %, above in "
              f"{100 * positive:.0f} % of the tasks; mean {offset.mean():.2f}")  # fmt: skip


def _shown(scores: Tensor) -> str:
    mean, ci95 = mean_ci95(scores.tolist())
    return f"{mean:.1f} ± {ci95:.1f}"


if __name__ == "__main__":
    main()
