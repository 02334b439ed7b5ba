"""`mithridate stress` and `mithridate leaderboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mithridate.commands.options import EnvName, Json, print_json, wide_console


def stress(
    env: EnvName,
    agent: Annotated[
        str,
        typer.Option(
            help="Whom to stress, as in evaluate --agents: a registered agent, a shipped model, a "
            "file, or module:Class of your own (also of MABWiser, Open Bandit Pipeline and "
            "SMPyBandits)."
        ),
    ],
    suite: Annotated[
        str,
        typer.Option(
            help="standard-v0; plus-v0, with adaptive attackers; quick-v0, in a minute; smoke-v0, "
            "in seconds. What a suite holds is fixed."
        ),
    ] = "standard-v0",
    label: Annotated[str | None, typer.Option(help="What tables call the agent.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the run (default runs/stress-ENV-AGENT-…).")
    ] = None,
    as_json: Json = False,
) -> None:
    """An honest robustness figure: the worst that a frozen suite of attacks finds against an agent.

    Attacks that learn and search are trained against this very agent. The same command goes on
    where another was stopped, and ends with the same bits.
    """
    from mithridate.progress import StressProgress
    from mithridate.stress.run import stress_test
    from mithridate.stress.terminal import stress_lines, stress_table, stress_title

    with StressProgress() as progress:
        test = stress_test(agent, env, suite, label=label, out=out, onlooker=progress)
    if as_json:
        print_json(test.entry.to_json())
        return
    console = wide_console()
    print(stress_title(test))
    console.print(stress_table(test))
    for line in stress_lines(test):
        print(line)


def leaderboard(
    folder: Annotated[
        Path, typer.Argument(help="Where the entries (*.json) are.", metavar="FOLDER")
    ] = Path("results/leaderboard"),
    out: Annotated[Path | None, typer.Option(help="The page (default FOLDER/index.html).")] = None,
    as_json: Json = False,
) -> None:
    """Check the entries of a leaderboard and make its page. Nothing in an entry is run."""
    from mithridate.stress.leaderboard import boards, read_entries, write_leaderboard

    path = write_leaderboard(folder, out)
    if not as_json:
        print(path)
        return
    ranking = [
        {"environment": board.suite.env, "suite": board.suite.name,
         "agents": [standing.entry.agent for standing in board.standings]}
        for board in boards(read_entries(folder))
    ]  # fmt: skip
    print_json({"page": str(path), "boards": ranking})


def add_to(app: typer.Typer) -> None:
    app.command()(stress)
    app.command()(leaderboard)
