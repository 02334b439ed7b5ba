"""Find the attacks that `mixture_ts(prior=searched)` and `replay` know, by fictitious play.

    python scripts/searched_attacks.py [--iterations 6] [--tasks 100] [--rounds 10]
    python scripts/searched_attacks.py --levels 0.4     # one share of poisoned rewards anew

Each iteration searches the worst attack on fresh tasks against `mixture_ts` with all attacks found
so far as its prior (at first without any), and adds what it finds. The last line of each level is
a search on tasks that nothing else here uses. Writes `mithridate/searched.safetensors`.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from mithridate.agents import mixture_arms
from mithridate.intervals import mean_ci95
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.scores import score, total_scores
from mithridate.searched import FILE, Searched
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig
from mithridate.tensor_files import read_tensors, write_sealed
from mithridate.training.attack import AttackTraining

LEVELS = [0.4, 0.2, 0.1]
TEMPERATURE = 0.35
JUDGE = 7
"""Seed of the tasks that the result is judged on; those of iteration i have seed FIRST + i."""
FIRST = 100
EPISODES = 4
CLEAN = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("iterations", 6), ("tasks", 100), ("rounds", 10), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kept = read_tensors(FILE, "attacks")[0] if FILE.exists() else {}
    for eps in options.levels:
        found = play(eps, options)
        kept |= {f"{eps:g}.means": found.means, f"{eps:g}.offsets": found.offsets}
        write_sealed(FILE, kept, {"command": "python scripts/searched_attacks.py", "budget": 3.0})


def play(eps: float, options: Any) -> Searched:
    found: Searched | None = None
    for iteration in range(options.iterations):
        training = search(eps, found, options, FIRST + iteration)
        report(f"eps {eps:g}, {iteration} times before", training)
        new = attacks(training)
        found = new if found is None else Searched.cat([found, new])
    assert found is not None
    report(f"eps {eps:g}, in the end", search(eps, found, options, JUDGE))
    return found


def search(eps: float, found: Searched | None, options: Any, seed: int) -> AttackTraining:
    """A finished search against `mixture_ts` that knows what was found."""
    prior = "unrelated" if found is None else "searched"
    mixture_arms.searched = lambda eps: found
    config = resolve(
        AttackConfig, "attack", "bandit", "laptop", ["attacker=search"], seed=seed,
        target=f"mixture_ts(eps={eps:g},prior={prior},temperature={TEMPERATURE})", eps=eps,
        tasks=options.tasks, rounds=options.rounds, threads=options.threads,
    )  # fmt: skip
    training = AttackTraining(config)
    for step in range(training.steps):
        training.step(step)
    training.attacker.learning = False
    return training


def attacks(training: AttackTraining) -> Searched:
    tasks: Any = training.tasks
    rng = Rng(0).child("found")
    attacker = training.attacker
    attacker.reset(training.env.spec, tasks, rng.streams(tasks.luck, tasks.device))
    return Searched.sorted(tasks.means, attacker.played())


def report(title: str, training: AttackTraining) -> None:
    """The target's regret on luck that the search has not met, and without an attack."""
    env, config, rng = training.env, training.config, Rng(0).child("report")
    tasks = training.tasks.repeat(EPISODES)
    trajectory = rollout(env, tasks, training.target, training.attacker, config.eps, rng=rng)
    scores = score(env, tasks, trajectory).sum(1).view(-1, EPISODES).mean(1)
    clean = total_scores(env, env.sample_tasks(CLEAN, rng.child("tasks")), training.target, rng=rng)
    (worst, worst_ci), (mean, ci) = mean_ci95(scores.tolist()), mean_ci95(clean.tolist())
    print(f"{title}: search {worst:.1f} ± {worst_ci:.1f}, clean {mean:.1f} ± {ci:.1f}", flush=True)


if __name__ == "__main__":
    main()
