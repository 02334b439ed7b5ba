"""`mithridate pretrain`, `distill`, `train` and `attack`."""

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
)

RUNS = Path("runs")
RunDirectory = Annotated[
    Path | None,
    typer.Option(help="The run's directory (default runs/COMMAND-ENV-<config hash>)."),
]
WithTensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")
]
RoundsFigure = Annotated[
    Path | None, typer.Option(help="Save the score per round here (PNG, PDF, SVG).")
]


def pretrain(
    env: EnvName,
    preset: Preset = "laptop",
    seed: Seed = None,
    sets: Sets = None,
    out: RunDirectory = None,
    tensorboard: WithTensorBoard = False,
    as_json: Json = False,
) -> None:
    """Pretrain a Decision-Pretrained Transformer (DPT).

    The run's directory holds config.json, log.jsonl, a checkpoint and, when finished,
    model.safetensors with its card model.json. Interrupt it at any time: the same command goes
    on where it stopped, with the same result.
    """
    from mithridate.progress import TrainingProgress
    from mithridate.settings import resolve
    from mithridate.stage_config import PretrainConfig
    from mithridate.training.loop import Watcher
    from mithridate.training.model_run import run_name
    from mithridate.training.pretrain import Pretraining
    from mithridate.training.pretrain import pretrain as run
    from mithridate.training.tensorboard import TensorBoard

    training = Pretraining(resolve(PretrainConfig, "pretrain", env, preset, sets or (), seed=seed))
    directory = out or RUNS / run_name(training)
    watchers: list[Watcher] = [TensorBoard(directory / "tensorboard")] if tensorboard else []
    with TrainingProgress(f"pretrain {env}") as progress:
        weights = run(training, directory, [progress, *watchers])
    _say_clean_score(weights, as_json)


def _say_clean_score(weights: Path, as_json: bool) -> None:
    from mithridate.model.weights import load_model
    from mithridate.report.terminal import interval

    card = load_model(weights)[1]
    if as_json:
        print_json({"weights": str(weights), "card": card})
    else:
        metrics = card["metrics"]
        print(f"{weights}")
        print(
            f"clean score {interval(metrics['clean_mean'], metrics['clean_ci95'])} "
            f"over {metrics['clean_tasks']} fresh tasks (seed {card['seed']})"
        )


def distill(
    env: EnvName,
    source: Annotated[
        str, typer.Option(help="The algorithm to imitate: an agent, as in evaluate --agents.")
    ],
    attacker: Annotated[
        str | None, typer.Option(help="Who poisons what the source sees (default: nobody).")
    ] = None,
    preset: Preset = "laptop",
    eps: Eps = None,
    budget: Budget = None,
    seed: Seed = None,
    sets: Sets = None,
    out: RunDirectory = None,
    as_json: Json = False,
) -> None:
    """Train a model to imitate a learning algorithm (Algorithm Distillation).

    As with pretrain, the same command goes on where an interrupted run stopped, with the same
    result.
    """
    from mithridate.progress import TrainingProgress
    from mithridate.settings import resolve
    from mithridate.stage_config import DistillConfig
    from mithridate.training.distill import distill as run

    config = resolve(
        DistillConfig, "distill", env, preset, sets or (),
        source=source, attacker=attacker, eps=eps, budget=budget, seed=seed,
    )  # fmt: skip
    with TrainingProgress(f"distill {source}") as progress:
        weights = run(config, out, [progress])
    _say_clean_score(weights, as_json)


def train(
    env: EnvName,
    start: Annotated[
        str,
        typer.Option("--from", help="The pretrained model: a shipped name, a run, or a file."),
    ],
    preset: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), laptop, paper (Algorithm 1 as printed), or laptop-v1 (the first "
            "edition's laptop)."
        ),
    ] = "laptop",
    eps: Eps = None,
    budget: Budget = None,
    seed: Seed = None,
    sets: Sets = None,
    out: RunDirectory = None,
    tensorboard: WithTensorBoard = False,
    figure: RoundsFigure = None,
    as_json: Json = False,
) -> None:
    """Train a model adversarially (AT-DPT) against attackers that learn to hurt it.

    As with pretrain, the same command goes on where an interrupted run stopped, with the same
    result.
    """
    from mithridate.envs import env_of
    from mithridate.model.weights import load_model
    from mithridate.progress import TrainingProgress
    from mithridate.registry import ENVS
    from mithridate.report.figures import check_figure, training_curves
    from mithridate.report.terminal import interval
    from mithridate.settings import resolve
    from mithridate.stage_config import AdversarialConfig
    from mithridate.training.adversarial import AdversarialTraining, train_adversarially
    from mithridate.training.loop import Watcher
    from mithridate.training.model_run import run_name
    from mithridate.training.run_directory import read_log
    from mithridate.training.tensorboard import TensorBoard

    config = resolve(
        AdversarialConfig, "train", env, preset, sets or (),
        start=start, eps=eps, budget=budget, seed=seed,
    )  # fmt: skip
    if figure is not None:
        check_figure(figure)
    training = AdversarialTraining(config)
    directory = out or RUNS / run_name(training)
    watchers: list[Watcher] = [TensorBoard(directory / "tensorboard")] if tensorboard else []
    with TrainingProgress(f"train {env}") as progress:
        weights = train_adversarially(training, directory, [progress, *watchers])
    if figure is not None:
        title = f"{env}, adversarial training, ε = {config.eps:g}, B = {config.budget:g}"
        log = read_log(directory / "log.jsonl")
        training_curves(log, figure, title, env_of(config.env).spec.metric.name)
    card = load_model(weights)[1]
    if as_json:
        print_json({"weights": str(weights), "card": card})
        return
    metrics = card["metrics"]
    print(f"{weights}")
    for name in ("clean", *ENVS.get(env).attacks):
        print(f"{name:12} {interval(metrics[f'{name}_mean'], metrics[f'{name}_ci95'])}")
    print(f"over {metrics['clean_tasks']} fresh tasks (seed {card['seed']})")


def attack(
    env: EnvName,
    target: Annotated[
        str,
        typer.Option(
            help="Whom to attack: a registered agent, a shipped model, a run, a .safetensors file, "
            "or module:Class of your own."
        ),
    ],
    preset: Preset = "laptop",
    eps: Eps = None,
    budget: Budget = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of learning (default 20).")] = None,
    seed: Seed = None,
    sets: Sets = None,
    out: RunDirectory = None,
    figure: RoundsFigure = None,
    as_json: Json = False,
) -> None:
    """Train attackers against an agent, which they see only from outside."""
    from mithridate.envs import env_of
    from mithridate.progress import TrainingProgress
    from mithridate.report.figures import check_figure, training_curves
    from mithridate.report.terminal import interval
    from mithridate.settings import resolve
    from mithridate.stage_config import AttackConfig
    from mithridate.training.attack import AttackTraining, LearnedAttack
    from mithridate.training.attack import attack as run
    from mithridate.training.run_directory import read_log

    config = resolve(
        AttackConfig, "attack", env, preset, sets or (),
        target=target, eps=eps, budget=budget, rounds=rounds, seed=seed,
    )  # fmt: skip
    if figure is not None:
        check_figure(figure)
    training = AttackTraining(config)
    directory = out or RUNS / training.name
    with TrainingProgress(f"attack {target}") as progress:
        learned = LearnedAttack(run(training, directory, [progress]))
    log = [line for line in read_log(directory / "log.jsonl") if "score_mean" in line]
    if figure is not None:
        title = f"{env}, attackers against {target}, ε = {config.eps:g}, B = {config.budget:g}"
        training_curves(log, figure, title, env_of(config.env).spec.metric.name)
    if as_json:
        print_json({"attackers": str(learned.path), "metrics": learned.metrics, "rounds": log})
        return
    metrics = learned.metrics
    print(f"{learned.path}")
    print("score per round: " + " ".join(f"{line['score_mean']:.1f}" for line in log))
    print(
        f"{target} under these attackers: "
        f"{interval(metrics['final_mean'], metrics['final_ci95'])} "
        f"({config.tasks} tasks, eps {config.eps:g}, norm {metrics['used_norm_mean']:.2f} on "
        f"average, {metrics['used_norm_max']:.2f} at most, budget {config.budget:g}, "
        f"seed {config.seed})"
    )


def add_to(app: typer.Typer) -> None:
    for command in (pretrain, distill, train, attack):
        app.command()(command)
