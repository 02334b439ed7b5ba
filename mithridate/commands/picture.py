"""`mithridate picture`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mithridate.commands.options import Budget, EnvName, Eps, Json, Preset, Seed, Sets, print_json


def picture(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="Who acts, as in evaluate --agents.")],
    out: Annotated[Path, typer.Option(help="The file, .svg, .png or .pdf.")],
    attacker: Annotated[
        str, typer.Option(help="Who attacks, as in evaluate --attackers.")
    ] = "none",
    task: Annotated[int, typer.Option(min=0, help="Which of the tasks.")] = 0,
    preset: Preset = "laptop",
    eps: Eps = None,
    budget: Budget = None,
    seed: Seed = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Draw one episode in a room: what the attacker adds where, and the agent's path."""
    import torch

    from mithridate.agents.named import told
    from mithridate.evaluation.columns import make_columns
    from mithridate.evaluation.episode import pictured, watch
    from mithridate.evaluation.victims import make_victims
    from mithridate.progress import TrainingProgress
    from mithridate.report.figures import check_figure
    from mithridate.report.picture import draw_room
    from mithridate.settings import resolve
    from mithridate.stage_config import EvaluateConfig

    config = resolve(
        EvaluateConfig, "evaluate", env, preset, sets or (), seed=seed, eps=eps, budget=budget,
        attackers=(attacker,),
    )  # fmt: skip
    pictured(config)
    check_figure(out, "--out")
    torch.set_num_threads(config.threads)
    victim = make_victims([agent], told(config))[0]
    with TrainingProgress("attack") as progress:
        column = make_columns(config, [victim], lambda label, r: [progress.another(label)])[0]
    room = watch(config, victim, column, task)
    draw_room(room, out)
    if as_json:
        print_json({"file": str(out), "score": room.score, "settled": room.settled()})
    else:
        print(room.title)
        print(out)


def add_to(app: typer.Typer) -> None:
    app.command()(picture)
