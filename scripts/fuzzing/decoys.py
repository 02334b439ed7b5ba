"""Where a case happens: deep in a tree full of things that are none of its business.

    tree/one/two/three/four/case/     the case's working directory; made anew for each
    precious/, keep.txt, …            at every level: nobody may touch them

A snapshot before and after a case says what was touched, made, changed or removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("one", "two", "three", "four")
CASE = "case"
FOLDERS = ("precious", "store-2", "runs-2", "artifacts", "graphs", "damaged", "claims", "work")
"""Decoys. Some are called as the library calls its own, so that a stray path meets something."""

Entry = tuple[str, int, int, str]
"""Kind, mode, time of the last change, and content (a digest, or where a link points)."""
Snapshot = dict[str, Entry]


@dataclass(frozen=True)
class Place:
    """The tree, and the directory of the case in it."""

    root: Path
    scratch: Path
    """Where temporary files go."""

    @property
    def case(self) -> Path:
        return self.root.joinpath(*LEVELS, CASE)

    def fill(self, text: str) -> str:
        """Cases name these places without knowing where they are."""
        return text.replace("@CASE@", str(self.case)).replace("@ROOT@", str(self.root))


def build(place: Place) -> None:
    """A fresh tree, whatever was there before."""
    _remove(place.root)
    place.root.mkdir()
    folder = place.root
    _decoys(folder)
    for name in LEVELS:
        folder /= name
        folder.mkdir()
        _decoys(folder)


def fresh_case(place: Place) -> None:
    """An empty directory for the next case, with decoys beside what it will work on."""
    _remove(place.case)
    place.case.mkdir()
    for name in ("precious", "store-2"):
        _folder(place.case / name)
    (place.case / "keep.txt").write_text("keep me\n")
    for path in place.scratch.iterdir():
        _remove(path)


def _decoys(folder: Path) -> None:
    for name in FOLDERS:
        _folder(folder / name)
    (folder / "keep.txt").write_text("keep me\n")
    (folder / "model.json").write_text('{"decoy": true}\n')


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "letter.txt").write_text("dear reader\n")
    (path / "inner").mkdir()
    (path / "inner" / "photo.bin").write_bytes(bytes(range(64)))


def _remove(path: Path) -> None:
    if not path.is_symlink() and path.is_dir():
        for folder, names, _ in os.walk(path):
            for name in names:
                inner = Path(folder, name)
                if not inner.is_symlink():
                    inner.chmod(0o700)
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()


def snapshot(place: Place) -> Snapshot:
    """Everything in the tree and among the temporary files, by path relative to the tree."""
    found: Snapshot = {}
    for top, prefix in ((place.root, ""), (place.scratch, "TMP/")):
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                found[prefix + os.path.relpath(path, top)] = _entry(path)
    return found


def _entry(path: str) -> Entry:
    status = os.lstat(path)
    kind, content = "other", ""
    if stat.S_ISLNK(status.st_mode):
        kind, content = "link", os.readlink(path)
    elif stat.S_ISDIR(status.st_mode):
        kind = "folder"
    elif stat.S_ISREG(status.st_mode):
        kind = "file"
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()[:16]
    return kind, stat.S_IMODE(status.st_mode), status.st_mtime_ns, content


@dataclass(frozen=True)
class Changes:
    """What differs between two snapshots."""

    new: list[str]
    gone: list[str]
    changed: list[str]

    def __bool__(self) -> bool:
        return bool(self.new or self.gone or self.changed)

    def below(self, *tops: str) -> Changes:
        """Those that lie at or below one of `tops`."""
        return self._where(lambda path: _within(path, tops))

    def outside(self, *tops: str) -> Changes:
        return self._where(lambda path: not _within(path, tops))

    def _where(self, keep) -> Changes:  # type: ignore[no-untyped-def]
        return Changes(*([p for p in paths if keep(p)] for paths in vars(self).values()))

    def __str__(self) -> str:
        parts = [f"{k} {p}" for k, paths in vars(self).items() for p in paths[:3]]
        return ", ".join(parts)


def compare(before: Snapshot, after: Snapshot) -> Changes:
    """A folder in which something was made or removed has a new time; that alone does not count,
    for its entries say it."""
    changed = []
    for path in before.keys() & after.keys():
        old, new = before[path], after[path]
        if old[0] == new[0] == "folder":
            old, new = (*old[:2], 0, ""), (*new[:2], 0, "")
        if old != new:
            changed.append(path)
    return Changes(
        sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys()), sorted(changed)
    )


def _within(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def in_case(*names: str) -> list[str]:
    """Paths of the case as a snapshot writes them."""
    return ["/".join((*LEVELS, CASE, name)) for name in names]
