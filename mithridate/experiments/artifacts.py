"""Artifacts: the files of a finished stage, and whether they are what their manifest says."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mithridate.errors import UserError
from mithridate.experiments import formats
from mithridate.experiments.formats import Manifest, parsed
from mithridate.files import TEXT_LIMIT, inside, read_bytes, read_json_object, read_text, shown

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Artifact:
    """A finished stage, its files verified."""

    name: str
    path: Path
    manifest: Manifest

    @property
    def seconds(self) -> float:
        return self.manifest.seconds

    def content(self, name: str) -> Any:
        """One of the files that `formats.CONTENTS` knows, parsed; None if it has no such file."""
        if name not in self.manifest.files:
            return None
        text = read_text(inside(self.path, name), f"file of artifact {self.name}")
        try:
            return formats.CONTENTS[name](text)
        except ValueError as error:
            raise UserError(f"artifact {self.name} is damaged: {name}: {error}") from None

    def records(self) -> list[dict[str, Any]]:
        """The lines of records.jsonl, if it has any."""
        return self.content("records.jsonl") or []

    def log(self) -> list[dict[str, Any]]:
        """The lines of log.jsonl, if it has any."""
        return self.content("log.jsonl") or []


def only_files(path: Path, depth: int = 5) -> bool:
    """Whether there are only folders and regular files in it, and it is a folder itself. Training
    would write through a link, and wait at a pipe."""
    if path.is_symlink() or not path.is_dir() or not depth:
        return False
    with os.scandir(path) as entries:
        return all(
            only_files(Path(entry.path), depth - 1)
            if entry.is_dir(follow_symlinks=False)
            else entry.is_file(follow_symlinks=False)
            for entry in entries
        )


def listing(out: Path) -> dict[str, dict[str, Any]]:
    """Name, checksum and size of every file in a directory."""
    found = {}
    for path in sorted(out.iterdir()):
        if path.name != MANIFEST:
            data = read_bytes(inside(out, path.name), "result", formats.FILE_LIMIT)
            found[path.name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    return found


def check(path: Path) -> Manifest:
    """The manifest of the artifact in this directory; a ValueError that says what is wrong if its
    files are not what it says, or something else than files."""
    if path.is_symlink() or not path.is_dir():
        raise ValueError("it is not a folder")
    try:
        manifest = parsed(Manifest, read_json_object(inside(path, MANIFEST), "manifest"))
    except (UserError, ValueError) as error:
        raise ValueError(f"the manifest is missing or damaged: {_unnamed(error, path)}") from None
    if manifest.name != path.name:
        raise ValueError(f"the manifest is that of {manifest.name}")
    for name, expected in manifest.files.items():
        limit = TEXT_LIMIT if name in formats.CONTENTS else formats.FILE_LIMIT
        try:
            data = read_bytes(inside(path, name), "file", limit)
        except UserError as error:
            raise ValueError(
                f"{name} is missing or cannot be read: {_unnamed(error, path)}"
            ) from None
        if len(data) != expected.bytes:
            raise ValueError(f"{name} has the wrong size")
        if hashlib.sha256(data).hexdigest() != expected.sha256:
            raise ValueError(f"{name} has the wrong content")
        if name in formats.CONTENTS:
            try:
                formats.CONTENTS[name](data.decode())
            except ValueError as error:  # text that is not UTF-8 is one, too
                raise ValueError(f"{name} is damaged: {shown(error)}") from None
    return manifest


def _unnamed(error: Exception, path: Path) -> str:
    """What went wrong, without the path, which the reader knows."""
    return str(error).replace(f"{path}/", "")
