"""What matters in the bandit's adversarial training: one thing changed at a time.

    python scripts/ablation.py --rounds 60         trains, measures, prints a table
    python scripts/ablation.py --rounds 60 --page docs/train.md       and writes it there, too

Every model is trained from `dpt-bandit-s0` with seed 0. What it is judged on are validation tasks,
of no table and of no training: a search against the model itself, measured on luck of its own,
attacks that learn nothing, and none. What is interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from marked import written

from mithridate.agents.named import make_agent
from mithridate.attackers import make_attacker
from mithridate.envs import env_of
from mithridate.files import write_atomic
from mithridate.intervals import mean_ci95
from mithridate.progress import TrainingProgress
from mithridate.rng import Rng
from mithridate.scores import step_scores
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, AttackConfig
from mithridate.training.adversarial import train_adversarially
from mithridate.training.attack import LearnedAttack, attack

ROOT = Path(__file__).parent.parent
SEED = 7700
"""Of the validation tasks."""
CHANGES: dict[str, dict[str, Any]] = {
    "the laptop preset": {},
    "learned attackers only": {
        "threats": [{"attacker": "gaussian", "share": 0.8}, {"attacker": "none", "share": 0.2}]
    },
    "no attacks that searches have found": {
        "threats": [
            {"attacker": "disguise", "share": 0.4}, {"attacker": "mirror", "share": 0.1},
            {"attacker": "few_arms", "share": 0.15}, {"attacker": "uniform", "share": 0.15},
            {"attacker": "gaussian", "share": 0.1}, {"attacker": "none", "share": 0.1},
        ]
    },
    "the optimal action for a label": {"teacher": None},
    "half of the contexts synthetic": {"synthetic": {"rounds": 0, "share": 0.5}},
    "a memory of one round": {"memory": 1},
    "as narrow as its start": {"widen": 1},
}  # fmt: skip
TEMPERATURES = (0.15, 0.7, 1.0)
"""Of the first model, beside the one that it is trained at."""
STATIC = ("mirror", "disguise", "lower_best", "swap")
REPEATS = 4
"""Episodes of a task, of which the mean is taken."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "ablation")
    parser.add_argument("--rounds", type=int, help="of the game; the preset's")
    parser.add_argument("--tasks", type=int, default=100, help="for validation")
    parser.add_argument("--generations", type=int, default=12, help="of the search")
    parser.add_argument("--only", choices=CHANGES, help="one row")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--page", type=Path, help="where the table is written, too")
    told = parser.parse_args()
    lines = [
        "| training | search: itself | " + " | ".join(STATIC) + " | clean |",
        "|---" * (len(STATIC) + 3) + "|",
    ]
    rows = CHANGES if told.only is None else {told.only: CHANGES[told.only]}
    for name, changes in rows.items():
        trained = train(name, changes, told)
        lines.append(judge(name, str(trained), told))
        print(lines[-1], flush=True)
        for temperature in TEMPERATURES if not changes else ():
            name = f"the same at temperature {temperature:g}"
            lines.append(judge(name, f"{trained}(temperature={temperature:g})", told))
            print(lines[-1], flush=True)
    if told.page is not None:
        table = {"ablation": "\n".join(lines)}
        write_atomic(told.page, written(told.page.read_text(), table, "ablation.py"))


def train(name: str, changes: dict[str, Any], told: argparse.Namespace) -> Path:
    """The weights."""
    more = {} if told.rounds is None else {"rounds": told.rounds}
    config = resolve(
        AdversarialConfig, "train", "bandit", "laptop", told.set, start="dpt-bandit-s0", seed=0,
        eps=0.4, budget=3.0, **more, **changes,
    )  # fmt: skip
    with TrainingProgress(name) as progress:
        return train_adversarially(config, told.out / _folder(name), [progress])


def judge(name: str, agent: str, told: argparse.Namespace) -> str:
    """A line of the table."""
    config = resolve(
        AttackConfig, "attack", "bandit", "laptop", attacker="search", target=agent, seed=SEED,
        tasks=told.tasks, rounds=told.generations,
    )  # fmt: skip
    with TrainingProgress(f"search: {name}") as progress:
        found = LearnedAttack(attack(config, told.out / _folder(f"search {name}"), [progress]))
    met = {"search": found.attacker}
    met |= {one: make_attacker(one, config.budget) for one in STATIC} | {"clean": None}
    env, victim = env_of(config.env), make_agent(agent)[1]
    torch.set_num_threads(config.threads)
    cells = []
    for attacker in met.values():
        eps = 0.0 if attacker is None else config.eps
        totals = [
            step_scores(
                env, found.tasks, victim, attacker, eps, rng=Rng(SEED).child("judged", k),
                block=len(found.tasks),
            ).sum(1)
            for k in range(REPEATS)
        ]  # fmt: skip
        mean, ci95 = mean_ci95((sum(totals) / REPEATS).tolist())
        cells.append(f"{mean:.1f} ± {ci95:.1f}")
    return f"| {name} | " + " | ".join(cells) + " |"


def _folder(name: str) -> str:
    return name.replace(" ", "-")


if __name__ == "__main__":
    main()
