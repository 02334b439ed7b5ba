"""What commands have in common: options and ways to print."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console

EnvName = Annotated[str, typer.Argument(help="The environment, e.g. bandit.", metavar="ENV")]
Preset = Annotated[
    str, typer.Option(help="smoke (seconds), laptop, or paper (the paper's own settings).")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE",
        help="Override one setting, e.g. --set optimiser.learning_rate=0.0003. May be repeated.",
    ),
]  # fmt: skip
Seed = Annotated[int | None, typer.Option(help="Root of all random streams (default 0).")]
Eps = Annotated[float | None, typer.Option(help="Share of poisoned steps (default 0.4).")]
Budget = Annotated[
    float | None, typer.Option(help="Bound on the attack's norm (default 3, in rooms 10).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def wide_console() -> Console:
    """As wide as the terminal; in a file or a pipe, wide enough for a matrix."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


_documents: TextIO | None = None
"""Where documents go while everything else that is printed goes to standard error."""


@contextmanager
def documents_apart(wanted: bool) -> Iterator[None]:
    """If `wanted`, only what `print_json` prints goes to standard output: others' code may print,
    and would spoil the document."""
    global _documents
    if not wanted:
        yield
        return
    _documents = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _documents = None


def print_json(document: Any) -> None:
    text = json.dumps(_finite(document), indent=2, allow_nan=False)
    print(text, file=_documents or sys.stdout)


def _finite(value: Any) -> Any:
    """JSON has no word for a number that there is none of: it is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
