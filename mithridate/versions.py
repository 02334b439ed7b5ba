"""Versions that go into every checkpoint, card and record."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    packages = ("mithridate", "torch", "numpy", "safetensors")
    found = {name: installed(name) or "unknown" for name in packages}
    return {"python": platform.python_version(), **found}
