"""Compute the entries of results/leaderboard: our agents and every baseline, one after the other.

python scripts/leaderboard.py [AGENT …]      all, or those named
python scripts/leaderboard.py --digests      what FROZEN in mithridate/stress/suites.py has to say

It goes on where it was stopped. Each entry is what `mithridate stress ENV --agent AGENT` gives.
What is there is left alone, unless it is of another suite under the same name: then it is computed
anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mithridate.errors import UserError
from mithridate.progress import StressProgress
from mithridate.stress.entry import read_entry, write_entry
from mithridate.stress.leaderboard import SCHEMA, schema_text, write_leaderboard
from mithridate.stress.run import slug, stress_test
from mithridate.stress.suites import find_suite, suite_names

FOLDER = Path("results/leaderboard")
SUITE = "standard-v0"
AGENTS = {
    "bandit": (
        "ts", "ucb1", "rts", "rts(level=unknown)", "rts(level=known)", "crucb",
        "crucb(variant=low)", "crucb(variant=original)", "mixture_ts", "dpt-bandit-s0",
        "at-dpt-bandit-s0", "at-dpt-v1-bandit-s0", "at-dpt-adaptive-bandit-s0",
        "at-dpt-mixture-bandit-s0",
        "ad-ts-bandit-s0", "ad-crucb-bandit-s0", "uniform",
    ),
    "linear_bandit": (
        "linucb", "crlinucb", "lin_ts", "mixture_linucb", "dpt-linear-s0", "at-dpt-linear-s0",
    ),
    "darkroom2": (
        "dpt-darkroom2-s0", "at-dpt-darkroom2-s0", "mixture_room", "dpt-v1-darkroom2-s0",
        "at-dpt-v1-darkroom2-s0",
    ),
}  # fmt: skip


def main(wanted: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for env, agents in AGENTS.items():
        for agent in agents:
            path = FOLDER / f"{env}-{SUITE}-{slug(agent)}.json"
            if (wanted and agent not in wanted) or _is_sound(path):
                continue
            with StressProgress() as progress:
                test = stress_test(agent, env, SUITE, onlooker=progress)
            write_entry(path, test.entry)
            print(path)
    (FOLDER / SCHEMA).write_text(schema_text())
    print(write_leaderboard(FOLDER))


def _is_sound(path: Path) -> bool:
    try:
        read_entry(path)
    except UserError:
        return False
    return True


def digests() -> None:
    for env in AGENTS:
        for name in suite_names(env):
            print(f'    "{env}/{name}": "{find_suite(name, env).sha256()}",')


if __name__ == "__main__":
    if sys.argv[1:] == ["--digests"]:
        digests()
    else:
        main(sys.argv[1:])
