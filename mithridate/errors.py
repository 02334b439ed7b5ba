"""Errors a user can mend: one line that says what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Wrong input. The command line prints the message in one line and exits with 2."""


class TrainingDiverged(Exception):
    """The loss is not finite, or has exploded. The last good checkpoint is kept."""


class Interrupted(Exception):
    """The user asked to stop. A checkpoint of the last finished step was written."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """An error for an unknown `name`, with the nearest valid one and the choices."""
    choices = sorted(choices)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return UserError(f"unknown {kind} '{name}'{hint} (choices: {', '.join(choices) or 'none'})")
