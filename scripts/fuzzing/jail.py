"""The jail: hostile input is never met with the rights of the person who starts the fuzzer.

A throw-away tree is made, and a process that may write nothing but this tree does all the work. As
root that process is another user (`setpriv`), who may still read everything, because the
interpreter may live below a private home. As an ordinary user it has the user's own rights and
works in the tree only; that is said, for it is less.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
READ_ALL = "-all,+dac_read_search"
MEMORY = 6 * 2**30
"""Bytes of address space for a case: what asks for more would not be refused by every machine."""
PR_SET_PDEATHSIG = 1
TREE, RESULTS = "MITHRIDATE_FUZZ_TREE", "MITHRIDATE_FUZZ_RESULTS"


def reason_not_to_run() -> str | None:
    """Why hostile input cannot be tried here, or None."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "running as root, and there is no setpriv to give the rights away with"
    return None


def inside() -> bool:
    """Whether this process is the one in the jail."""
    return TREE in os.environ


def check_inside() -> Path:
    """The tree that this process may write to. Refuses to go on with root's rights."""
    if os.geteuid() == 0 or os.access("/etc/passwd", os.W_OK):
        raise SystemExit("error: this process could write to the system; start scripts/fuzz.py")
    return Path(os.environ[TREE])


@contextmanager
def throw_away_tree() -> Iterator[Path]:
    """A directory in memory if there is one: the library waits for the disk at every write."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    base = Path(tempfile.mkdtemp(prefix="mithridate-fuzz-", dir=where))
    try:
        for name in ("tree", "home", "tmp", "matplotlib", "templates", "out"):
            (base / name).mkdir()
        if os.geteuid() == 0:
            for path in (base, *base.iterdir()):
                os.chown(path, NOBODY, NOBODY)
        yield base
    finally:
        _unlock(base)
        shutil.rmtree(base, ignore_errors=True)


def _unlock(base: Path) -> None:
    """Cases leave directories behind that cannot be entered."""
    for folder, names, _ in os.walk(base):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)


def run_inside(
    base: Path, script: Path, arguments: Sequence[str], results: int | None = None
) -> int:
    """Run a Python script in the jail, in a process group of its own; its exit code. It may write
    to the open file `results`, and else only below `base`."""
    command = [sys.executable, str(script), *arguments]
    if os.geteuid() == 0:
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                   "--no-new-privs", "--pdeathsig=KILL", f"--inh-caps={READ_ALL}",
                   f"--ambient-caps={READ_ALL}", f"--bounding-set={READ_ALL}",
                   *command]  # fmt: skip
    environment = {**os.environ, **_surroundings(base)}
    kept: tuple[int, ...] = ()
    if results is not None:
        kept, environment[RESULTS] = (results,), str(results)
    process = subprocess.Popen(
        command, env=environment, pass_fds=kept, start_new_session=True, cwd=base / "out"
    )
    try:
        return process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _surroundings(base: Path) -> Mapping[str, str]:
    return {
        TREE: str(base), "HOME": str(base / "home"), "TMPDIR": str(base / "tmp"),
        "MPLCONFIGDIR": str(base / "matplotlib"), "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": "",
        "PYTHONHASHSEED": "0", "COLUMNS": "200", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def die_with_parent() -> None:
    """For a forked process in a session of its own: nobody else would end it."""
    with contextlib.suppress(OSError, AttributeError):  # there is no such thing outside Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_resources() -> None:
    """For the process of one case: memory, files and core dumps are bounded."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A file beyond the bound is an error that the program hears of, not its death.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
