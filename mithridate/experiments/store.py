"""The store: content-addressed artifacts on a path that several processes may share.

    artifacts/<kind>-<key>/   finished: files and manifest.json with their checksums
    work/<kind>-<key>/        unfinished; whoever goes on with it starts from its checkpoint
    claims/<kind>-<key>.<n>   who is working on it: touched every few seconds while alive
    graphs/<recipe>.json      what was asked for, for reports and for `gc`
    damaged/                  artifacts that failed their checksums; never used

An artifact appears by one rename, so there is no moment at which half of it can be seen. A claim
that has not been touched for a while belongs to a dead worker; it is taken over by laying the next
one, a file that only one of several takers can make.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mithridate.errors import UserError
from mithridate.files import make_directory, write_atomic
from mithridate.versions import versions

MANIFEST = "manifest.json"
OUT = "out"
CLAIM_SECONDS = 30.0
"""A claim that is older than this is a dead worker's."""


@dataclass(frozen=True)
class Artifact:
    """A finished stage."""

    name: str
    path: Path
    manifest: dict[str, Any]

    @property
    def seconds(self) -> float:
        return float(self.manifest["seconds"])

    def records(self) -> list[dict[str, Any]]:
        """The lines of records.jsonl, if it has any."""
        path = self.path / "records.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Claim:
    store: Store
    name: str
    path: Path

    def held(self) -> bool:
        """False if this process was taken for dead and somebody else has gone on."""
        found = self.store._claims(self.name)
        return bool(found) and found[-1] == self.path


def _number(claim: Path) -> int:
    return int(claim.suffix[1:])


class Store:
    def __init__(self, root: Path | str, claim_seconds: float | None = None) -> None:
        self.root = Path(root).resolve()
        self.claim_seconds = claim_seconds or _claim_seconds()
        self._verified: dict[str, Artifact] = {}

    @classmethod
    def open(cls, root: Path | str) -> Store:
        """An existing store, or a new one in an empty place."""
        path = Path(root)
        marker = path / "store.json"
        if not marker.exists():
            foreign = path.exists() and (not path.is_dir() or any(_visible(path)))
            if foreign and not marker.exists():  # it may have been made just now
                raise UserError(f"{path} exists and is not a store; choose another --store")
            make_directory(path)
            write_atomic(marker, json.dumps({"format": 1}) + "\n")
        for name in ("artifacts", "work", "claims", "graphs", "damaged"):
            make_directory(path / name)
        return cls(path)

    # Artifacts -------------------------------------------------------------------------------

    def get(self, name: str) -> Artifact | None:
        """The finished artifact, its checksums verified; None if there is none, or a damaged one
        (which is moved out of the way)."""
        if name in self._verified:
            return self._verified[name]
        path = self.root / "artifacts" / name
        if not path.is_dir():
            return None
        problem = check(path)
        if problem is not None:
            self._set_aside(path)
            return None
        artifact = Artifact(name, path, json.loads((path / MANIFEST).read_text()))
        self._verified[name] = artifact
        return artifact

    def names(self) -> list[str]:
        return sorted(p.name for p in (self.root / "artifacts").iterdir() if p.is_dir())

    def _set_aside(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # somebody else was quicker
            os.replace(path, self.root / "damaged" / f"{path.name}-{uuid.uuid4().hex[:8]}")

    def work(self, name: str) -> Path:
        """Where an unfinished stage keeps its files; the results go to `out` there."""
        path = self.root / "work" / name
        make_directory(path / OUT)
        return path

    def publish(self, name: str, description: dict[str, Any], seconds: float) -> Artifact:
        """Turn what is in the work directory's `out` into the artifact; the rest is dropped."""
        work = self.root / "work" / name / OUT
        files = {
            str(p.relative_to(work)): {"sha256": _sha256(p), "bytes": p.stat().st_size}
            for p in sorted(work.rglob("*"))
            if p.is_file() and p.name != MANIFEST
        }
        manifest = {
            **description, "files": files, "seconds": round(seconds, 3),
            "host": socket.gethostname(), "versions": versions(),
        }  # fmt: skip
        write_atomic(work / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        target = self.root / "artifacts" / name
        try:
            os.rename(work, target)
        except OSError:  # it has appeared in the meantime
            if not target.is_dir():
                raise
        shutil.rmtree(work.parent, ignore_errors=True)
        found = self.get(name)
        if found is None:
            raise UserError(f"artifact {name} was damaged while it was written; run again")
        return found

    # Claims ----------------------------------------------------------------------------------

    @contextmanager
    def claim(self, name: str) -> Iterator[Claim | None]:
        """A claim while this process has the stage to itself; None if somebody else has."""
        path = self._take(name)
        if path is None:
            yield None
            return
        stop = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(path, stop), daemon=True)
        keeper.start()
        try:
            yield Claim(self, name, path)
        finally:
            stop.set()
            keeper.join()
            for old in self._claims(name):  # those of the dead before us, and our own last
                if _number(old) <= _number(path):
                    old.unlink(missing_ok=True)

    def claimed(self, name: str) -> bool:
        """Whether somebody alive is working on it."""
        found = self._claims(name)
        return bool(found) and self._age(found[-1]) < self.claim_seconds

    def _claims(self, name: str) -> list[Path]:
        """All claims ever laid to a stage and not lifted, the latest last."""
        found = (self.root / "claims").glob(f"{name}.*")
        return sorted(found, key=_number)

    def _take(self, name: str) -> Path | None:
        """Lay the next claim, unless the latest is alive. Of several takers of a dead one, all try
        to make the same file, and only one of them can."""
        found = self._claims(name)
        if found and self._age(found[-1]) < self.claim_seconds:
            return None
        number = _number(found[-1]) + 1 if found else 0
        path = self.root / "claims" / f"{name}.{number}"
        try:
            with path.open("x") as file:
                file.write(f"{socket.gethostname()} {os.getpid()}\n")
        except FileExistsError:
            return None
        # Somebody who saw no claim at all may have laid a lower one in the meantime: it goes first.
        for other in self._claims(name):
            if _number(other) < number and self._age(other) < self.claim_seconds:
                path.unlink(missing_ok=True)
                return None
        return path

    def _age(self, path: Path) -> float:
        """Seconds since the claim was touched; infinite if it is gone. Measured against a file
        written now, because a shared file system has a clock of its own."""
        try:
            touched = path.stat().st_mtime
        except FileNotFoundError:
            return float("inf")
        probe = self.root / "claims" / f".now-{uuid.uuid4().hex}"
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return max(0.0, now - touched)

    def _keep(self, path: Path, stop: threading.Event) -> None:
        while not stop.wait(self.claim_seconds / 6):
            with contextlib.suppress(OSError):
                os.utime(path)

    # Looking after it ------------------------------------------------------------------------

    def verify(self) -> dict[str, str]:
        """What is wrong with which artifact; those are set aside."""
        problems = {}
        for name in self.names():
            path = self.root / "artifacts" / name
            problem = check(path)
            if problem is not None:
                problems[name] = problem
                self._set_aside(path)
        return problems

    def remember(self, name: str, graph: dict[str, Any]) -> None:
        """Keep what was asked for under `name`."""
        write_atomic(self.root / "graphs" / f"{name}.json", json.dumps(graph, indent=1) + "\n")

    def graphs(self) -> dict[str, dict[str, Any]]:
        found = {}
        for path in sorted((self.root / "graphs").glob("*.json")):
            with contextlib.suppress(ValueError, OSError):
                found[path.stem] = json.loads(path.read_text())
        return found

    def garbage(self) -> list[Path]:
        """What no graph asks for, and what dead workers left behind."""
        wanted = {stage["name"] for graph in self.graphs().values() for stage in graph["stages"]}
        found = [self.root / "artifacts" / name for name in self.names() if name not in wanted]
        found += [
            path
            for path in (self.root / "work").iterdir()
            if not self.claimed(path.name)
            and (path.name not in wanted or (self.root / "artifacts" / path.name).exists())
        ]
        found += list((self.root / "damaged").iterdir())
        found += [p for p in (self.root / "claims").iterdir() if self._age(p) > self.claim_seconds]
        return found

    def collect(self) -> list[Path]:
        """Remove the garbage."""
        found = self.garbage()
        for path in found:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        return found


def _visible(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if not name.startswith(".")]


def _claim_seconds() -> float:
    text = os.environ.get("MITHRIDATE_CLAIM_SECONDS", str(CLAIM_SECONDS))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise UserError(f"MITHRIDATE_CLAIM_SECONDS must be a positive number, not '{text}'")
    return value


def check(path: Path) -> str | None:
    """What is wrong with the artifact in this directory, or None."""
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return "the manifest is missing or damaged"
    for name, expected in files.items():
        try:
            if (path / name).stat().st_size != expected["bytes"]:
                return f"{name} has the wrong size"
            if _sha256(path / name) != expected["sha256"]:
                return f"{name} has the wrong content"
        except OSError:
            return f"{name} is missing"
    return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
