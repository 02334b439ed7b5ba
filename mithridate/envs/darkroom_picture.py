"""An episode in Darkroom2, to look at: where the goals are, what the attacker does, where the agent
goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Room:
    """One task's episode."""

    wide: ClassVar[bool] = False

    rewards: np.ndarray[Any, Any]
    """(S,): what each cell is worth."""
    offsets: np.ndarray[Any, Any]
    """(S, A): what the attacker adds on average, −1 … 1."""
    path: np.ndarray[Any, Any]
    """(T + 1,): the cells the agent was in."""
    title: str
    score: float = 0.0

    @property
    def size(self) -> int:
        return int(len(self.rewards) ** 0.5)

    def settled(self) -> int:
        """The cell where it was most often in the last quarter of the episode."""
        return int(np.bincount(self.path[-max(1, len(self.path) // 4) :]).argmax())

    def describe(self) -> str:
        row, column = divmod(self.settled(), self.size)
        return (
            "the room, its goals, the mean offset on every cell and action, and the agent's path, "
            f"which settles in row {row + 1}, column {column + 1}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "rewards": self.rewards.tolist(), "path": self.path.tolist(), "title": self.title,
            "offsets": [[round(x, 4) for x in row] for row in self.offsets.tolist()],
            "score": self.score,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Room:
        arrays = {name: np.array(data[name]) for name in ("rewards", "offsets", "path")}
        return cls(**arrays, title=data["title"], score=data["score"])
