"""What a case is, and what can be wrong with how it ended.

A plan is plain JSON: everything that is needed to do the case again, on any machine and after the
generators have changed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = ("traceback", "hang", "crash", "silent acceptance", "untidy refusal", "decoy touched",
         "two-line error", "harm", "broken json")  # fmt: skip


@dataclass
class Plan:
    driver: str
    what: str
    """The kind of the mistake, in words; failures of one kind are counted together."""
    group: str = ""
    """The same, in fewer words: what one mending would mend."""
    wrong: bool = False
    """Known to be wrong: anything but a refusal is a failure."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """How the working directory is furnished (operations.py)."""
    arguments: list[str] = field(default_factory=list)
    """Of the command line, or"""
    call: dict[str, Any] = field(default_factory=dict)
    """what to call in Python (calls.py)."""
    writes: list[str] = field(default_factory=list)
    """Below the working directory: what the case may make and change."""
    reads: list[str] = field(default_factory=list)
    """Below the working directory: what has to stay as it is."""
    keeps: list[str] = field(default_factory=list)
    """Below the working directory: where nothing may vanish."""

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v not in ([], {}, False, "")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        return cls(**data)


@dataclass(frozen=True)
class Ending:
    """How a case ended."""

    code: int | None
    """None: it was killed by a signal, or by the watchdog."""
    signal: int | None
    hung: bool
    seconds: float
    stdout: str
    stderr: str
    frame: str = ""
    """Where the exception that left it was raised."""
    said: dict[str, Any] = field(default_factory=dict)
    """For a call in Python: what came of it."""


@dataclass(frozen=True)
class Failure:
    kind: str
    detail: str
    place: str
    """Failures with the same kind and place are one fault."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
