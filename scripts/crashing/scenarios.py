"""What is killed, and what must come out of it all the same.

A new command is one entry in SCENARIOS.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load as load_tensors

TIMES = ("seconds", "host", "version", "versions")
"""What two equal runs need not agree in."""


@dataclass(frozen=True)
class Scenario:
    words: tuple[str, ...]
    """The command, in its own working directory. It finds `model`, a finished run, there."""
    where: str
    """What it makes."""
    weight: int = 10
    """Its share of the kills."""
    store: bool = False

    def progress(self, folder: Path) -> int:
        """How far it has come: lines of logs, and files that are there."""
        count = 0
        for path in (folder / self.where).rglob("*"):
            count += 1
            if path.name == "log.jsonl":
                count += _lines(path)
        return count

    def result(self, folder: Path) -> dict[str, Any]:
        """Everything that must not depend on whether it was disturbed."""
        top = folder / self.where
        return {
            str(path.relative_to(top)): _content(path, folder)
            for path in sorted(top.rglob("*")) if path.is_file()
        }  # fmt: skip


def _run(*words: str, weight: int = 10) -> Scenario:
    return Scenario((*words, "--preset", "smoke", "--out", "run"), "run", weight)


def _store(*words: str, weight: int = 10) -> Scenario:
    return Scenario(("reproduce", "bandit_training", "--preset", "smoke", "--replications", "1",
                     "--store", "store", *words), "store", weight, store=True)  # fmt: skip


SCENARIOS: dict[str, Scenario] = {
    "pretrain": _run("pretrain", "bandit", weight=25),
    "distill": _run("distill", "bandit", "--source", "ts", weight=15),
    "train": _run("train", "bandit", "--from", "model", weight=20),
    "attack": _run("attack", "bandit", "--target", "ts", weight=20),
    "stress": Scenario(
        ("stress", "bandit", "--agent", "ts", "--suite", "smoke-v0", "--out", "run"), "run", 15
    ),
    "reproduce": _store(weight=15),
    "processes": _store("--executor", "processes", "--workers", "2", weight=5),
}


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:  # it has just been moved
        return 0


def _content(path: Path, folder: Path) -> Any:
    """What a file says, without times and places."""
    try:
        if path.suffix == ".safetensors":
            return _tensors(path)
        if path.suffix in (".json", ".jsonl"):
            text = path.read_text().replace(str(folder), "@")
            lines = text.splitlines() if path.suffix == ".jsonl" else [text]
            return [_timeless(json.loads(line)) for line in lines if line]
    except Exception as error:  # whatever is wrong with it, it is different from a sound one
        return f"unreadable: {error!r}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tensors(path: Path) -> Any:
    from mithridate.tensor_files import tensors_sha256

    with safe_open(path, framework="pt") as file:
        meta = (file.metadata() or {}).get("meta")
    digest = tensors_sha256(load_tensors(path.read_bytes()))
    # A seal covers the times that are sealed, too.
    said = None if meta is None else {**json.loads(meta), "sha256": None}
    return [digest, _timeless(said)]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        # A manifest has the checksums of logs, and those have times.
        dropped = (*TIMES, "files") if "files" in value and "host" in value else TIMES
        return {k: _timeless(v) for k, v in value.items() if k not in dropped}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """In words: what is there that should not be, what is missing, what differs."""
    said = [f"stray: {name}" for name in found.keys() - expected.keys()]
    said += [f"missing: {name}" for name in expected.keys() - found.keys()]
    said += [f"differs: {name}" for name in found.keys() & expected.keys()
             if found[name] != expected[name]]  # fmt: skip
    return sorted(said)
