"""The demonstration behind `make demo`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rich.console import Console

from mithridate.config import EvaluateConfig, PretrainConfig, resolve
from mithridate.envs import env_of
from mithridate.evaluation.crossplay import Evaluation, evaluate, evaluate_config
from mithridate.files import make_directory
from mithridate.progress import TrainingProgress, counting
from mithridate.report.figures import score_curves
from mithridate.report.paper import paper_value
from mithridate.report.tables import evaluation_table
from mithridate.training.pretrain import pretrain

TASKS = 1000
SHIPPED = {"DPT": "dpt-bandit-s0", "TS": "ts", "UCB1.0": "ucb1"}
LIVE = (
    "env.arms=3", "env.horizon=50", "model.layers=2", "steps=600",
    "optimiser.learning_rate=0.003", "optimiser.warmup_steps=30",
    "batches.long_batch=128", "batches.long_length=50", "batches.long_every=1",
    "evaluate_every=200",
)  # fmt: skip


def run(out: Path, console: Console) -> None:
    begun = time.monotonic()
    make_directory(out)

    console.rule("1. The shipped model against classical bandits", align="left")
    console.print("5 arms, 500 steps, frozen weights: everything it learns is in its context.")
    evaluation = _compare_shipped()
    paper = {agent: paper_value("bandit_main", agent, "clean") for agent in SHIPPED}
    console.print(evaluation_table(evaluation, paper))
    figure = out / "regret.png"
    score_curves(evaluation, figure)
    console.print(f"Figure: {figure}\n")

    console.rule("2. A short live pretraining (a toy: 3 arms, 50 steps)", align="left")
    console.print(evaluation_table(_pretrain_toy()))
    console.print(f"Done in {time.monotonic() - begun:.0f} s.")


def _compare_shipped() -> Evaluation:
    config = resolve(EvaluateConfig, "evaluate", "bandit", tasks=TASKS, seed=1)
    steps = len(SHIPPED) * -(-config.tasks // config.block) * config.env.horizon
    with counting("evaluate bandit", steps) as on_step:
        return evaluate_config(config, SHIPPED, on_step=on_step)


def _pretrain_toy() -> Evaluation:
    config = resolve(PretrainConfig, "pretrain", "bandit", sets=LIVE)
    with tempfile.TemporaryDirectory() as directory:
        with TrainingProgress("pretrain (live)") as progress:
            weights = pretrain(config, directory, [progress])
        agents = {"DPT (trained just now)": str(weights), "TS": "ts", "uniform": "uniform"}
        return evaluate(env_of(config.env), agents, tasks=TASKS, seed=1)
