"""The folder of one training run: config.json, log.jsonl, checkpoint.safetensors, model.*."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from mithridate.config import Config
from mithridate.errors import TrainingDiverged, UserError
from mithridate.files import make_directory, write_atomic
from mithridate.model.weights import tensors_sha256
from mithridate.versions import versions


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
        self._lock = self._acquire_lock()
        if not self.config_path.exists():
            text = json.dumps({"hash": config.hash(), "config": config.to_json()}, indent=2)
            write_atomic(self.config_path, text + "\n")

    def _refuse_other_runs(self, config: Config) -> None:
        if self.config_path.exists():
            try:
                found = json.loads(self.config_path.read_text())["hash"]
            except (OSError, ValueError, KeyError, TypeError):
                raise UserError(f"{self.config_path} is damaged; choose another --out") from None
            if found != config.hash():
                raise UserError(
                    f"{self.path} holds a run with another configuration ({found}, "
                    f"this one is {config.hash()}); choose another --out"
                )
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UserError(
                f"{self.path} exists and is not a run's directory; choose another --out"
            )

    def _acquire_lock(self) -> IO[str] | None:
        try:
            import fcntl
        except ImportError:  # not a POSIX system: go without
            return None
        lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(f"another process is training in {self.path}") from None
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
            raise UserError(f"cannot write {self.log_path}: {error.strerror}") from None

    def truncate_log(self, step: int) -> None:
        """Drop the lines after `step`, and one that a crash cut short."""
        if self.log_path.exists():
            kept = [line for line in read_log(self.log_path) if line["step"] <= step]
            write_atomic(self.log_path, "".join(json.dumps(line) + "\n" for line in kept))

    # The checkpoint ------------------------------------------------------------------------

    def save_checkpoint(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        meta = {**meta, "versions": versions(), "sha256": tensors_sha256(tensors)}
        contiguous = {name: t.detach().contiguous() for name, t in tensors.items()}
        data = save_tensors(contiguous, metadata={"meta": json.dumps(meta)})
        write_atomic(self.checkpoint_path, data)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and meta data of the last checkpoint, or None if there is none."""
        if not self.checkpoint_path.exists():
            return None
        damaged = UserError(
            f"checkpoint {self.checkpoint_path} is damaged; delete it to start the run anew"
        )
        try:
            with safe_open(self.checkpoint_path, framework="pt") as file:
                meta = json.loads(file.metadata()["meta"])
            tensors = load_tensors(self.checkpoint_path.read_bytes())
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            raise damaged from None
        if tensors_sha256(tensors) != meta.get("sha256"):
            raise damaged
        return tensors, meta


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


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
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines
