"""Chooses the settings of `mixture_ts` on validation tasks and attackers, not those of any table.

    python scripts/tune_mixture.py                      one setting changed at a time
    python scripts/tune_mixture.py 'temperature=0.2' 'temperature=0.2,untouched=0.05'

For each setting: regret without attack, under attacks that need no learning, under attackers of
Thompson sampling, and under a search against this very setting. What counts is the largest.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from mithridate.agents.named import make_agent, told
from mithridate.attackers import make_attacker
from mithridate.intervals import mean_ci95
from mithridate.rng import Rng
from mithridate.scores import step_scores
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig
from mithridate.training.attack import LearnedAttack, attack
from mithridate.types import Attacker

ONE_AT_A_TIME = (
    "", "temperature=0.1", "temperature=0.2", "temperature=0.6", "untouched=0.02",
    "untouched=0.4", "scales=(0.3,0.7)", "scales=(0.15,0.3,0.7,1.4)", "scales=(0.5,1,2)",
    "spreads=(0.02,0.3)", "spreads=(0.02,)",
)  # fmt: skip
STATIC = ("uniform", "mirror", "few_arms", "lower_best", "swap")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", default=ONE_AT_A_TIME)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=4)
    chosen = parser.parse_args()
    console = Console(stderr=True)

    def config(target: str, attacker: str | None) -> AttackConfig:
        return resolve(
            AttackConfig, "attack", "bandit", target=target, tasks=chosen.tasks, seed=chosen.seed,
            attacker=attacker, rounds=chosen.rounds,
        )  # fmt: skip

    def trained(target: str, attacker: str | None) -> LearnedAttack:
        console.log(f"{attacker or 'learned'} against {target}")
        with tempfile.TemporaryDirectory() as directory:
            return LearnedAttack(attack(config(target, attacker), Path(directory) / "run"))

    of_ts = trained("ts", None)
    print("setting | clean | " + " | ".join(STATIC) + " | learned(TS) | search | largest")
    for setting in chosen.settings:
        name = f"mixture_ts({setting})" if setting else "mixture_ts"
        agent = make_agent(name, told(config("ts", None)))[1]
        met: dict[str, Attacker | None] = {"clean": None}
        met |= {one: make_attacker(one, of_ts.config.budget) for one in STATIC}
        met["learned(TS)"], met["search"] = of_ts.attacker, trained(name, "search").attacker
        found = {}
        for heading, attacker in met.items():
            scores = [
                step_scores(
                    of_ts.env, of_ts.tasks, agent, attacker, of_ts.config.eps if attacker else 0.0,
                    rng=Rng(chosen.seed).child("tuning", k),
                ).sum(1)
                for k in range(chosen.repeats)
            ]  # fmt: skip
            found[heading] = mean_ci95((sum(scores) / chosen.repeats).tolist())
        cells = [f"{mean:.1f} ± {ci95:.1f}" for mean, ci95 in found.values()]
        largest = max(mean for mean, _ in found.values())
        print(f"{name} | " + " | ".join(cells) + f" | {largest:.1f}", flush=True)


if __name__ == "__main__":
    main()
