"""The command line. Every user error is one line on standard error and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mithridate.commands import experiments, picture
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
from mithridate.errors import Interrupted, TrainingDiverged, UserError

app = typer.Typer(
    name="mithridate",
    help="In-context reinforcement learning that survives reward poisoning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from mithridate.versions import versions

        print(f"mithridate {versions()['mithridate']}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def pretrain(
    env: EnvName,
    preset: Preset = "laptop",
    seed: Seed = None,
    sets: Sets = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's directory (default runs/pretrain-ENV-<config hash>)."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Pretrain a Decision-Pretrained Transformer (DPT).

    The run's directory holds config.json, log.jsonl, a checkpoint and, when finished,
    model.safetensors with its card model.json. Interrupt it at any time: the same command goes
    on where it stopped, with the same result.
    """
    from mithridate.config import PretrainConfig, resolve
    from mithridate.progress import TrainingProgress
    from mithridate.training.loop import Watcher
    from mithridate.training.pretrain import default_directory
    from mithridate.training.pretrain import pretrain as run
    from mithridate.training.tensorboard import TensorBoard

    config = resolve(PretrainConfig, "pretrain", env, preset, sets or (), seed=seed)
    directory = out or default_directory(config)
    watchers: list[Watcher] = [TensorBoard(directory / "tensorboard")] if tensorboard else []
    with TrainingProgress(f"pretrain {env}") as progress:
        weights = run(config, directory, [progress, *watchers])
    _say_clean_score(weights, as_json)


def _say_clean_score(weights: Path, as_json: bool) -> None:
    from mithridate.model.weights import load_model

    card = load_model(weights)[1]
    if as_json:
        print_json({"weights": str(weights), "card": card})
    else:
        metrics = card["metrics"]
        print(f"{weights}")
        print(
            f"clean score {metrics['clean_mean']:.2f} ± {metrics['clean_ci95']:.2f} "
            f"over {metrics['clean_tasks']} fresh tasks (seed {card['seed']})"
        )


@app.command()
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
    out: Annotated[
        Path | None,
        typer.Option(help="The run's directory (default runs/distill-ENV-<config hash>)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model to imitate a learning algorithm (Algorithm Distillation).

    As with pretrain, the same command goes on where an interrupted run stopped, with the same
    result.
    """
    from mithridate.config import DistillConfig, resolve
    from mithridate.progress import TrainingProgress
    from mithridate.training.distill import default_directory
    from mithridate.training.distill import distill as run

    config = resolve(
        DistillConfig, "distill", env, preset, sets or (),
        source=source, attacker=attacker, eps=eps, budget=budget, seed=seed,
    )  # fmt: skip
    directory = out or default_directory(config)
    with TrainingProgress(f"distill {source}") as progress:
        weights = run(config, directory, [progress])
    _say_clean_score(weights, as_json)


@app.command()
def train(
    env: EnvName,
    start: Annotated[
        str,
        typer.Option("--from", help="The pretrained model: a shipped name, a run, or a file."),
    ],
    preset: Preset = "laptop",
    eps: Eps = None,
    budget: Budget = None,
    seed: Seed = None,
    sets: Sets = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's directory (default runs/train-ENV-<config hash>)."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Save the regret per round here (PNG, PDF, SVG).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model adversarially (AT-DPT) against attackers that learn to hurt it.

    As with pretrain, the same command goes on where an interrupted run stopped, with the same
    result.
    """
    from mithridate.config import AdversarialConfig, resolve
    from mithridate.envs import env_of
    from mithridate.model.weights import load_model
    from mithridate.progress import TrainingProgress
    from mithridate.registry import ENVS
    from mithridate.report.figures import check_figure, training_curves
    from mithridate.training.adversarial import default_directory, train_adversarially
    from mithridate.training.loop import Watcher
    from mithridate.training.run_directory import read_log
    from mithridate.training.tensorboard import TensorBoard

    config = resolve(
        AdversarialConfig, "train", env, preset, sets or (),
        start=start, eps=eps, budget=budget, seed=seed,
    )  # fmt: skip
    if figure is not None:
        check_figure(figure)
    directory = out or default_directory(config)
    watchers: list[Watcher] = [TensorBoard(directory / "tensorboard")] if tensorboard else []
    with TrainingProgress(f"train {env}") as progress:
        weights = train_adversarially(config, directory, [progress, *watchers])
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
        print(f"{name:12} {metrics[f'{name}_mean']:6.2f} ± {metrics[f'{name}_ci95']:.2f}")
    print(f"over {metrics['clean_tasks']} fresh tasks (seed {card['seed']})")


@app.command()
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
    out: Annotated[
        Path | None,
        typer.Option(help="The run's directory (default runs/attack-ENV-<config hash>)."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Save the target's score per round here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train attackers against an agent, which they see only from outside."""
    from mithridate.config import AttackConfig, resolve
    from mithridate.envs import env_of
    from mithridate.progress import TrainingProgress
    from mithridate.report.figures import check_figure, training_curves
    from mithridate.training.attack import LearnedAttack, default_directory, with_fingerprint
    from mithridate.training.attack import attack as run
    from mithridate.training.run_directory import read_log

    config = resolve(
        AttackConfig, "attack", env, preset, sets or (),
        target=target, eps=eps, budget=budget, rounds=rounds, seed=seed,
    )  # fmt: skip
    config = with_fingerprint(config)
    if figure is not None:
        check_figure(figure)
    directory = out or default_directory(config)
    with TrainingProgress(f"attack {target}") as progress:
        learned = LearnedAttack(run(config, directory, [progress]))
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
        f"{metrics['final_mean']:.2f} ± {metrics['final_ci95']:.2f} "
        f"({config.tasks} tasks, eps {config.eps:g}, norm {metrics['used_norm_mean']:.2f} on "
        f"average, {metrics['used_norm_max']:.2f} at most, budget {config.budget:g}, "
        f"seed {config.seed})"
    )


@app.command()
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
            "files of `mithridate attack`, or learned(AGENT) and adaptive(AGENT), which train "
            "attackers now; plain learned or adaptive does that against every agent."
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
    from mithridate.agents.resolve import make_victims, split_names
    from mithridate.config import EvaluateConfig, resolve
    from mithridate.evaluation.columns import make_columns
    from mithridate.evaluation.crossplay import evaluate_config
    from mithridate.progress import TrainingProgress, counting
    from mithridate.report.figures import check_figure, score_curves
    from mithridate.report.tables import evaluation_table

    config = resolve(
        EvaluateConfig, "evaluate", env, preset, sets or (), seed=seed, tasks=tasks,
        replications=replications, eps=eps, budget=budget,
        attackers=None if attackers is None else tuple(split_names(attackers, "--attackers")),
    )  # fmt: skip
    if figure is not None:
        check_figure(figure)
    names = split_names(agents)
    victims = make_victims(names)  # a wrong name should not cost the time of the ones before it
    with TrainingProgress("attack") as progress:
        columns = make_columns(
            config, victims, lambda label, r: [progress.another(f"attack {label} #{r + 1}")]
        )
    blocks = -(-config.tasks // config.block)
    episodes = sum(v.episodes() for v in victims)
    total = episodes * len(columns) * config.replications * blocks * config.env.horizon
    with counting(f"evaluate {env}", total) as on_step:
        evaluation = evaluate_config(config, names, columns=columns, on_step=on_step)
    if figure is not None:
        score_curves(evaluation, figure)
    if as_json:
        print_json(evaluation.to_json())
    else:
        wide_console().print(evaluation_table(evaluation))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where attackers and the figure go.")] = Path(
        "demo_output"
    ),
) -> None:
    """Train attackers live against AT-DPT, DPT, TS and crUCB, and show who survives whom."""
    from mithridate.demo import run

    run(out, wide_console())


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show versions, cores, device, native kernels, extras and shipped models."""
    from mithridate.doctor import examine

    found = examine()
    if as_json:
        print_json(found)
        return
    table = Table(show_header=False, box=None)
    for key, value in found.items():
        rows = value.items() if isinstance(value, dict) else [("", value)]
        for name, item in rows:
            shown = {True: "yes", False: "no"}.get(item, item) if isinstance(item, bool) else item
            text = ", ".join(shown) or "none" if isinstance(shown, list) else str(shown)
            table.add_row(f"{key.replace('_', ' ')} {name}".strip(), text)
    Console().print(table)


@app.command()
def bench(
    threads: Annotated[int, typer.Option(min=1, help="CPU threads for us and for the peers.")] = 2,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes: shows that it works, not how fast.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time training steps and rollouts against named peers, side by side in one run."""
    from mithridate.bench.report import bench_tables
    from mithridate.bench.run import FULL, QUICK
    from mithridate.bench.run import bench as run_bench

    progress = Console(stderr=True)
    say = (lambda text: progress.print(f"… {text}")) if progress.is_terminal else lambda text: None
    document = run_bench(QUICK if quick else FULL, threads, say)
    if as_json:
        print_json(document)
    else:
        for table in bench_tables(document):
            Console().print(table)


picture.add_to(app)
experiments.add_to(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command; the exit code."""
    try:
        code = app(args=arguments, prog_name="mithridate", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserError as error:
        return _fail(error, 2)
    except TrainingDiverged as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # whoever read our output has gone, e.g. `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Interrupted as error:
        return _fail(f"{error}; the same command goes on from there", 130)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # type: ignore[attr-defined]
            return 0
        if hasattr(error, "format_message"):  # typer's own, whatever click it is built on
            return _fail(_usage(error), 2)
        raise


def _usage(error: Any) -> str:
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mithridate"
    return f"{message[:1].lower()}{message[1:]} (see {path} --help)"


def _fail(message: object, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
