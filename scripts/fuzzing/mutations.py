"""What can happen to a file. Each mutation has a word, says whether the result is certainly wrong,
and how to get there (operations.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from fuzzing.values import JSON_VALUES, NO_JSON

Step = dict[str, Any]


@dataclass(frozen=True)
class Mutation:
    what: str
    wrong: bool
    steps: list[Step]
    group: str = ""
    """In fewer words."""


def pick(random: Random, table: dict[str, str]) -> tuple[str, str]:
    word = random.choice(sorted(table))
    return word, table[word]


def as_json(text: str) -> str:
    return json.dumps(text)


def replaced(random: Random, path: str, wrong: bool = True) -> Mutation:
    """Something else has the file's name."""
    kind = random.choice(("fifo", "folder", "loop", "device", "nowhere", "missing"))
    steps: dict[str, Step] = {
        "fifo": {"op": "fifo", "path": path},
        "folder": {"op": "folder", "path": path},
        "loop": {"op": "link", "path": path, "to": path.rpartition("/")[2]},
        "device": {"op": "link", "path": path,
                   "to": random.choice(("/dev/zero", "/dev/full", "/proc/self/mem", "/dev/null"))},
        "nowhere": {"op": "link", "path": path, "to": "/nonexistent/file"},
        "missing": {"op": "remove", "path": path},
    }  # fmt: skip
    return Mutation(f"{_short(path)} is {kind}", wrong, [steps[kind]])


def linked_to_decoy(random: Random, path: str) -> Mutation:
    """Whoever writes to the file writes to somebody else's."""
    to = random.choice(("@ROOT@/keep.txt", "@CASE@/keep.txt", "@ROOT@/one/precious/letter.txt",
                        "@CASE@/store-2/inner/photo.bin"))  # fmt: skip
    return Mutation(f"{_short(path)} links to a decoy", False,
                    [{"op": "link", "path": path, "to": to}])  # fmt: skip


def damaged_bytes(random: Random, path: str, data: bool = False) -> Mutation:
    """Bits flipped, an end cut off, or something added. `data`: not in the header of tensors,
    where there are harmless places."""
    kind = random.choice(("flip", "truncate", "append", "empty"))
    if kind == "flip":
        # The data are at the end; a flip anywhere else may hit a blank.
        at = -random.randint(1, 60 if data else 2000)
        return Mutation(
            f"{_short(path)}: a bit flipped",
            True,
            [{"op": "flip", "path": path, "at": at, "bit": random.randrange(8)}],
        )
    if kind == "truncate":
        share = random.choice((0.001, 0.1, 0.5, 0.9, 0.999))
        return Mutation(f"{_short(path)}: cut short", True,
                        [{"op": "truncate", "path": path, "share": share}])  # fmt: skip
    if kind == "append":
        return Mutation(
            f"{_short(path)}: bytes added",
            True,
            [{"op": "append", "path": path, "hex": random.randbytes(9).hex()}],
        )
    return Mutation(f"{_short(path)}: empty", True, [{"op": "write", "path": path, "text": ""}])


def forged_header(random: Random, path: str) -> Mutation:
    """A file of tensors whose header lies about sizes."""
    header = random.choice((
        '{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}',
        '{"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}',
        '{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        '{"w":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}}',
        '{"__metadata__":{"meta":"{}"}}', '{"__metadata__":7}', "{}", "[]", "null",
        '{"__metadata__":{"meta":"' + "[" * 10_000 + '"}}', "[" * 10_000,
    ))  # fmt: skip
    length = random.choice((len(header), 2**62, 2**31, 0))
    data = length.to_bytes(8, "little") + header.encode() + bytes(4)
    return Mutation(f"{_short(path)}: a forged header", True,
                    [{"op": "write", "path": path, "hex": data.hex()}])  # fmt: skip


def forged_tensor(
    random: Random, path: str, seal: str, how: tuple[str, ...], name: str | None = None
) -> Mutation:
    """A tensor of another kind, with the right checksum."""
    kind = random.choice(how)
    step: Step = {"op": "tensors", "path": path, "index": random.randrange(100), "how": kind,
                  "seal": seal}  # fmt: skip
    where = name or "a tensor"
    if name is not None:
        step["name"] = name
    return Mutation(f"{_short(path)}: {where} {kind}, sealed", True, [step],
                    f"{_short(path)}: {name or 'tensor'} {kind}, sealed")  # fmt: skip


def other_value(
    random: Random,
    path: str,
    document: Any,
    wrong: Callable[[list[Any]], bool],
    op: str = "json",
    **more: Any,
) -> Mutation:
    """Another value at one place of a document, or none."""
    at = random.choice(paths_of(document))
    shown = ".".join("#" if isinstance(key, int) else str(key) for key in at)
    group = f"{_short(path)}: {shown} is another"
    if random.random() < 0.15:
        return Mutation(f"{_short(path)}: {shown} removed", wrong(at),
                        [{"op": op, "path": path, "at": at, **more}], group)  # fmt: skip
    word, raw = pick(random, JSON_VALUES)
    changed = json.dumps(at_path(document, at)) != raw
    return Mutation(f"{_short(path)}: {shown} is {word}", changed and wrong(at),
                    [{"op": op, "path": path, "at": at, "raw": raw, **more}], group)  # fmt: skip


def paths_of(document: Any, so_far: tuple[Any, ...] = ()) -> list[list[Any]]:
    """The paths of everything in a JSON document, containers included."""
    found = [list(so_far)] if so_far else []
    items = (
        document.items() if isinstance(document, dict)
        else enumerate(document) if isinstance(document, list) else ()
    )  # fmt: skip
    for key, value in items:
        found += paths_of(value, (*so_far, key))
    return found


def at_path(document: Any, at: list[Any]) -> Any:
    for key in at:
        document = document[key]
    return document


def no_json(random: Random, path: str, wrong: bool = True) -> Mutation:
    """Another document, or one that is none."""
    if random.random() < 0.2:
        to = random.choice(("utf-16", "utf-32"))
        return Mutation(f"{_short(path)}: in {to}", wrong, [{"op": "encode", "path": path,
                                                             "to": to}])  # fmt: skip
    if random.random() < 0.1:
        return Mutation(f"{_short(path)}: not UTF-8", wrong,
                        [{"op": "write", "path": path, "hex": "7b22ff80fe227d"}])  # fmt: skip
    word, text = pick(random, NO_JSON)
    return Mutation(f"{_short(path)}: {word}", wrong, [{"op": "write", "path": path, "text": text}])


def _short(path: str) -> str:
    return path.rpartition("/")[2] if "*" not in path else path
