"""Starts the command as a process group of its own, and kills the group.

Warm, it is forked from a process that has everything imported; cold, it is a new interpreter. Both
are real processes, and both die of SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from fuzzing.jail import die_with_parent

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate",
          "os.utime", "os.link")  # fmt: skip
"""Calls to the system that change files."""
CLAIM_SECONDS = 1.0
"""After which a dead worker's claim lapses: long before the 30 seconds of the default."""
ENVIRONMENT = {"MITHRIDATE_CLAIM_SECONDS": str(CLAIM_SECONDS), "OMP_NUM_THREADS": "1",
               "OMP_WAIT_POLICY": "passive"}  # fmt: skip


@dataclass
class Running:
    pid: int
    begun: float
    output: Path

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by itself."""
        handle = os.pidfd_open(self.pid)
        try:
            return bool(select.select([handle], [], [], max(0.0, seconds))[0])
        finally:
            os.close(handle)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Wait for it; its exit code, or minus the signal that it died of. What it has started
        goes with it."""
        status = os.waitpid(self.pid, 0)[1]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status)


def start(words: tuple[str, ...], folder: Path, cold: bool, event: int | None = None) -> Running:
    """`event`: it is killed just before so many-eth event in its working directory."""
    output = folder.with_suffix(".out")
    begun = time.monotonic()
    if cold:
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "mithridate", *words], cwd=folder, stdout=file, stderr=file,
                start_new_session=True, env={**os.environ, **ENVIRONMENT},
            )  # fmt: skip
        process.returncode = 0  # it is ours to wait for
        return Running(process.pid, begun, output)
    output.write_bytes(b"")
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_the_command(words, folder, output, event)
    return Running(child, begun, output)


def _be_the_command(words: tuple[str, ...], folder: Path, output: Path, event: int | None) -> None:
    """Never returns."""
    code = 1
    try:
        os.setsid()
        die_with_parent()
        handle = os.open(output, os.O_WRONLY)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(folder)
        os.environ.update(ENVIRONMENT)
        if event is not None:
            _count_events(folder, event)
        from mithridate.cli import run

        code = run(list(words))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _count_events(folder: Path, last: int) -> None:
    """Die before event number `last`; with -1, write down in the end how many there were."""
    seen = 0
    top = str(folder)

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if name not in EVENTS or not arguments or not isinstance(arguments[0], str | os.PathLike):
            return
        if name == "open" and not _writes(arguments):
            return
        path = os.fspath(arguments[0])
        if isinstance(path, bytes) or (os.path.isabs(path) and not path.startswith(top)):
            return
        seen += 1
        if seen == last:
            os.killpg(0, signal.SIGKILL)
        if last < 0:
            os.write(counter, b".")

    if last < 0:
        counter = os.open(folder.with_suffix(".events"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.addaudithook(hook)


def _writes(arguments: tuple[object, ...]) -> bool:
    mode, flags = (*arguments, None, None)[1:3]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
