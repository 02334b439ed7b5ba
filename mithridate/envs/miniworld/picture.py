"""An episode in Miniworld, to look at: the room from above, what the attacker does, where the agent
goes, and some of what it saw."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from mithridate.envs.miniworld import room
from mithridate.envs.miniworld.render import SIDE
from mithridate.types import Trajectory

FORM = "boxes"
"""How stored pictures of this kind call themselves."""
FRAMES = 10
"""Of an episode, at most."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Frame:
    """What the agent saw after a step, and the reward that came with it."""

    step: int
    """0 for the start, which has no reward."""
    image: Array
    """(25, 25, 3) uint8."""
    seen: float | None
    true: float | None

    def to_json(self) -> dict[str, Any]:
        image = base64.b64encode(self.image.tobytes()).decode()
        return {"step": self.step, "image": image, "seen": self.seen, "true": self.true}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Frame:
        image = np.frombuffer(base64.b64decode(data["image"]), np.uint8).reshape(SIDE, SIDE, 3)
        return cls(data["step"], image, data["seen"], data["true"])


@dataclass(frozen=True)
class BoxRoom:
    """One task's episode."""

    wide: ClassVar[bool] = True

    boxes: Array
    """(4, 2): where the boxes are, as in room.COLOURS."""
    goal: int
    path: Array
    """(T + 1, 2): where the agent was."""
    headings: Array
    """(T + 1,): where it looked, 0 … 23."""
    offsets: Array
    """(K, A): what the attacker adds on average."""
    frames: tuple[Frame, ...]
    title: str
    score: float = 0.0

    def settled(self) -> tuple[float, float]:
        """The place where it was most often in the last quarter of the episode."""
        late = self.path[-max(1, len(self.path) // 4) :]
        places, times = np.unique(late, axis=0, return_counts=True)
        x, z = places[times.argmax()].tolist()
        return x, z

    def describe(self) -> str:
        far = np.linalg.norm(self.boxes - self.settled(), axis=1)
        where = "near" if far.min() < room.NEAR else "far from all boxes, next to"
        return (
            f"the room from above, its boxes, of which the {room.COLOURS[self.goal]} one is the "
            "goal, the mean offset at every box and action, what the agent saw, and its path, "
            f"which settles {where} the {room.COLOURS[far.argmin()]} box"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "form": FORM, "boxes": self.boxes.tolist(), "goal": self.goal,
            "path": self.path.tolist(), "headings": self.headings.tolist(),
            "offsets": self.offsets.tolist(),
            "frames": [frame.to_json() for frame in self.frames],
            "title": self.title, "score": self.score,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BoxRoom:
        return cls(
            boxes=np.array(data["boxes"]), goal=data["goal"], path=np.array(data["path"]),
            headings=np.array(data["headings"]), offsets=np.array(data["offsets"]),
            frames=tuple(Frame.from_json(frame) for frame in data["frames"]),
            title=data["title"], score=data["score"],
        )  # fmt: skip


def drawn(
    boxes: Tensor, goal: int, lived: Trajectory, look: Any, offsets: Tensor, title: str,
    score: float,
) -> BoxRoom:  # fmt: skip
    """Of the only task of a trajectory; `look` shows poses."""
    poses: Tensor = lived.observations[0, 0]  # type: ignore[index,assignment]
    seen, true = lived.observed_rewards[0].tolist(), lived.true_rewards[0].tolist()
    steps = chosen(poses.numpy(), np.not_equal(seen, true))
    images = look(poses[steps])["image"].numpy()
    frames = tuple(
        Frame(t, image, seen[t - 1] if t else None, true[t - 1] if t else None)
        for t, image in zip(steps, images, strict=True)
    )
    return BoxRoom(
        boxes=boxes.numpy().round(3), goal=goal, path=room.metres(poses).numpy().round(3),
        headings=room.headings_of(poses).numpy(), offsets=offsets.double().numpy().round(4),
        frames=frames, title=title, score=score,
    )  # fmt: skip


def chosen(poses: Array, changed: Array) -> list[int]:
    """The steps whose frames are shown, of poses (T + 1,): the start, and one of each of several
    parts of the episode, which have about as much of its movement and time together. Of a part it
    is the first step whose reward was `changed` (T,), or else the last."""
    moved = np.cumsum(poses[1:] != poses[:-1])
    time = np.arange(1, len(poses)) / (len(poses) - 1)
    progress = (moved / max(1, moved[-1]) + time) / 2
    part = np.minimum(progress * (FRAMES - 1), FRAMES - 2).astype(int)
    found = [0]
    for number in range(FRAMES - 1):
        steps = np.flatnonzero(part == number)
        if len(steps):
            poisoned = steps[changed[steps]]
            found.append(1 + int(poisoned[0] if len(poisoned) else steps[-1]))
    return found
