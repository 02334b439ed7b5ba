"""The demonstration behind `make demo`."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from mithridate.agents.named import told
from mithridate.evaluation.columns import make_columns
from mithridate.evaluation.crossplay import Evaluation, evaluate_config
from mithridate.evaluation.victims import make_victims
from mithridate.files import make_directory
from mithridate.progress import TrainingProgress, counting
from mithridate.report.figures import score_curves
from mithridate.report.terminal import matrix_table
from mithridate.settings import resolve
from mithridate.stage_config import EvaluateConfig

TASKS = 100
REPLICATIONS = 2
ROUNDS = 20
AGENTS = ("AT-DPT=at-dpt-bandit-s*", "DPT=dpt-bandit-s*", "TS=ts", "crUCB=crucb")
ATTACKERS = ("none", "uniform", "raise_worst", "lower_best", "swap", "mirror", "learned")


def run(out: Path, console: Console) -> None:
    begun = time.monotonic()
    make_directory(out)
    console.rule("In-context bandits under reward poisoning", align="left")
    console.print(
        "5 arms, 500 steps, 40 % of the rewards poisoned. Four agents: AT-DPT and DPT are shipped\n"
        "transformers with frozen weights, TS and crUCB classical algorithms. Against each of\n"
        "them "
        f"attackers are trained now, for {ROUNDS} rounds; then every agent meets every attacker."
    )
    evaluation = _matrix(out)
    console.print(matrix_table(evaluation))
    figure = out / "regret.png"
    score_curves(evaluation, figure)
    console.print(f"Regret over time: {figure}")
    console.print(
        "None of these attacks is the worst within the budget; a search for it:\n"
        "mithridate stress bandit --agent at-dpt-bandit-s0 --suite quick"
    )
    console.print(f"Done in {time.monotonic() - begun:.0f} s.")


def _matrix(out: Path) -> Evaluation:
    config = resolve(
        EvaluateConfig, "evaluate", "bandit", tasks=TASKS, replications=REPLICATIONS,
        attackers=ATTACKERS, rounds=ROUNDS, seed=1,
    )  # fmt: skip
    victims = make_victims(AGENTS, told(config))
    with TrainingProgress("attack") as progress:
        columns = make_columns(
            config, victims, lambda label, r: [progress.another(f"attack {label} #{r + 1}")],
            directory=out / "attackers",
        )  # fmt: skip
    steps = len(victims) * len(columns) * REPLICATIONS * config.env.horizon
    with counting("evaluate bandit", steps) as on_step:
        return evaluate_config(config, victims, columns=columns, on_step=on_step)
