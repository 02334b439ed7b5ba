"""`mithridate reproduce`, `store` and `report`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from mithridate.commands.options import Json, Preset, print_json, wide_console
from mithridate.errors import UserError
from mithridate.files import shown

if TYPE_CHECKING:
    from mithridate.experiments.stages import Stage
    from mithridate.experiments.store import Store

StoreDirectory = Annotated[
    Path, typer.Option("--store", help="Where results are kept.", metavar="DIR")
]
DEFAULT_STORE = Path("store")
FEW_STAGES = 40
"""So many are shown one by one."""


def reproduce(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe, or all.", metavar="RECIPE")
    ] = None,
    preset: Preset = "laptop",
    replications: Annotated[
        int | None, typer.Option(help="Independent repetitions (default: the recipe's).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of all random streams.")] = 0,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="STAGE.KEY=VALUE",
            help="Override a setting of a stage, e.g. --set pretrain.steps=8000. May be repeated.",
        ),
    ] = None,
    store: StoreDirectory = DEFAULT_STORE,
    executor: Annotated[
        str, typer.Option(help="inline (this process), processes, or ray.")
    ] = "inline",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Local processes (default: cores).")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster.")] = None,
    shipped: Annotated[
        bool,
        typer.Option(
            "--shipped", help="Take shipped models where they are what a training would give."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what is done and what is to do.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --dry-run: every stage, however many.")
    ] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    as_json: Json = False,
) -> None:
    """Compute a table or figure of the paper; what is done already is not done again.

    Interrupt it at any time: the same command goes on where it stopped. Several may work on the
    same store at once.
    """
    from mithridate.experiments.estimate import readable, seconds
    from mithridate.experiments.executors import check_executor, run_graph
    from mithridate.experiments.left_out import left_out
    from mithridate.experiments.plan import check_size, plan
    from mithridate.experiments.recipes import RECIPES, recipe_named
    from mithridate.experiments.stages import in_order, looks_shipped
    from mithridate.experiments.store import Store
    from mithridate.progress import GraphProgress

    if list_them:
        table = Table(title="Recipes, with an estimate of the time on this machine")
        for column in ("recipe", "what it is", "smoke", "laptop"):
            table.add_column(column)
        for one in RECIPES.values():
            times = [readable(seconds(plan(one, p).stages(), None)) for p in ("smoke", "laptop")]
            table.add_row(one.name, one.title, *times)
        wide_console().print(table)
        return
    if recipe is None:
        raise UserError(f"which recipe? one of {', '.join(RECIPES)}, or all (see --list)")
    check_executor(executor, workers, address)
    wanted = list(RECIPES.values()) if recipe == "all" else [recipe_named(recipe)]
    check_size(wanted, preset, replications)
    asked = [plan(one, preset, replications, seed, sets or ()) for one in wanted]
    there = Store.find(store)
    plans = []
    for whole in asked:
        possible, lines = left_out(whole, there, shipped)
        plans.append(possible)
        for line in lines:
            print(f"warning: {line}", file=sys.stderr)
    stages = in_order([stage for one in plans for stage in one.stages()])
    if dry_run:
        _show_stages(stages, there, shipped, verbose)
        return
    opened = Store.open(store)
    for planned in plans:
        opened.remember(planned.name, planned.describe())

    def time_left(left: Iterable[Stage]) -> float:
        return seconds([s for s in left if not (shipped and looks_shipped(s))], opened)

    with GraphProgress(time_left) as progress:
        run_graph(
            stages, opened, executor, workers=workers, address=address, shipped=shipped,
            watcher=progress,
        )  # fmt: skip
    if as_json:
        records = [r for s in stages if (a := opened.get(s.name)) for r in a.records()]
        print_json({"computed": progress.computed, "stages": len(stages), "records": records})
        return
    print(f"{len(stages)} stages, {len(progress.computed)} computed now, in {store}")
    print(f"next: mithridate report --store {store}")


def _show_stages(stages: list[Stage], store: Store | None, shipped: bool, verbose: bool) -> None:
    """What is done and what is to do: every stage if there are few or all are wanted, else how
    many there are of each kind."""
    from mithridate.experiments.estimate import readable, seconds

    states = {stage.name: _state(stage, store, shipped) for stage in stages}
    open_states = ("to do", "running")
    left = [stage for stage in stages if states[stage.name] in open_states]
    rows: list[tuple[str, ...]] = []
    if verbose or len(stages) <= FEW_STAGES:
        heads = ("stage", "what it is", "state", "estimate")
        for stage in stages:
            mine = readable(seconds([stage], store)) if states[stage.name] in open_states else ""
            rows.append((stage.name, stage.label, states[stage.name], mine))
    else:
        heads = ("kind", "state", "stages", "estimate")
        groups: dict[tuple[str, str], list[Stage]] = {}
        for stage in stages:
            groups.setdefault((stage.kind, states[stage.name]), []).append(stage)
        for (kind, state), some in groups.items():
            time = readable(seconds(some, store)) if state in open_states else ""
            rows.append((kind, state, str(len(some)), time))
    table = Table(title="Stages")
    for head in heads:
        table.add_column(head, justify="right" if head in ("stages", "estimate") else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    wide_console().print(table)
    if not verbose and len(stages) > FEW_STAGES:
        print("every stage: --verbose")
    print(f"{len(stages)} stages, {len(left)} to do, about {readable(seconds(left, store))}")
    _warn(store)


def _state(stage: Stage, store: Store | None, shipped: bool) -> str:
    from mithridate.experiments.stages import looks_shipped

    if store is not None and store.get(stage.name) is not None:
        return "done"
    if store is not None and store.claimed(stage.name):
        return "running"
    return "shipped" if shipped and looks_shipped(stage) else "to do"


def _warn(store: Store | None) -> None:
    """Say how many of the artifacts that were looked at are damaged."""
    if store is not None and store.problems:
        count = len(store.problems)
        print(
            f"warning: {count} damaged artifact{'s' * (count > 1)} left out; see "
            "`mithridate store verify`, `mithridate reproduce` computes what is missing",
            file=sys.stderr,
        )


def report(
    store: StoreDirectory = DEFAULT_STORE,
    out: Annotated[
        Path, typer.Option(help="The page; tables and figures go into a folder beside it.")
    ] = Path("report.html"),
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page on this machine, refreshing itself.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="For --watch; 0 takes a free one.")
    ] = 8123,
) -> None:
    """Make one HTML page of everything in a store, with tables and figures as files beside it."""
    from mithridate.report.html import write_report
    from mithridate.report.views import omissions
    from mithridate.report.watch import server

    opened = _existing(store)
    if watch:
        with server(opened, port) as serving:
            print(f"http://127.0.0.1:{serving.server_port}/ (stop with Ctrl-C)", flush=True)
            serving.serve_forever()
        return
    written = write_report(opened, out)
    for text in omissions(opened):
        print(f"warning: {text}", file=sys.stderr)
    print(written[0])
    if len(written) > 1:
        print(f"{len(written) - 1} files in {written[1].parent}")


store_app = typer.Typer(help="Look after a store of results.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `app`."""
    app.command()(reproduce)
    app.command()(report)
    app.add_typer(store_app, name="store")


def _existing(path: Path) -> Store:
    """The store that is there; nothing is written."""
    from mithridate.experiments.store import Store

    found = Store.find(path)
    if found is None:
        raise UserError(f"there is no store in {shown(path)}; `mithridate reproduce` makes one")
    return found


@store_app.command("ls")
def store_ls(store: StoreDirectory = DEFAULT_STORE, as_json: Json = False) -> None:
    """List finished artifacts."""
    opened = _existing(store)
    found = [a for name in opened.names() if (a := opened.get(name))]
    _warn(opened)
    if as_json:
        print_json({"artifacts": [a.manifest.model_dump() for a in found]})
        return
    table = Table()
    for column in ("artifact", "what it is", "seconds", "kB"):
        table.add_column(column, justify="right" if column in ("seconds", "kB") else "left")
    for a in found:
        size = sum(file.bytes for file in a.manifest.files.values()) / 1000
        row = (a.name, a.manifest.label, f"{a.seconds:.1f}", f"{size:.0f}")
        table.add_row(*map(Text, row))
    wide_console().print(table)


@store_app.command("verify")
def store_verify(store: StoreDirectory = DEFAULT_STORE) -> None:
    """Check every artifact, graph and claim; nothing is changed. Exit code 1 if one is damaged.

    `mithridate reproduce` computes damaged artifacts again.
    """
    from mithridate.experiments.upkeep import verify

    opened = _existing(store)
    problems = verify(opened)
    for name, problem in problems.items():
        print(f"damaged: {name}: {problem}")
    print(f"{len(opened.names())} artifacts, {len(problems)} damaged")
    if problems:
        raise typer.Exit(1)


@store_app.command("gc")
def store_gc(
    store: StoreDirectory = DEFAULT_STORE,
    empty: Annotated[
        bool, typer.Option("--empty-trash", help="Remove for good what is in the trash.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
) -> None:
    """Move to the trash what no recipe that was run asks for, and what dead workers left behind.

    The trash is a folder in the store; `--empty-trash` removes what is in it.
    """
    from mithridate.experiments.upkeep import collect, empty_trash, garbage, trash

    opened = _existing(store)
    if empty:
        found = trash(opened) if dry_run else empty_trash(opened)
        done = "removed for good"
    else:
        found = garbage(opened) if dry_run else collect(opened)
        done = "moved to the trash"
    for path in found:
        print(shown(path.relative_to(opened.root)))
    print(f"{len(found)} {'would be ' if dry_run else ''}{done}")
    if found and not empty and not dry_run:
        print(f"to remove them for good: mithridate store gc --empty-trash --store {store}")
