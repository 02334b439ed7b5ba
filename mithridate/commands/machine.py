"""`mithridate demo`, `doctor` and `bench`: what this machine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mithridate.commands.options import Json, print_json, wide_console


def demo(
    out: Annotated[Path, typer.Option(help="Where attackers and the figure go.")] = Path(
        "demo_output"
    ),
) -> None:
    """Train attackers live against AT-DPT, DPT, TS and crUCB, and show who survives whom."""
    from mithridate.demo import run

    run(out, wide_console())


def doctor(as_json: Json = False) -> None:
    """Show versions, cores, accelerator, native kernels, extras and shipped models."""
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
            metavar="<part>",
            help="One part: train_step, rollout, room_rollout, view_rollout, one_bandit, growth, "
            "episodes, two_at_once, rounds or startup.",
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


def add_to(app: typer.Typer) -> None:
    for command in (demo, doctor, bench):
        app.command()(command)
