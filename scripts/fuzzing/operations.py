"""How a case furnishes its working directory: small steps, each of them plain JSON.

    {"op": "copy", "from": "model", "to": "m"}             a template (templates.py)
    {"op": "json", "path": …, "at": ["env", "arms"], "raw": "1e999"}
    {"op": "tensors", "path": …, "index": 3, "how": "nan", "seal": "card"}

`raw` is JSON text, which may say what no JSON library would write. A `seal` makes the checksum
right again after the content was changed: a forgery, not an accident.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fuzzing.decoys import Place

HOLE = "raw"
Step = dict[str, Any]


def furnish(steps: list[Step], place: Place, templates: Path) -> None:
    """Carry out the steps, in order, in the case's directory."""
    for step in steps:
        step = {k: place.fill(v) if isinstance(v, str) else v for k, v in step.items()}
        if step["op"] == "copy":
            _copy(templates / step["from"], place.case / step["to"])
        else:
            OPERATIONS[step["op"]](_path(place, step["path"]), step)


def _path(place: Place, name: str) -> Path:
    """The first that matches, if it is a pattern: an artifact's name is not known beforehand."""
    if "-*" in name:
        found = sorted(place.case.glob(name))
        if not found:
            raise LookupError(f"nothing matches {name}")
        return found[0]
    return place.case / name


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


# Bytes and names -------------------------------------------------------------------------------


def _write(path: Path, step: Step) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if "hex" in step:
        path.write_bytes(bytes.fromhex(step["hex"]))
    else:
        path.write_bytes(step["text"].encode("utf-8", "surrogatepass"))


def _flip(path: Path, step: Step) -> None:
    """One bit: counted from the end if `at` is negative, so that it hits the data."""
    data = bytearray(path.read_bytes())
    data[step["at"] % len(data)] ^= 1 << step["bit"]
    path.write_bytes(data)


def _truncate(path: Path, step: Step) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * step["share"])])


def _append(path: Path, step: Step) -> None:
    path.write_bytes(path.read_bytes() + bytes.fromhex(step["hex"]))


def _encode(path: Path, step: Step) -> None:
    path.write_bytes(path.read_text().encode(step["to"]))


def _gone(path: Path, step: Step | None = None) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fifo(path: Path, step: Step) -> None:
    _gone(path)
    os.mkfifo(path)


def _folder(path: Path, step: Step) -> None:
    _gone(path)
    path.mkdir(parents=True)


def _link(path: Path, step: Step) -> None:
    _gone(path)
    path.symlink_to(step["to"])


def _rename(path: Path, step: Step) -> None:
    path.rename(path.parent / step["to"])


def _chmod(path: Path, step: Step) -> None:
    path.chmod(step["mode"])


# JSON ------------------------------------------------------------------------------------------


def _replaced(document: Any, at: list[Any], value: Any) -> Any:
    """`document` with `value` at a path; HOLE as a value removes it."""
    if not at:
        return value
    inner = document
    for key in at[:-1]:
        inner = inner[key]
    if value is None:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return document


def _json_text(text: str, step: Step, **style: Any) -> str:
    if "raw" not in step:
        return json.dumps(_replaced(json.loads(text), step["at"], None), **style)
    if not step["at"]:
        return str(step["raw"])
    holed = json.dumps(_replaced(json.loads(text), step["at"], HOLE), **style)
    return holed.replace(json.dumps(HOLE), step["raw"])


def _json(path: Path, step: Step) -> None:
    text = _json_text(path.read_text(), step, indent=1)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def _key(path: Path, step: Step) -> None:
    """Rename a key."""
    document = json.loads(path.read_text())
    inner = document
    for key in step["at"][:-1]:
        inner = inner[key]
    inner[step["to"]] = inner.pop(step["at"][-1])
    path.write_text(json.dumps(document))


def _line(path: Path, step: Step) -> None:
    """Of a file of lines, replace one."""
    lines = path.read_text().splitlines() or [""]
    number = step["number"] % len(lines)
    if "at" in step:
        lines[number] = _json_text(lines[number], step)
    else:
        lines[number] = step["raw"]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))


# Tensors ---------------------------------------------------------------------------------------


def _meta_of(path: Path) -> dict[str, Any] | None:
    with safe_open(path, framework="pt") as file:
        meta = (file.metadata() or {}).get("meta")
    return None if meta is None else json.loads(meta)


def _save(path: Path, tensors: dict[str, Tensor], meta: str | None) -> None:
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    path.write_bytes(save_tensors(contiguous, metadata=None if meta is None else {"meta": meta}))


def _meta(path: Path, step: Step) -> None:
    """Change what a file of tensors says about itself; the tensors stay."""
    tensors = load_tensors(path.read_bytes())
    _save(path, tensors, _json_text(json.dumps(_meta_of(path)), step))


def _with_first(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[:1] = value
    return changed


HOW: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda t: _with_first(t.float(), math.nan),
    "inf": lambda t: _with_first(t.float(), math.inf),
    "all nan": lambda t: torch.full_like(t.float(), math.nan),
    "huge": lambda t: torch.full_like(t.float(), 1e30),
    "int": lambda t: t.to(torch.int32),
    "bool": lambda t: t.bool(),
    "float64": lambda t: t.double(),
    "bfloat16": lambda t: t.bfloat16(),
    "half": lambda t: t.half(),
    "wide": lambda t: torch.cat([t.reshape(-1), t.reshape(-1)]),
    "flat": lambda t: t.reshape(1, -1, 1),
    "empty": lambda t: t.reshape(-1)[:0],
    "large": lambda t: torch.zeros(2**22, dtype=torch.uint8),
    "negative": lambda t: -1 - t,
    "twice": lambda t: torch.zeros_like(t),
    "others": lambda t: t + 1000,
}


def _tensors(path: Path, step: Step) -> None:
    """Change one tensor, by its name or its number in alphabetical order."""
    tensors, meta = load_tensors(path.read_bytes()), _meta_of(path)
    large = step["how"] in ("inf", "huge")  # an attacker's moments may be: it does not act by them
    some = sorted(
        name
        for name, tensor in tensors.items()
        if tensor.numel() and not (large and name.rpartition(".")[2] in ("first", "second"))
    )
    name = step.get("name") or some[step["index"] % len(some)]
    if step["how"] == "missing":
        del tensors[name]
    elif step["how"] == "extra":
        tensors["a stranger"] = torch.zeros(3)
    else:
        tensors[name] = HOW[step["how"]](tensors[name])
    if meta is not None and step.get("seal") == "meta":
        from mithridate.tensor_files import seal

        meta = seal(tensors, meta)
    _save(path, tensors, None if meta is None else json.dumps(meta))
    if step.get("seal") == "card":
        seal_card(path, step)


def seal_card(path: Path, step: Step) -> None:
    """Let the card beside the weights have their checksum."""
    card = path.with_suffix(".json")
    document = json.loads(card.read_text())
    document["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    card.write_text(json.dumps(document, indent=2) + "\n")


def _seal_manifest(path: Path, step: Step) -> None:
    """Let an artifact's manifest have the checksums of its files as they are now."""
    manifest = path / "manifest.json"
    document = json.loads(manifest.read_text())
    for name in document["files"]:
        data = (path / name).read_bytes()
        document["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    manifest.write_text(json.dumps(document, indent=2) + "\n")


OPERATIONS: dict[str, Callable[[Path, Step], None]] = {
    "write": _write, "flip": _flip, "truncate": _truncate, "append": _append, "encode": _encode,
    "remove": _gone,
    "fifo": _fifo, "folder": _folder, "link": _link, "rename": _rename, "chmod": _chmod,
    "json": _json, "key": _key, "line": _line, "meta": _meta, "tensors": _tensors,
    "seal card": seal_card, "seal manifest": _seal_manifest,
}  # fmt: skip
