"""Claims: who is working on which stage.

A claim is a file claims/<stage>.<number>, touched every few seconds while its owner is alive. One
that has not been touched for a while belongs to a dead worker; it is taken over by laying the next
one, a file that only one of several takers can make.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mithridate.errors import UserError
from mithridate.experiments.formats import CLAIM, stage_name, strangers
from mithridate.files import read_text, reason, shown
from mithridate.signals import postponed

CLAIM_SECONDS = 30.0
"""A claim that is older than this is a dead worker's."""
PROBE = ".now-"


@dataclass(frozen=True)
class Claim:
    claims: Claims
    name: str
    path: Path

    def held(self) -> bool:
        """False if this process was taken for dead and somebody else has gone on."""
        found = self.claims.laid(self.name)
        return bool(found) and found[-1] == self.path


class Claims:
    """Those in one store. `folder`: where they are, proved to be the store's own."""

    def __init__(self, folder: Callable[[], Path], seconds: float | None = None) -> None:
        self.folder = folder
        self.seconds = seconds or _seconds()

    @contextmanager
    def hold(self, name: str) -> Iterator[Claim | None]:
        """A claim while this process has the stage to itself; None if somebody else has."""
        mine = uuid.uuid4().hex
        stop = threading.Event()

        def lift() -> None:
            with postponed():
                stop.set()
                self._lift(name, mine)

        try:
            try:
                with postponed():
                    path = self.take(name, mine)
                    if path is not None:
                        threading.Thread(target=self._keep, args=(path, stop), daemon=True).start()
                yield None if path is None else Claim(self, name, path)
            finally:
                lift()
        finally:  # again, if an interrupt came just before
            lift()

    def _lift(self, name: str, mine: str) -> None:
        """Remove the claim that was laid with this mark, after those of the dead before it."""
        found = self.laid(name)
        own = [_number(path) for path in found if mine in _text(path)]
        for path in found:
            if own and _number(path) <= max(own):
                path.unlink(missing_ok=True)

    def laid(self, name: str) -> list[Path]:
        """All claims ever laid to a stage and not lifted, the latest last."""
        prefix = f"{stage_name(name)}."
        found = [path for path in self.all() if path.name.startswith(prefix)]
        for path in found:
            _check(path)
        return sorted(found, key=_number)

    def all(self) -> list[Path]:
        """Everything that is called like a claim."""
        return [p for p in self._entries() if re.fullmatch(CLAIM, p.name)]

    def problems(self) -> dict[str, str]:
        """What is in the folder and is no claim, and why."""
        found = {}
        for name in strangers([path.name for path in self._entries()], CLAIM):
            found[name] = "not the name of a claim"
        for path in self.all():
            try:
                _check(path)
            except UserError as error:
                found[path.name] = str(error)
        return found

    def take(self, name: str, mark: str = "") -> Path | None:
        """Lay the next claim, unless the latest is alive. Of several takers of a dead one, all try
        to make the same file, and only one of them can."""
        found = self.laid(name)
        if found and self.age(found[-1]) < self.seconds:
            return None
        number = _number(found[-1]) + 1 if found else 0
        path = self.folder() / f"{name}.{number}"
        try:
            with path.open("x") as file:
                file.write(f"{socket.gethostname()} {os.getpid()} {mark}\n")
        except FileExistsError:
            return None
        except OSError as error:
            raise UserError(f"cannot write {shown(path)}: {reason(error)}") from None
        # Somebody who saw no claim at all may have laid a lower one in the meantime: it goes first.
        for other in self.laid(name):
            if _number(other) < number and self.age(other) < self.seconds:
                path.unlink(missing_ok=True)
                return None
        return path

    def alive(self, name: str, *, look_on: bool = True) -> bool:
        """Whether somebody seems to be working on it; `look_on`: see `age`."""
        return any(self.age(p, look_on=look_on) < self.seconds for p in self.laid(name)[-1:])

    def age(self, path: Path, *, look_on: bool = False) -> float:
        """Seconds since the claim was touched; infinite if it is gone. A claim from the future is
        as old as one from the past. Measured against a file written now, because a shared file
        system has a clock of its own; but who only looks on must not write anything, and has to be
        content with this machine's clock."""
        try:
            touched = path.lstat().st_mtime
        except FileNotFoundError:
            return float("inf")
        if look_on:
            return abs(time.time() - touched)
        probe = self.folder() / f"{PROBE}{uuid.uuid4().hex}"
        try:
            probe.touch(exist_ok=False)
            now = probe.stat().st_mtime
        except OSError as error:
            raise UserError(f"cannot write {shown(probe)}: {reason(error)}") from None
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return abs(now - touched)

    def dead(self, *, look_on: bool = True) -> list[Path]:
        """Claims of dead workers, and what they left of looking at the clock."""
        probes = [p for p in self._entries() if p.name.startswith(PROBE)]
        found = (*self.all(), *probes)
        return [p for p in found if self.age(p, look_on=look_on) >= self.seconds]

    def _entries(self) -> list[Path]:
        folder = self.folder()
        try:
            return sorted(folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read {shown(folder)}: {reason(error)}") from None

    def _keep(self, path: Path, stop: threading.Event) -> None:
        while not stop.wait(self.seconds / 6):
            with contextlib.suppress(OSError):
                os.utime(path)


def _number(claim: Path) -> int:
    return int(claim.suffix[1:])


def _text(path: Path) -> str:
    try:
        return read_text(path, "claim", limit=1000)
    except UserError:  # lifted in the meantime, or none of ours
        return ""


def _check(path: Path) -> None:
    """Raise a UserError if it is something else than a file."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:  # lifted in the meantime
        return
    except OSError as error:
        raise UserError(f"cannot read claim {shown(path)}: {reason(error)}") from None
    if not stat.S_ISREG(kind):
        raise UserError(f"claim {shown(path)} is not a regular file; remove it")


def _seconds() -> float:
    text = os.environ.get("MITHRIDATE_CLAIM_SECONDS", str(CLAIM_SECONDS))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f"MITHRIDATE_CLAIM_SECONDS must be a positive number, not '{shown(text)}'")
    return value
