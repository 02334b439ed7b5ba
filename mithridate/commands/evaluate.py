"""`mithridate evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mithridate.commands.options import (
    Budget,
    EnvName,
    Eps,
    Json,
    Preset,
    Seed,
    Sets,
    print_json,
    wide_console,
)
from mithridate.evaluation.kinds import spoken


def evaluate(
    env: EnvName,
    agents: Annotated[
        str,
        typer.Option(
            help="Comma-separated: registered agents (ts, ucb1(constant=1), …), shipped models, "
            "run directories, .safetensors files, or module:Class of your own. LABEL=NAME gives a "
            "label; a pattern such as AT-DPT=at-dpt-bandit-s* is one agent with replications."
        ),
    ],
    preset: Preset = "laptop",
    tasks: Annotated[int | None, typer.Option(help="Tasks per replication.")] = None,
    replications: Annotated[int | None, typer.Option(help="Independent repetitions.")] = None,
    attackers: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: none (default), uniform, raise_worst, lower_best, swap, mirror, "
            "few_arms, disguise, jun_oracle, jun_ucb, jun_egreedy, ace, "
            "files of `mithridate attack`, those that a model was trained along with "
            "(cotrained(AGENT)), or kinds that are trained now: "
            f"{spoken()}; without (AGENT), against every agent."
        ),
    ] = None,
    eps: Eps = None,
    budget: Budget = None,
    seed: Seed = None,
    sets: Sets = None,
    figure: Annotated[Path | None, typer.Option(help="Save the curves over time here.")] = None,
    as_json: Json = False,
) -> None:
    """Measure agents on fresh tasks: all of them meet the same tasks with the same luck.

    With several attackers it prints the matrix of agents × attackers, in the paper's colours and
    with the paper's values.
    """
    from mithridate.agents.named import told
    from mithridate.evaluation.columns import make_columns
    from mithridate.evaluation.crossplay import evaluate_config
    from mithridate.evaluation.victims import make_victims, split_names
    from mithridate.progress import TrainingProgress, counting
    from mithridate.report.figures import check_figure, score_curves
    from mithridate.report.terminal import evaluation_table
    from mithridate.settings import resolve
    from mithridate.stage_config import EvaluateConfig

    config = resolve(
        EvaluateConfig, "evaluate", env, preset, sets or (), seed=seed, tasks=tasks,
        replications=replications, eps=eps, budget=budget,
        attackers=None if attackers is None else tuple(split_names(attackers, "--attackers")),
    )  # fmt: skip
    if figure is not None:
        check_figure(figure)
    victims = make_victims(split_names(agents), told(config))
    with TrainingProgress("attack") as progress:
        columns = make_columns(
            config, victims, lambda label, r: [progress.another(f"attack {label} #{r + 1}")]
        )
    blocks = -(-config.tasks // config.block)
    episodes = sum(v.episodes() for v in victims)
    total = episodes * len(columns) * config.replications * blocks * config.env.horizon
    with counting(f"evaluate {env}", total) as on_step:
        evaluation = evaluate_config(config, victims, columns=columns, on_step=on_step)
    if figure is not None:
        score_curves(evaluation, figure)
    if as_json:
        print_json(evaluation.to_json())
    else:
        wide_console().print(evaluation_table(evaluation))


def add_to(app: typer.Typer) -> None:
    app.command()(evaluate)
