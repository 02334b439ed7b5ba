"""The folder of one training run: config.json, log.jsonl, checkpoint.safetensors, model.*, and
attackers.safetensors where there are any."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from mithridate.config import Config
from mithridate.errors import TrainingDiverged, UserError
from mithridate.files import (
    make_directory,
    parse_json,
    read_json,
    read_text,
    reason,
    shown,
    write_atomic,
)
from mithridate.tensor_files import read_tensors, sealed, write_sealed
from mithridate.versions import versions

LEFTOVER = (
    r"\.(config|log|checkpoint|model|attackers|entry|report)\.(jsonl?|safetensors|html)\.\w{8}"
)


class RunDirectory:
    """Belongs to one configuration, and to one process at a time."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config_path = path / "config.json"
        self.log_path = path / "log.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.model_path = path / "model.safetensors"
        self._refuse_other_runs(config)
        make_directory(path)
        self._refuse_links()
        self._lock = self._acquire_lock()
        self._remove_leftovers()
        if not self.config_path.exists():
            text = json.dumps({"hash": config.hash(), "config": config.to_json()}, indent=2)
            write_atomic(self.config_path, text + "\n")

    def _refuse_other_runs(self, config: Config) -> None:
        if os.path.exists(self.config_path):
            try:
                found = read_json(self.config_path, "configuration")["hash"]
            except (UserError, KeyError, TypeError):
                raise UserError(
                    f"{shown(self.config_path)} is damaged; choose another --out"
                ) from None
            if found != config.hash():
                raise UserError(
                    f"{shown(self.path)} holds a run with another configuration "
                    f"({shown(found, 40)}, this one is {config.hash()}); choose another --out"
                )
        elif os.path.exists(self.path) and (not os.path.isdir(self.path) or self._is_used()):
            raise UserError(
                f"{shown(self.path)} exists and is not a run's directory; choose another --out"
            )

    def _is_used(self) -> bool:
        """Hidden files are what a process left that was killed before it had said what it is."""
        try:
            return any(not name.startswith(".") for name in os.listdir(self.path))
        except OSError as error:
            raise UserError(f"cannot read {shown(self.path)}: {reason(error)}") from None

    def _refuse_links(self) -> None:
        """What is appended to a log must not end up in a file elsewhere."""
        for path in self.path.iterdir():
            if path.is_symlink():
                raise UserError(f"{shown(path)} is a link: a run's files are its own; remove it")

    def _remove_leftovers(self) -> None:
        """Files that a killed process had not finished writing (see `write_atomic`)."""
        for path in self.path.iterdir():
            if re.fullmatch(LEFTOVER, path.name):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _acquire_lock(self) -> IO[str] | None:
        try:
            import fcntl
        except ImportError:  # not a POSIX system: go without
            return None
        try:
            # For reading and writing: to open a pipe for writing only would wait for ever.
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot lock {shown(self.path)}: {reason(error)}") from None
        lock = os.fdopen(handle, "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(f"another process is training in {shown(self.path)}") from None
        return lock

    def close(self) -> None:
        """Let another process have the directory."""
        if self._lock is not None:
            self._lock.close()

    # The log -------------------------------------------------------------------------------

    def append_log(self, line: dict[str, Any]) -> None:
        try:
            with self.log_path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {shown(self.log_path)}: {reason(error)}") from None

    def truncate_log(self, step: int) -> None:
        """Drop the lines after `step`, and one that a crash cut short."""
        if os.path.exists(self.log_path):
            kept = [line for line in read_log(self.log_path) if line["step"] <= step]
            write_atomic(self.log_path, "".join(json.dumps(line) + "\n" for line in kept))

    # The checkpoint ------------------------------------------------------------------------

    def save_checkpoint(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        write_sealed(self.checkpoint_path, tensors, {**meta, "versions": versions()})

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and meta data of the last checkpoint, or None if there is none."""
        if not os.path.exists(self.checkpoint_path):
            return None
        try:
            tensors, metadata, _ = read_tensors(self.checkpoint_path, "checkpoint")
        except UserError:
            raise self.damaged() from None
        meta = sealed(tensors, metadata)
        if meta is None or type(meta.get("step")) is not int or not _is_time(meta.get("seconds")):
            raise self.damaged()
        return tensors, meta

    def damaged(self) -> UserError:
        return UserError(
            f"checkpoint {shown(self.checkpoint_path)} is damaged; delete it to start the run anew"
        )


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and value >= 0


@contextmanager
def explain_divergence(run: RunDirectory) -> Iterator[None]:
    """Adds to TrainingDiverged what is left and what to do."""
    try:
        yield
    except TrainingDiverged as error:
        kept = f"the last good checkpoint is kept in {run.path}"
        advice = "lower optimiser.learning_rate or set optimiser.clip_norm"
        raise TrainingDiverged(f"training diverged: {error}; {kept}; {advice}") from None


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log.jsonl; a last line cut short by a crash is left out."""
    lines: list[dict[str, Any]] = []
    text = read_text(path, "log").splitlines()
    for number, line in enumerate(text):
        try:
            values = parse_json(line, nan=True)
        except ValueError:
            if number + 1 == len(text):
                break
            values = None
        if (
            not isinstance(values, dict)
            or type(values.get("step")) is not int
            or not all(isinstance(value, int | float) for value in values.values())
        ):
            raise UserError(f"log {shown(path)} is damaged in line {number + 1}; delete it")
        lines.append(values)
    return lines
