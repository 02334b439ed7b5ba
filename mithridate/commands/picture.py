"""`mithridate picture`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mithridate.commands.options import Budget, EnvName, Eps, Json, Preset, Seed, Sets, print_json
from mithridate.errors import UserError


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
    """Draw one episode in a room: the attack on every cell and action, and the agent's path."""
    import torch

    from mithridate.agents.resolve import make_victims
    from mithridate.attackers.tabular import mean_offsets
    from mithridate.config import EvaluateConfig, resolve
    from mithridate.envs import env_of
    from mithridate.evaluation.columns import make_columns
    from mithridate.progress import TrainingProgress
    from mithridate.report.figures import check_figure
    from mithridate.report.picture import Room, draw_room
    from mithridate.rng import Rng
    from mithridate.rollout import rollout

    config = resolve(
        EvaluateConfig, "evaluate", env, preset, sets or (), seed=seed, eps=eps, budget=budget,
        attackers=(attacker,),
    )  # fmt: skip
    room = env_of(config.env)
    if room.spec.n_states is None:
        raise UserError(f"'{env}' has no rooms to draw; try darkroom2")
    check_figure(out)
    torch.set_num_threads(config.threads)
    victim = make_victims([agent])[0]
    with TrainingProgress("attack") as progress:
        column = make_columns(config, [victim], lambda label, r: [progress.another(label)])[0]
    rng = Rng(config.seed).child("evaluate", 0)
    adversary, tasks = column.meet(0)
    if tasks is None:
        tasks = room.sample_tasks(config.tasks, rng.child("tasks"))
    if task >= len(tasks):
        raise UserError(f"--task {task}: there are {len(tasks)}, from 0 on")
    one = tasks.select(slice(task, task + 1))
    trajectory = rollout(room, one, victim.replication(0), adversary, config.eps, rng=rng)
    offsets = torch.zeros(room.spec.n_states, room.spec.n_actions)
    if adversary is not None:
        if not hasattr(adversary, "probabilities"):
            raise UserError(
                f"attacker '{attacker}' has no offset for each state and action to draw"
            )
        offsets = mean_offsets(adversary.probabilities)[0]
    score = room.score(one, trajectory).sum().item()
    title = f"{victim.label} under {column.name}, task {task}: episode reward {score:g}"
    drawn = Room(
        one.rewards[0].numpy(),  # type: ignore[attr-defined]
        offsets.numpy(),
        trajectory.observations[0, 0].numpy(),  # type: ignore[index]
        title,
    )
    draw_room(drawn, out)
    if as_json:
        print_json({"file": str(out), "score": score, "settled": drawn.settled()})
    else:
        print(title)
        print(out)


def add_to(app: typer.Typer) -> None:
    app.command()(picture)
