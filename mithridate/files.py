"""Writing files so that a crash, a kill or a full disk never damages what was there before."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from mithridate.errors import UserError


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` as a whole, or leave it untouched and raise a UserError."""
    if isinstance(data, str):
        data = data.encode()
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise UserError(f"cannot write {path}: {error.strerror}") from None
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
    except OSError as error:
        raise UserError(f"cannot write to directory {path}: {error.strerror}") from None
