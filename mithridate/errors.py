"""Errors a user can mend: one line that says what is wrong and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class UserError(Exception):
    """Wrong input. The command line prints the message in one line and exits with 2."""

    def __init__(self, message: object) -> None:
        super().__init__(shown(message, 2000))


class TrainingDiverged(Exception):
    """The loss is not finite, or has exploded. The last good checkpoint is kept."""


class Interrupted(Exception):
    """The user asked to stop. A checkpoint of the last finished step was written."""


class Caution(UserWarning):
    """Input that is allowed, and probably not what is meant. The command line prints one line."""


SHOWN_CHOICES = 12


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """An error for an unknown `name`, with the nearest valid one and the choices; of many, those
    that are most like it."""
    choices = sorted(choices)
    name = shown(name, 80)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    if len(choices) > SHOWN_CHOICES:
        near = difflib.get_close_matches(name, choices, n=SHOWN_CHOICES, cutoff=0.3)
        near = sorted(near) or choices[:SHOWN_CHOICES]
        listed = f"{', '.join(near)}, … {len(choices)} in all"
    else:
        listed = ", ".join(choices) or "none"
    return UserError(f"unknown {kind} '{name}'{hint} (choices: {listed})")


def shown(text: object, limit: int = 200) -> str:
    """For an error's one line: without line breaks and control characters, and not endless."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", "?", str(text))
    return line if len(line) <= limit else f"{line[: limit // 2]}…{line[-limit // 4 :]}"
