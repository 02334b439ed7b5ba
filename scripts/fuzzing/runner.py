"""Runs one case in a process of its own, forked from one that has everything imported.

A crash, a hang or a loss of memory takes down that case only. The watchdog kills the case's whole
process group.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from fuzzing import decoys
from fuzzing.decoys import Place
from fuzzing.jail import RESULTS, die_with_parent, limit_resources
from fuzzing.judge import judge, place_of
from fuzzing.operations import furnish
from fuzzing.plans import Ending, Failure, Plan

READ = 2**20
"""Bytes of the output that are looked at."""


class Runner:
    def __init__(self, base: Path, hang: float) -> None:
        self.place = Place(base / "tree", base / "tmp")
        self.templates = base / "templates"
        self.hang = hang
        self._stdout, self._stderr = base / "out" / "stdout", base / "out" / "stderr"
        self._said = base / "out" / "said"
        decoys.build(self.place)
        gc.collect()
        gc.freeze()  # what is shared with the children should stay so

    def run(self, plan: Plan) -> tuple[Ending, list[Failure]] | None:
        """How the case ended, and what was wrong with it. None if what it is about to change is
        not there (any more)."""
        decoys.fresh_case(self.place)
        try:
            furnish(plan.files, self.place, self.templates)
        except (LookupError, TypeError, ValueError, OSError) as error:
            print(f"void: {plan.driver}: {plan.what}: {error!r}", file=sys.stderr)
            return None
        before = decoys.snapshot(self.place)
        ending = self._fork(plan)
        changes = decoys.compare(before, decoys.snapshot(self.place))
        failures = judge(plan, ending, changes)
        if any(failure.kind == "decoy touched" for failure in failures):
            decoys.build(self.place)
        return ending, failures

    def _fork(self, plan: Plan) -> Ending:
        for path in (self._stdout, self._stderr, self._said):
            path.write_bytes(b"")
        sys.stdout.flush()
        sys.stderr.flush()
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            self._be_the_case(plan)
        hung = not _ended(child, self.hang)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # it, or what it has started
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        killed = os.WIFSIGNALED(status)
        stderr = _text(self._stderr)
        return Ending(
            code=None if killed else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if killed else None,
            hung=hung, seconds=time.monotonic() - begun, stdout=_text(self._stdout), stderr=stderr,
            frame=place_of(stderr), said=_read_said(self._said),
        )  # fmt: skip

    def _be_the_case(self, plan: Plan) -> None:
        """Never returns."""
        code = 1
        try:
            os.setsid()
            die_with_parent()
            if RESULTS in os.environ:
                os.close(int(os.environ[RESULTS]))
            said = os.open(self._said, os.O_WRONLY)
            for number, path in ((1, self._stdout), (2, self._stderr)):
                handle = os.open(path, os.O_WRONLY)
                os.dup2(handle, number)
                os.close(handle)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(self.place.case)
            limit_resources()
            code = _perform(plan, self.place, said)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 255)


def _perform(plan: Plan, place: Place, said: int) -> int:
    if plan.call:
        from fuzzing.calls import perform

        return perform(plan.call, place, said)
    from mithridate.cli import run

    return run([place.fill(word) for word in plan.arguments])


def _ended(child: int, seconds: float) -> bool:
    """Wait until the child has ended, without reaping it; False if it takes too long."""
    if not hasattr(os, "pidfd_open"):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return True
            time.sleep(0.002)
        return False
    handle = os.pidfd_open(child)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(READ).decode("utf-8", "replace")


def _read_said(path: Path) -> dict[str, str]:
    import json

    text = _text(path)
    return json.loads(text) if text else {}
