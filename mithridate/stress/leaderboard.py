"""The leaderboard: a page made of entries, and of nothing else. Whatever an entry says is shown as
text; one that is not sound is refused in one line, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mithridate.errors import UserError, shown
from mithridate.files import make_directory, reason, write_atomic
from mithridate.report.html import page_templates
from mithridate.stress.entry import Entry, Reported, read_entry
from mithridate.stress.suites import Suite
from mithridate.stress.worst import paired

SCHEMA = "entry.schema.json"
INDEX = "index.html"
MOST = 1000
"""Entries of a leaderboard."""


@dataclass(frozen=True)
class _Standing:
    entry: Entry
    rank: int
    share: float
    """How good its worst case is, from 0 to 1, the best here."""
    behind: tuple[float, float] | None
    """How much worse than the best, paired over tasks; None for the best itself."""

    @property
    def hardest(self) -> Any:
        return max(self.entry.figures, key=lambda figure: figure.eps)

    @property
    def claims(self) -> list[tuple[str, Reported]]:
        return [("reported", r) for r in self.entry.reported] + [
            ("found by others", r) for r in self.entry.external
        ]


@dataclass(frozen=True)
class _Board:
    suite: Suite
    metric: str
    better: str
    standings: list[_Standing]


def read_entries(folder: Path) -> list[Entry]:
    """All that are there, each checked; a UserError that names the first that is not sound."""
    try:
        paths = sorted(p for p in folder.iterdir() if p.suffix == ".json" and p.name != SCHEMA)
    except OSError as error:
        raise UserError(f"cannot read leaderboard {shown(folder)}: {reason(error)}") from None
    if not paths:
        raise UserError(f"leaderboard {shown(folder)} has no entries (*.json)")
    if len(paths) > MOST:
        raise UserError(f"leaderboard {shown(folder)} has more than {MOST} entries")
    entries: dict[tuple[str, str, str], Path] = {}
    found = []
    for path in paths:
        entry = read_entry(path)
        suite = entry.known_suite()
        if not suite.ranked:
            raise UserError(f"entry {shown(path)}: {suite.name} is not for leaderboards")
        key = (entry.environment, entry.suite, entry.agent)
        if key in entries:
            raise UserError(
                f"entry {shown(path)}: '{shown(entry.agent, 80)}' is in {shown(entries[key].name)} "
                "already; give it a label of its own"
            )
        entries[key] = path
        found.append(entry)
    return found


def boards(entries: Sequence[Entry]) -> list[_Board]:
    """One for each environment and suite, the best agents first."""
    keys = sorted({(entry.environment, entry.suite) for entry in entries})
    return [
        _board([e for e in entries if (e.environment, e.suite) == key]) for key in keys
    ]  # fmt: skip


def _board(entries: list[Entry]) -> _Board:
    first = entries[0]
    suite = first.known_suite()
    sign = 1.0 if first.better == "lower" else -1.0
    cases = {entry.agent: entry.worst(suite.hardest)[3] for entry in entries}
    ranked = sorted(entries, key=lambda entry: (sign * cases[entry.agent].mean, entry.agent))
    means = [sign * case.mean for case in cases.values()]
    low, high = min(means), max(means)
    best = cases[ranked[0].agent]
    standings = [
        _Standing(
            entry, rank,
            (high - sign * cases[entry.agent].mean) / (high - low) if high > low else 1.0,
            None if rank == 1 else paired(cases[entry.agent], best),
        )
        for rank, entry in enumerate(ranked, 1)
    ]  # fmt: skip
    return _Board(suite, first.metric, first.better, standings)


def render_leaderboard(entries: Sequence[Entry]) -> str:
    return page_templates().get_template("leaderboard.html.j2").render(
        boards=boards(entries)
    )  # fmt: skip


def write_leaderboard(folder: Path, out: Path | None = None) -> Path:
    """The page of a folder's entries; `out`: where, by default in the folder itself."""
    page = render_leaderboard(read_entries(folder))
    path = out or folder / INDEX
    make_directory(path.parent)
    write_atomic(path, page)
    return path


def schema_text() -> str:
    """The form of entries, for those who check theirs without this package."""
    return json.dumps(Entry.model_json_schema(), indent=1, sort_keys=True) + "\n"
