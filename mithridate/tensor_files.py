"""Files of tensors (safetensors): nothing in them is ever run, and what they say is checked before
it is used. A file may come from anybody."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from mithridate.errors import UserError
from mithridate.files import parse_json, read_bytes, shown, write_atomic

LARGEST_HEADER = 16 * 2**20
SQUARES = "second"
"""What attackers call Adam's second moment."""


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """A digest of names, types, shapes and contents."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # PyTorch has no view of an empty one's bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def seal(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> dict[str, Any]:
    """`meta` with a digest of itself and the tensors, which are then known to belong together."""
    rest = {key: value for key, value in meta.items() if key != "sha256"}
    text = f"{tensors_sha256(tensors)} {json.dumps(rest, sort_keys=True)}"
    return {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def sealed(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a file of tensors says about them, if it is sealed."""
    try:
        meta = parse_json(metadata["meta"])
        return meta if seal(tensors, meta)["sha256"] == meta["sha256"] else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def packed(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The content of a file of tensors. (Each needs memory of its own, and some are views.)"""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        mine = tensor.detach().contiguous()
        place = mine.untyped_storage().data_ptr()
        apart[name] = mine.clone() if place in seen else mine
        seen.add(place)
    return save_tensors(apart, metadata=metadata)


def write_sealed(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Tensors, and what there is to say about them, in one file."""
    write_atomic(path, packed(tensors, {"meta": json.dumps(seal(tensors, meta))}))


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, Any], bytes]:
    """The tensors of a file, what its header says besides, and all its bytes; see `unpacked`."""
    data = read_bytes(path, what)
    return *unpacked(data, f"{what} {shown(path)}"), data


def unpacked(data: bytes, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file with this content, all of them finite, and what its header says
    besides. A UserError, which calls the file `name`, if it is no such file."""
    try:
        tensors = load_tensors(data)
        length = int.from_bytes(data[:8], "little")
        if length > LARGEST_HEADER:
            raise ValueError("the header is too long")
        metadata = parse_json(data[8 : 8 + length].decode()).get("__metadata__", {})
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise UserError(f"{name} is damaged: not a safetensors file ({shown(error)})") from None
    if (broken := not_finite(tensors)) is not None:
        raise UserError(f"{name} is damaged: '{shown(broken)}' is not finite")
    return tensors, metadata


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` as a part of more: what `part` undoes."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor with entries that are no numbers, or infinite; None if there is none.
    Squares of an attacker's steep gradients may be infinite: then it has stopped learning."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        values = tensor.float()
        steep = name.rpartition(".")[2] == SQUARES
        if not (~values.isnan() if steep else values.isfinite()).all():
            return name
    return None


def misfit(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """In what names, shapes or types they differ, or None."""
    for name in sorted(expected.keys() | found.keys()):
        wanted, got = (_form(tensors.get(name)) for tensors in (expected, found))
        if wanted != got:
            return f"'{shown(name, 80)}' should be {wanted}, is {got}"
    return None


def _form(tensor: Tensor | None) -> str:
    if tensor is None:
        return "absent"
    kind = (
        "" if tensor.dtype == torch.float32 else f" of {str(tensor.dtype).removeprefix('torch.')}"
    )
    return f"{tuple(tensor.shape)}{kind}"
