"""Errors in code that is not ours: users' agents, attackers and environments. The message says
whose they are and where, in one line; the traceback is still there as the cause."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from mithridate.errors import Interrupted, TrainingDiverged, UserError, shown

OURS = "mithridate"
EXTENSIONS = "MITHRIDATE_IMPORT"
"""The environment variable with the names of modules that are imported at the start."""


def import_module(name: str, said: str) -> ModuleType:
    """A user's module; those in the working directory count. `said`: where he named it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"{said}: cannot import {name}: {shown(error)}") from None
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{said}: cannot import {name}: {described(error)} ({last_line(error)})"
        ) from error


def import_extensions() -> None:
    """Modules that register environments, agents, attackers or kinds of attacks of the user's."""
    for name in os.environ.get(EXTENSIONS, "").split(","):
        if name.strip():
            import_module(name.strip(), EXTENSIONS)


@contextmanager
def blaming(*things: Any) -> Iterator[None]:
    """What goes wrong in the code of one of these `things`, if it is a user's, is a UserError that
    names its class and line. What goes wrong in our code stays as it is."""
    try:
        yield
    except (UserError, Interrupted, TrainingDiverged):
        raise
    except (Exception, SystemExit) as error:
        files = {path for thing in things if (path := _file(thing)) is not None}
        where = _where(error, files)
        if where is None:
            raise
        raise UserError(f"{where} raised {described(error)}") from error


def described(error: BaseException) -> str:
    """'ValueError: no such arm'."""
    text = shown(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def last_line(error: BaseException) -> str:
    """'agents.py, line 12': where an error comes from."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "?"


def _file(thing: Any) -> str | None:
    """Where the class of a user's thing is written; None if it is ours."""
    thing = getattr(thing, "wraps", thing)
    cls = thing if inspect.isclass(thing) else type(thing)
    if thing is None or cls.__module__.partition(".")[0] == OURS:
        return None
    try:
        return inspect.getfile(cls)
    except (TypeError, OSError):
        return None


def _where(error: BaseException, files: set[str]) -> str | None:
    """The innermost place of the traceback that is in one of the files."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename in files:
            found = f"{_function(frame)} ({Path(frame.f_code.co_filename).name}, line {line})"
    return found


def _function(frame: FrameType) -> str:
    """'MyAgent.act()'."""
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name
    return f"{type(owner).__name__}.{name}()" if owner is not None else f"{name}()"
