"""The paper's tables as numbers ("Robust In-Context Reinforcement Learning Under Reward Poisoning
Attacks", ICML 2026)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def tables() -> dict[str, Any]:
    text = (Path(__file__).parent / "paper_tables.json").read_text()
    result: dict[str, Any] = json.loads(text)
    return result


def paper_value(table: str, algorithm: str, column: str) -> tuple[float, float] | None:
    """The paper's mean and 95 % half-width in one cell, or None if it has no such cell."""
    for row in tables()[table]["rows"]:
        if row["algorithm"] == algorithm and column in row["cells"]:
            cell = row["cells"][column]
            return cell["mean"], cell["ci95"]
    return None
