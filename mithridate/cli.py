"""The command line. Every user error is one line on standard error and exit code 2."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mithridate.commands import experiments, picture, training
from mithridate.commands.options import (
    Budget,
    EnvName,
    Eps,
    Json,
    Preset,
    Seed,
    Sets,
    documents_apart,
    print_json,
    wide_console,
)
from mithridate.errors import Caution, Interrupted, TrainingDiverged, UserError, shown
from mithridate.evaluation.kinds import spoken
from mithridate.users_code import import_extensions

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


training.add_to(app)


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
            "few_arms, files of `mithridate attack`, or kinds that are trained now: "
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
    from mithridate.config import EvaluateConfig, resolve
    from mithridate.evaluation.columns import make_columns
    from mithridate.evaluation.crossplay import evaluate_config
    from mithridate.evaluation.victims import make_victims, split_names
    from mithridate.progress import TrainingProgress, counting
    from mithridate.report.figures import check_figure, score_curves
    from mithridate.report.terminal import evaluation_table

    config = resolve(
        EvaluateConfig, "evaluate", env, preset, sets or (), seed=seed, tasks=tasks,
        replications=replications, eps=eps, budget=budget,
        attackers=None if attackers is None else tuple(split_names(attackers, "--attackers")),
    )  # fmt: skip
    if figure is not None:
        check_figure(figure)
    names = split_names(agents)
    victims = make_victims(
        names, told(config)
    )  # a wrong name should not cost the time of the ones before it
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
    threads: Annotated[
        int, typer.Option(min=1, max=1024, help="CPU threads for us and for the peers.")
    ] = 2,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes: shows that it works, not how fast.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="<part>", help="One part: train_step, rollout, room_rollout or growth."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time training steps and rollouts against named peers, side by side in one run."""
    from mithridate.bench.report import bench_tables
    from mithridate.bench.run import FULL, QUICK
    from mithridate.bench.run import bench as run_bench

    progress = Console(stderr=True)
    say = (lambda text: progress.print(f"… {text}")) if progress.is_terminal else lambda text: None
    document = run_bench(QUICK if quick else FULL, threads, say, only)
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # letters that the terminal does not have
            stream.reconfigure(errors="backslashreplace")
    try:
        with documents_apart("--json" in arguments), _cautions_in_one_line():
            code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has gone, e.g. `… | head`
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        _drop_output()
        return _fail(f"cannot write: {error.strerror}", 2)


def _run(arguments: list[str]) -> int:
    try:
        import_extensions()
        code = app(args=arguments, prog_name="mithridate", standalone_mode=False)
        if code == 130:  # typer has turned an interrupt into this
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except UserError as error:
        return _fail(error, 2)
    except TrainingDiverged as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except Interrupted as error:
        return _fail(f"interrupted: {error}; the same command goes on from there", 130)
    except MemoryError:
        return _fail("there is not enough memory: choose smaller sizes", 2)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # type: ignore[attr-defined]
            return 0
        if hasattr(error, "format_message"):  # typer's own, whatever click it is built on
            return _fail(_usage(error), 2)
        if isinstance(error, RuntimeError) and "allocate memory" in str(error):  # PyTorch's
            return _fail("there is not enough memory: choose smaller sizes", 2)
        raise


def _usage(error: Any) -> str:
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mithridate"
    return f"{shown(f'{message[:1].lower()}{message[1:]}', 400)} (see {path} --help)"


def _fail(message: object, code: int) -> int:
    with contextlib.suppress(OSError):  # nobody is there to read it
        print(f"error: {shown(message, 1000)}", file=sys.stderr)
    return code


@contextmanager
def _cautions_in_one_line() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always", Caution)
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, Caution):
                print(f"warning: {shown(message, 400)}", file=sys.stderr)
            else:
                others(message, category, *rest, **more)

        warnings.showwarning = show
        yield


def _drop_output() -> None:
    """What is still to be printed has nowhere to go, and must not be an error at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
