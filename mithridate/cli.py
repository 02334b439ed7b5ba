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
from typing import Annotated, Any

import typer

from mithridate.commands import evaluate, experiments, machine, picture, stress, training
from mithridate.commands.options import documents_apart
from mithridate.errors import Caution, Interrupted, TrainingDiverged, UserError, shown
from mithridate.users_code import import_extensions

app = typer.Typer(
    name="mithridate",
    help="In-context reinforcement learning that survives reward poisoning.",
    no_args_is_help=True,
    add_completion=True,
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


for commands in (training, evaluate, stress, machine, picture, experiments):
    commands.add_to(app)


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
