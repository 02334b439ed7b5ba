"""The store: content-addressed artifacts on a path that several processes may share.

    artifacts/<kind>-<key>/   finished: files and manifest.json with their checksums
    work/<kind>-<key>/        unfinished; whoever goes on with it starts from its checkpoint
    claims/<kind>-<key>.<n>   who is working on it (claims.py)
    graphs/<plan>.json        what was asked for, for reports and for `gc`
    damaged/                  artifacts that were found damaged when they were computed again
    trash/                    what `gc` took away (upkeep.py)

An artifact appears by one rename, so there is no moment at which half of it can be seen. Reading
changes nothing: a damaged artifact counts as absent, and only who computes it again puts it aside.

A store may come from anybody. Every name has a fixed form (formats.py), and every path is proved to
lie inside the store, links resolved, before anything is read, moved or removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mithridate.errors import UserError
from mithridate.experiments import formats
from mithridate.experiments.artifacts import MANIFEST, Artifact, check, listing, only_files
from mithridate.experiments.claims import Claim, Claims
from mithridate.experiments.formats import Graph, parsed, stage_name
from mithridate.files import (
    inside,
    make_directory,
    parse_json,
    read_json_object,
    reason,
    shown,
    write_atomic,
)
from mithridate.versions import versions

FORMAT = 1
MARKER = "store.json"
OUT = "out"
FOLDERS = ("artifacts", "work", "claims", "graphs", "damaged")


class Store:
    def __init__(self, root: Path | str, claim_seconds: float | None = None) -> None:
        self.root = _place(root)
        self.claims = Claims(lambda: self.folder("claims"), claim_seconds)
        self.problems: dict[str, str] = {}
        """What was found to be wrong with which artifact, so far."""
        self._verified: dict[str, Artifact] = {}

    @classmethod
    def find(cls, root: Path | str) -> Store | None:
        """The store that is there, None if nothing is there. A UserError if something else is, or
        a store of another version. Nothing is written."""
        path = _place(root)
        try:
            if not path.exists() or (path.is_dir() and not _visible(path)):
                return None
            found = path.is_dir() and os.path.lexists(path / MARKER)
        except OSError as error:
            raise UserError(f"cannot read --store {shown(root)}: {reason(error)}") from None
        if not found:
            raise UserError(f"{shown(root)} exists and is not a store; choose another --store")
        try:
            known = read_json_object(inside(path, MARKER), "file").get("format")
            if type(known) is not int:
                raise UserError(f"file {shown(path / MARKER)} is damaged: no format")
        except UserError as error:
            raise UserError(f"{error}; a store has a {MARKER} with {_marker()}") from None
        if known != FORMAT:
            raise UserError(
                f"store {shown(root)} has format {known}, this version of mithridate reads "
                f"{FORMAT}; use the version that made it, or choose another --store"
            )
        return cls(root)

    @classmethod
    def open(cls, root: Path | str) -> Store:
        """An existing store, or a new one in an empty place; it can be written to."""
        store = cls.find(root)
        if store is None:
            store = cls(root)
            make_directory(store.root)
            write_atomic(store.root / MARKER, _marker() + "\n")
        for name in FOLDERS:
            make_directory(store.folder(name))
        return store

    def folder(self, name: str) -> Path:
        """One of the store's folders; a UserError if a link, or anything else, is in its place."""
        path = self.root / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise UserError(
                f"{shown(path)} is not a folder of the store's own; a store that has links in it "
                "is not used: put the folder itself there, or choose another --store"
            )
        return path

    def entry(self, folder: str, name: str) -> Path:
        """A stage's place in one of the folders, which may be empty, or have a link in it."""
        return self.folder(folder) / stage_name(name)

    def listed(self, folder: str) -> list[str]:
        """The names in one of the folders."""
        path = self.folder(folder)
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read {shown(path)}: {reason(error)}") from None

    # Artifacts -------------------------------------------------------------------------------

    def get(self, name: str) -> Artifact | None:
        """The finished artifact, its checksums verified; None if there is none, or a damaged one
        (then `problems` says what is wrong with it)."""
        if name in self._verified:
            return self._verified[name]
        path = self.entry("artifacts", name)
        self.problems.pop(name, None)
        if not os.path.lexists(path):
            return None
        try:
            manifest = check(path)
        except ValueError as error:
            self.problems[name] = str(error)
            return None
        artifact = Artifact(name, path, manifest)
        self._verified[name] = artifact
        return artifact

    def names(self) -> list[str]:
        """Of all artifacts, the damaged ones included."""
        return [n for n in self.listed("artifacts") if re.fullmatch(formats.STAGE, n)]

    def _set_aside(self, folder: str, name: str) -> None:
        """Move what is damaged out of the way; a link as it is. Only who has the claim does."""
        target = self.folder("damaged") / f"{name}-{uuid.uuid4().hex[:8]}"
        try:
            os.rename(self.entry(folder, name), target)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UserError(f"cannot move {folder}/{name} away: {reason(error)}") from None

    def work(self, name: str) -> Path:
        """Where an unfinished stage keeps its files; the results go to `out` there. For who has
        the claim: what was left there and cannot be ours is set aside."""
        path = self.entry("work", name)
        if os.path.lexists(path) and not only_files(path):
            self._set_aside("work", name)
        shutil.rmtree(path / OUT, ignore_errors=True)  # results of somebody who did not get through
        make_directory(path / OUT)
        return path

    def publish(self, name: str, description: dict[str, Any], seconds: float) -> Artifact:
        """Turn what is in the work directory's `out` into the artifact; the rest is dropped. For
        who has the claim: a damaged artifact in its place is set aside."""
        work = inside(self.root, "work", stage_name(name), OUT)
        manifest = {
            "name": name, **description, "files": listing(work), "seconds": round(seconds, 3),
            "host": socket.gethostname(), "versions": versions(),
        }  # fmt: skip
        write_atomic(work / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        target = self.entry("artifacts", name)
        self._verified.pop(name, None)
        if os.path.lexists(target) and self.get(name) is None:
            self._set_aside("artifacts", name)
        try:
            os.rename(work, target)
        except OSError as error:
            if self.get(name) is None:  # otherwise it has appeared in the meantime
                raise UserError(f"cannot write {shown(target)}: {reason(error)}") from None
        shutil.rmtree(work.parent, ignore_errors=True)
        found = self.get(name)
        if found is None:
            problem = self.problems.get(name, "it has gone")
            raise UserError(f"artifact {name} was damaged while it was written: {problem}")
        return found

    # Claims and graphs -----------------------------------------------------------------------

    def claim(self, name: str) -> AbstractContextManager[Claim | None]:
        """A claim while this process has the stage to itself; None if somebody else has."""
        return self.claims.hold(name)

    def claimed(self, name: str) -> bool:
        """Whether somebody seems to be working on it; for who looks on."""
        return self.claims.alive(name)

    def remember(self, name: str, graph: dict[str, Any]) -> None:
        """Keep what was asked for under `name`."""
        text = json.dumps(graph) + "\n"
        try:
            if parsed(Graph, parse_json(text)).name != name:
                raise ValueError("it has another name")
        except ValueError as error:
            raise UserError(f"the plan '{shown(name)}' cannot be kept: {error}") from None
        if len(text) > formats.GRAPH_LIMIT:
            raise UserError(f"the plan {name} has too many stages; lower --replications")
        write_atomic(self.folder("graphs") / f"{name}.json", text)

    def graphs(self) -> dict[str, Graph]:
        """What was asked for. A UserError that names the file, if one is not a graph."""
        return {graph.name: graph for name in self.graph_files() if (graph := self.graph(name))}

    def graph(self, file: str) -> Graph:
        """One of them, by the name of its file."""
        if formats.strangers([file], rf"{formats.PLAN}\.json"):
            raise UserError(f"{shown(self.root / 'graphs' / file)} is no graph; move it away")
        return formats.read_graph(inside(self.root, "graphs", file))

    def graph_files(self) -> list[str]:
        """Hidden files are what interrupted writing left."""
        return [name for name in self.listed("graphs") if not name.startswith(".")]


def _place(root: Path | str) -> Path:
    """Where a store is, links resolved."""
    text = str(root)
    if shown(text, len(text)) != text:
        raise UserError(f"--store '{shown(text)}': a name without control characters is needed")
    try:
        if os.path.islink(text) and not os.path.exists(text):
            raise UserError(f"--store {shown(text)} is a link to nowhere; choose another")
        os.stat(text)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise UserError(f"--store {shown(text)}: {reason(error)}") from None
    try:
        return Path(root).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"--store {shown(text)}: {reason(error)}") from None


def _marker() -> str:
    return json.dumps({"format": FORMAT})


def _visible(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if not name.startswith(".")]
