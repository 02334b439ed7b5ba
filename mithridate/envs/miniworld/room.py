"""The room of Miniworld without pictures: layouts, poses, moves, rewards and the oracle.

A layout is a number from 0 to LAYOUTS − 1: it says where the four boxes and the start are, and
nothing else does. A pose is one number, too: a layout, a place and a heading. Places are whole
numbers of UNITs (11 µm), and a step forward is a whole number of them in each of the 24 headings:
so poses recur exactly, on any machine, and a step back leads to where one came from. From the
original, which counts in floating point, a place is at most a UNIT away for each step taken.

Axes are those of the package: x to the east, z to the south; heading h looks in the direction
(cos 15°h, −sin 15°h), and a turn to the left adds one to h.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from mithridate.rng import Rng

SIZE = 6.0
"""Length of a wall."""
SIDE = 0.8
"""Of a box."""
BOX_RADIUS = math.sqrt(2 * SIDE**2) / 2
AGENT_RADIUS = 0.4
FORWARD = 0.7
"""Length of a step."""
HEADINGS = 24
NEAR = BOX_RADIUS + AGENT_RADIUS + 1.5 * FORWARD
"""Who is nearer than this to a box is near it."""
TOUCHING = BOX_RADIUS + AGENT_RADIUS
"""Nobody comes nearer than this to the goal."""
FACING = math.cos(math.radians(30.0))
"""Cosine of the largest angle between the heading and a box that is faced."""
COLOURS = ("blue", "red", "green", "yellow")
"""Of the boxes, in the corners (west, north), (east, north), (east, south), (west, south)."""
CORNERS = ((0.0, 0.0), (SIZE, 0.0), (SIZE, SIZE), (0.0, SIZE))
LEFT, RIGHT, AHEAD, STAY = range(4)
"""The actions."""
ACTIONS = 4

LAYOUT_BITS, PLACE_BITS, HEADING_BITS = 20, 19, 5
LAYOUTS = 1 << LAYOUT_BITS
PLACES = 1 << PLACE_BITS
UNIT = SIZE / PLACES


def _directions() -> Tensor:
    angles = [math.radians(15.0 * heading) for heading in range(HEADINGS)]
    return torch.tensor([(math.cos(a), -math.sin(a)) for a in angles], dtype=torch.float64)


DIRECTIONS = _directions()
"""(24, 2): where each heading looks."""
STRIDES = (DIRECTIONS * (FORWARD / UNIT)).round().long()
"""(24, 2): a step forward, in units."""


def poses(layouts: Tensor, places: Tensor, headings: Tensor) -> Tensor:
    """(...) int64: poses of layouts (...), places (..., 2) in units, and headings (...)."""
    x, z = places[..., 0], places[..., 1]
    return (((layouts << PLACE_BITS | x) << PLACE_BITS) | z) << HEADING_BITS | headings


def layouts_of(pose: Tensor) -> Tensor:
    return pose >> (2 * PLACE_BITS + HEADING_BITS)


def places_of(pose: Tensor) -> Tensor:
    """(..., 2) in units."""
    mask = PLACES - 1
    x, z = pose >> (PLACE_BITS + HEADING_BITS), pose >> HEADING_BITS
    return torch.stack([x & mask, z & mask], -1)


def headings_of(pose: Tensor) -> Tensor:
    return pose & ((1 << HEADING_BITS) - 1)


def metres(pose: Tensor) -> Tensor:
    """(..., 2) float64: where a pose is."""
    return places_of(pose).double() * UNIT


def looks(pose: Tensor) -> Tensor:
    """(..., 2) float64: where it looks."""
    return DIRECTIONS.to(pose.device)[headings_of(pose)]


@lru_cache(maxsize=65_536)
def _layout(number: int) -> tuple[float, ...]:
    luck = Rng(0).child("miniworld", "layout").streams([number])
    return tuple(luck.ahead("uniform", 1, 10)[0, 0].tolist())


def layout(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Of layouts (B,): the middle of each box (B, 4, 2), and the pose at the start (B,). A box is
    one to two radii away from both walls of its corner, the start up to an agent's radius from the
    middle of the room in both directions; it looks east."""
    drawn = torch.tensor([_layout(n) for n in numbers.tolist()], dtype=torch.float64).view(-1, 5, 2)
    corners = torch.tensor(CORNERS, dtype=torch.float64)
    inwards = 1 - 2 * (corners > 0).double()
    boxes = corners + inwards * BOX_RADIUS * (1 + drawn[:, :4])
    start = SIZE / 2 + AGENT_RADIUS * (2 * drawn[:, 4] - 1)
    at = (start / UNIT).round().long().to(numbers.device)
    return boxes.to(numbers.device), poses(numbers, at, torch.zeros_like(numbers))


def distances(pose: Tensor, boxes: Tensor) -> Tensor:
    """(...): from a pose (...) to a box (..., 2)."""
    found: Tensor = (boxes - metres(pose)).norm(dim=-1)
    return found


def facing(pose: Tensor, boxes: Tensor) -> Tensor:
    """(...) bool: whether a box (..., 2) is within 30° of the heading."""
    way = boxes - metres(pose)
    found: Tensor = (way * looks(pose)).sum(-1) >= FACING * way.norm(dim=-1)
    return found


def rewards(pose: Tensor, goals: Tensor) -> Tensor:
    """(...) float32: 1 where the goal (..., 2) is near and faced."""
    return ((distances(pose, goals) < NEAR) & facing(pose, goals)).float()


def move(pose: Tensor, actions: Tensor, solid: Tensor) -> Tensor:
    """(...): the pose after each action (...). Walls and what is `solid`, boxes (..., N, 2), block
    a step forward as a whole."""
    heading = headings_of(pose)
    turned = (heading + (actions == LEFT).long() - (actions == RIGHT).long()) % HEADINGS
    there = places_of(pose) + STRIDES.to(pose.device)[heading]
    at = there.double() * UNIT
    free = ((at >= AGENT_RADIUS) & (at <= SIZE - AGENT_RADIUS)).all(-1)
    free &= ((solid - at[..., None, :]).norm(dim=-1) >= TOUCHING).all(-1)
    walks = (actions == AHEAD) & free
    places = torch.where(walks[..., None], there, places_of(pose))
    return poses(layouts_of(pose), places, turned)


def oracle(pose: Tensor, goals: Tensor) -> Tensor:
    """(...) int64: turn to the goal (..., 2) until it is faced, go ahead until it is near, stay."""
    way, look = goals - metres(pose), looks(pose)
    to_the_left = way[..., 0] * look[..., 1] - way[..., 1] * look[..., 0] > 0
    turn = torch.where(to_the_left, LEFT, RIGHT)
    go = torch.where(way.norm(dim=-1) < NEAR, STAY, AHEAD)
    return torch.where(facing(pose, goals), go, turn)


def steps_to(pose: Tensor, goals: Tensor) -> Tensor:
    """(...) float32: how many steps it is to the goal (..., 2), at the least: turns until it is
    faced, and steps as if one then went straight to it. The oracle, which may be 30° off, has up to
    a few more."""
    way, look = goals - metres(pose), looks(pose)
    distance = way.norm(dim=-1)
    cosine = (way * look).sum(-1) / distance.clamp(min=UNIT)
    angle = torch.rad2deg(cosine.clamp(-1.0, 1.0).acos())
    turns = ((angle - 30.0) / (360.0 / HEADINGS)).ceil().clamp(min=0.0)
    ahead = ((distance - NEAR) / FORWARD).ceil().clamp(min=0.0)
    found: Tensor = (turns + ahead).float()
    return found


def values(pose: Tensor, goals: Tensor) -> Tensor:
    """(..., A) float32: minus the steps to the goal (..., 2) after each action (`steps_to`); after
    others than the oracle's, at least one more than after that."""
    every = torch.arange(ACTIONS, device=pose.device)
    after = move(pose[..., None], every, goals[..., None, None, :])
    worth = -steps_to(after, goals[..., None, :])
    best = oracle(pose, goals)[..., None]
    most = worth.gather(-1, best)
    return torch.where(every == best, most, worth.minimum(most - 1))
