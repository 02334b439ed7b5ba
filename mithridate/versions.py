"""Versions that go into every checkpoint, card and record."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

STAGES = {"pretrain": 1, "distill": 1, "train": 2, "attack": 2, "evaluate": 2, "picture": 1}
"""Of the code of each kind of stage: raised when a change of the code changes its results.

2: synthetic contexts with more dense offsets (train); decoding from normed inputs, which rounds
differently (train, attack, evaluate)."""


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    packages = ("mithridate", "torch", "numpy", "safetensors")
    found = {name: installed(name) or "unknown" for name in packages}
    return {"python": platform.python_version(), **found}
