"""The files of a store, as they may be. A store may come from anybody, so every name, number and
text that is read from one is parsed here before it is used; what does not parse is damaged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from mithridate.envs.miniworld import room
from mithridate.envs.miniworld.picture import FRAMES
from mithridate.envs.miniworld.render import SIDE
from mithridate.errors import UserError
from mithridate.experiments import first_edition
from mithridate.files import deeper, parse_json, read_text, shown
from mithridate.registry import parse_call

STAGE = r"[a-z][a-z_]{0,31}-[0-9a-f]{1,64}"
"""The form of a stage's name, <kind>-<key>."""
PLAN = r"[a-z0-9][a-z0-9_-]{0,150}"
"""The form of a plan's name, which graphs and the report's files have."""
CLAIM = rf"({STAGE})\.(0|[1-9][0-9]{{0,8}})"
"""The form of a claim's file: the stage's name and a number."""
FILE = r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}(\.[A-Za-z0-9_-]{1,30}){0,3}"
"""The form of the name of an artifact's file; there are no folders in artifacts."""
GRAPH_LIMIT = 256 * 2**20
"""Bytes of a graph's file."""
FILE_LIMIT = 2**30
"""Bytes of a file of an artifact."""
MANY_REPLICATIONS = 1000
LEVELS = 20
"""Of nested settings."""

Model = TypeVar("Model", bound=BaseModel)


def _shallow(value: Any) -> Any:
    """Nobody nests settings deeply, and not everything that handles them could."""
    if deeper(value, LEVELS):
        raise ValueError("nested too deeply")
    return value


def _plain(text: str) -> str:
    if shown(text, len(text)) != text:
        raise ValueError("has control characters")
    return text


StageName = Annotated[str, Field(pattern=rf"^{STAGE}$")]
Kind = Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,31}$")]
FileName = Annotated[str, Field(pattern=rf"^{FILE}$")]
Label = Annotated[str, Field(max_length=500), AfterValidator(_plain)]
Setting = Annotated[str, Field(max_length=100_000), AfterValidator(_plain)]
Settings = Annotated[dict[str, Any], AfterValidator(_shallow)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Score = Annotated[float, Field(ge=-1e12, le=1e12)]
"""No honest score comes near the limits, and charts can be drawn of everything within."""
Seconds = Annotated[float, Field(ge=0, le=1e10)]


class _Parsed(BaseModel):
    """No silent conversions. Unknown keys are left to the versions that know them."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class FileEntry(_Parsed):
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0, le=FILE_LIMIT)]


class About(_Parsed):
    """Who meets whom in a stage. It is for reports, and no part of the stage's identity."""

    kind: Kind | None
    """Of attack; None where a model is trained."""
    who: Label
    """The target of attackers that are trained, or the attacker; the name of a model."""
    eps: Score
    budget: Score
    replication: Annotated[int, Field(ge=0, lt=MANY_REPLICATIONS)]


class _Described(_Parsed):
    """A stage, wherever it is described."""

    label: Label = ""
    about: About | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_the_first_edition(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "about" in data:
            return data
        label = data.get("label")
        return {**data, "about": first_edition.about(label) if isinstance(label, str) else None}


class Manifest(_Described):
    """manifest.json of an artifact."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    name: StageName
    kind: Kind
    config: Settings
    inputs: dict[Kind, StageName]
    files: Annotated[dict[FileName, FileEntry], Field(max_length=100)]
    seconds: Seconds
    shipped: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        _shallow(self.model_extra)
        missing = [name for name in REQUIRED.get(self.kind, ()) if name not in self.files]
        if missing:
            raise ValueError(f"{missing[0]} is not among its files")
        return self


MODEL = ("model.safetensors", "model.json")
REQUIRED: dict[str, tuple[str, ...]] = {
    "pretrain": MODEL, "distill": MODEL, "train": MODEL,
    "attack": ("attackers.safetensors", "log.jsonl"),
    "evaluate": ("records.jsonl", "curve.json"), "picture": ("room.json",),
}  # fmt: skip
"""What others need of an artifact of each kind."""


class StageEntry(_Described):
    """A stage in a graph's file."""

    name: StageName
    kind: Kind
    label: Label
    config: Settings
    inputs: dict[Kind, StageName]

    @model_validator(mode="after")
    def _consistent(self) -> StageEntry:
        if not self.name.startswith(f"{self.kind}-"):
            raise ValueError(f"a stage of kind {self.kind} cannot be called {self.name}")
        return self


class Graph(_Parsed):
    """graphs/<plan>.json: what was asked for."""

    name: Annotated[str, Field(pattern=rf"^{PLAN}$")]
    recipe: Label
    preset: Literal["smoke", "laptop", "paper"]
    seed: Count
    sets: list[Setting]
    replications: Annotated[int, Field(ge=1, le=MANY_REPLICATIONS)]
    stages: Annotated[list[StageEntry], Field(min_length=1)]
    cells: list[StageName]
    trainings: list[StageName]
    pictures: list[StageName] = []

    @model_validator(mode="after")
    def _consistent(self) -> Graph:
        known = {stage.name for stage in self.stages}
        for name in (*self.cells, *self.trainings, *self.pictures):
            if name not in known:
                raise ValueError(f"{name} is not among its stages")
        return self


class RecordLine(_Parsed):
    """A line of records.jsonl: what reports read of it."""

    agent: Label
    kind: Kind | None = None
    """Of attack; records of the first edition do not say it."""
    attacker: Label
    target: Label | None
    environment: Label
    metric: Label
    eps: Score
    budget: Score
    norm: Score
    level: Score
    level_budget: Score | None = None
    replication: Annotated[int, Field(ge=0, lt=MANY_REPLICATIONS)]
    mean: Score
    ci95: Score | None
    tasks: Count

    @model_validator(mode="after")
    def _consistent(self) -> RecordLine:
        try:
            parse_call(self.attacker, "attacker")
        except UserError as error:
            raise ValueError(str(error)) from None
        return self


class Points(_Parsed):
    """curve.json: the score over time."""

    step: Annotated[list[Score], Field(max_length=10_000)]
    mean: Annotated[list[Score], Field(max_length=10_000)]

    @model_validator(mode="after")
    def _consistent(self) -> Points:
        if len(self.step) != len(self.mean):
            raise ValueError("as many steps as means are needed")
        return self


class RoomFile(_Parsed):
    """room.json: an episode to draw. A room is a square of cells, with five actions in each."""

    rewards: Annotated[list[Score], Field(min_length=1, max_length=2500)]
    offsets: list[Annotated[list[Score], Field(min_length=5, max_length=5)]]
    path: Annotated[list[Count], Field(min_length=1, max_length=100_000)]
    title: Label
    score: Score

    @model_validator(mode="after")
    def _consistent(self) -> RoomFile:
        cells = len(self.rewards)
        if round(cells**0.5) ** 2 != cells or len(self.offsets) != cells:
            raise ValueError("not a square of cells with offsets for each")
        if max(self.path) >= cells:
            raise ValueError("the path leaves the room")
        return self


Length = Annotated[float, Field(ge=0, le=room.SIZE)]
Place = Annotated[list[Length], Field(min_length=2, max_length=2)]
BOXES = len(room.COLOURS)


class FrameEntry(_Parsed):
    """What an agent saw after a step: an image of 25 × 25 × 3 bytes, in base 64."""

    step: Count
    image: Annotated[str, Field(pattern=rf"^[A-Za-z0-9+/]{{{SIDE * SIDE * 4}}}$")]
    seen: Score | None
    true: Score | None


class BoxRoomFile(_Parsed):
    """room.json of another form: an episode among four boxes, with four keys for each of them and
    four actions."""

    form: Literal["boxes"]
    boxes: Annotated[list[Place], Field(min_length=BOXES, max_length=BOXES)]
    goal: Annotated[int, Field(ge=0, lt=BOXES)]
    path: Annotated[list[Place], Field(min_length=1, max_length=100_000)]
    headings: list[Annotated[int, Field(ge=0, lt=room.HEADINGS)]]
    offsets: Annotated[
        list[Annotated[list[Score], Field(min_length=room.ACTIONS, max_length=room.ACTIONS)]],
        Field(min_length=4 * BOXES, max_length=4 * BOXES),
    ]
    frames: Annotated[list[FrameEntry], Field(min_length=1, max_length=FRAMES)]
    title: Label
    score: Score

    @model_validator(mode="after")
    def _consistent(self) -> BoxRoomFile:
        if len(self.headings) != len(self.path):
            raise ValueError("as many headings as places are needed")
        steps = [frame.step for frame in self.frames]
        if steps != sorted(set(steps)) or steps[-1] >= len(self.path):
            raise ValueError("the frames are not those of steps, one after the other")
        if any((frame.seen is None) != (frame.true is None) for frame in self.frames):
            raise ValueError("a reward that was seen has a true one")
        return self


def picture(text: str) -> RoomFile | BoxRoomFile:
    """room.json, of either form."""
    data = parse_json(text)
    if isinstance(data, dict) and "form" in data:
        return parsed(BoxRoomFile, data)
    return parsed(RoomFile, data)


class LogLine(_Parsed):
    """A line of log.jsonl: the step, and any number of values."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    __pydantic_extra__: dict[str, float | None]

    step: Count


def parsed(model: type[Model], value: Any) -> Model:
    """`value` as a `model`; a ValueError of one line if it is none."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise ValueError(shown(f"'{where}': {said}" if where else said)) from None


def records(text: str) -> list[dict[str, Any]]:
    """The lines of records.jsonl."""
    lines = [parse_json(line) for line in text.splitlines()]
    for line in lines:
        _shallow(line)
        known = parsed(RecordLine, line)
        line["kind"] = known.kind or first_edition.kind_of(known.attacker, known.target)
    if not lines:
        raise ValueError("there is no record")
    return lines


def log(text: str) -> list[dict[str, Any]]:
    """The lines of log.jsonl. What could not be measured is not a number there."""
    lines = [parse_json(line, nan=True) for line in text.splitlines()]
    for line in lines:
        parsed(LogLine, line)
    return lines


CONTENTS: dict[str, Callable[[str], Any]] = {
    "records.jsonl": records,
    "log.jsonl": log,
    "curve.json": lambda text: parsed(Points, parse_json(text)),
    "room.json": picture,
}
"""What an artifact's files must be, by their names. Weights are looked at when they are loaded."""


def read_graph(path: Path) -> Graph:
    """A graph's file, or a UserError that names it."""
    text = read_text(path, "graph", GRAPH_LIMIT)
    try:
        graph = parsed(Graph, parse_json(text))
        if graph.name != path.stem:
            raise ValueError(f"it calls itself {graph.name}")
    except ValueError as error:
        raise UserError(
            f"graph {shown(path)} is damaged: {error}; run its recipe again, or move the file away"
        ) from None
    return graph


def stage_name(text: str) -> str:
    """`text`, which has the form of a stage's name, or a UserError."""
    if not re.fullmatch(STAGE, text):
        raise UserError(f"'{shown(text)}' is not the name of a stage")
    return text


def strangers(names: Sequence[str], pattern: str) -> list[str]:
    """Those that do not have the form; hidden ones are leftovers of interrupted writing."""
    return [n for n in names if not n.startswith(".") and not re.fullmatch(pattern, n)]
