"""Files: written so that a crash, a kill or a full disk never damages what was there before, and
read as what they are, the words of a stranger: of a bounded size, of the right kind, and never from
outside the directory that they claim to be in."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from mithridate.errors import UserError
from mithridate.errors import shown as shown

TEXT_LIMIT = 64 * 2**20
"""Bytes of a text file (JSON, log); no honest one is larger."""
DATA_LIMIT = 8 * 2**30
"""Bytes of a file of tensors."""
LARGEST_INTEGER = 2**63 - 1
DEEPEST = 50
"""Levels of nested JSON; no honest file has more."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` as a whole, or leave it untouched and raise a UserError. A link is
    neither followed nor replaced."""
    if os.path.islink(path):
        raise UserError(f"cannot write {shown(path)}: it is a link; say where it leads")
    if isinstance(data, str):
        data = data.encode()
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise UserError(f"cannot write {shown(path)}: {reason(error)}") from None
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def make_directory(path: Path) -> None:
    """Create `path` and prove that files can be written there, or raise a UserError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write to directory {shown(path)}: {reason(error)}") from None


def read_bytes(path: Path, what: str, limit: int = DATA_LIMIT) -> bytes:
    """All of a regular file. A UserError, which calls it `what`, if it cannot be read, is of
    another kind (to open a pipe would wait for ever), or is larger than `limit`."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{what} {shown(path)} is not a regular file")
            if status.st_size > limit:
                raise UserError(
                    f"{what} {shown(path)} has {status.st_size} bytes, more than {limit}"
                )
            return file.read(status.st_size)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {what} {shown(path)}: {reason(error)}") from None


def read_text(path: Path, what: str, limit: int = TEXT_LIMIT) -> str:
    """The same as text (UTF-8)."""
    try:
        return read_bytes(path, what, limit).decode()
    except UnicodeDecodeError:
        raise UserError(f"{what} {shown(path)} is damaged: not UTF-8") from None


def read_json(path: Path, what: str, *, nan: bool = False) -> Any:
    """A JSON file; see `parse_json`."""
    text = read_text(path, what)
    try:
        return parse_json(text, nan=nan)
    except ValueError as error:
        raise UserError(f"{what} {shown(path)} is damaged: {error}") from None


def read_json_object(path: Path, what: str, *, nan: bool = False) -> dict[str, Any]:
    """A JSON file that holds an object."""
    value = read_json(path, what, nan=nan)
    if not isinstance(value, dict):
        raise UserError(f"{what} {shown(path)} is damaged: not a JSON object")
    return value


def parse_json(text: str, *, nan: bool = False) -> Any:
    """The value that a JSON text stands for. A ValueError if it is none, is nested too deeply, or
    has numbers that do not fit into 64 bits, or (unless `nan`) none at all (NaN, Infinity)."""

    def integer(digits: str) -> int:
        if len(digits) > 20 or abs(int(digits)) > LARGEST_INTEGER:
            raise _Refused("a number is too large")
        return int(digits)

    def real(digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            raise _Refused("a number is too large")
        return value

    def constant(name: str) -> float:
        if not nan:
            raise _Refused(f"{name} is not a number")
        return float(name)

    try:
        value = json.loads(text, parse_int=integer, parse_float=real, parse_constant=constant)
    except _Refused:
        raise
    except RecursionError:
        raise _Refused("nested too deeply") from None
    except ValueError:
        raise ValueError("not JSON") from None
    if deeper(value, DEEPEST):
        raise _Refused("nested too deeply")
    return value


class _Refused(ValueError):
    """JSON, but not for us."""


def deeper(value: Any, levels: int) -> bool:
    """Whether there are more than so many levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(not levels or deeper(part, levels - 1) for part in inner)


def json_or_text(text: str, where: str) -> Any:
    """A value that a user wrote: JSON, or else the text itself. What is JSON and yet refused is a
    UserError."""
    try:
        return parse_json(text)
    except _Refused as error:
        raise UserError(f"{shown(where)}: {error}") from None
    except ValueError:
        return text


def inside(root: Path, *parts: str) -> Path:
    """`root`/`parts`, proved to lie below `root`, links resolved. Whatever comes from a file goes
    through here before it is used as a path."""
    try:
        base = root.resolve()
        path = base.joinpath(*parts)
        if path.resolve() == path and path != base and base in path.parents:
            return path
    except (OSError, ValueError, RuntimeError):
        pass
    raise UserError(f"'{shown('/'.join(parts))}' does not lie inside {shown(root)}")


def reason(error: Exception) -> str:
    """Why the system refused."""
    return shown(getattr(error, "strerror", None) or str(error))
