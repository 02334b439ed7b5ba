"""What agents see of a state: nothing, the number of a state, an array, several by name, or a view:
a number for which arrays can be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Observation = Tensor | dict[str, Tensor] | None
"""Of B tasks: nothing (bandits), a tensor whose first axis is B, or a dict of such tensors."""


@dataclass(frozen=True)
class States:
    """Observations are the numbers of states, 0 … count − 1: int64, one for each task."""

    count: int


@dataclass(frozen=True)
class Array:
    """Observations are arrays. Three axes are an image (height, width, channels); bytes count
    from 0 to 255."""

    shape: tuple[int, ...]
    """Without the batch axis."""
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Views:
    """Observations are the numbers of views, int64, one for each task. What a view shows is fetched
    when somebody looks: the same number always shows the same, and says nothing by itself."""

    parts: Mapping[str, Array]
    """What a view shows, by name."""
    look: Callable[[Tensor], dict[str, Tensor]] = field(compare=False, repr=False)
    """The arrays (N, ...) of views (N,), by name."""


ObservationSpec = States | Array | Mapping[str, Array] | Views | None
"""What an environment's observations are; None if there is nothing to observe."""


def parts(spec: ObservationSpec) -> dict[str, Array]:
    """The arrays of an observation by name; one without a name is ''."""
    if isinstance(spec, Array):
        return {"": spec}
    if isinstance(spec, Views):
        return dict(spec.parts)
    return dict(spec) if isinstance(spec, Mapping) else {}


def describe(spec: ObservationSpec) -> str:
    """For messages: 'no states', '25 states', 'observations image (8, 8, 3) uint8'."""
    if spec is None:
        return "no states"
    if isinstance(spec, States):
        return f"{spec.count} states"
    kinds = [
        f"{name} {part.shape} {str(part.dtype).removeprefix('torch.')}".strip()
        for name, part in sorted(parts(spec).items())
    ]
    return f"{'views' if isinstance(spec, Views) else 'observations'} {', '.join(kinds)}"


def fits(observation: Any, spec: ObservationSpec, batch: int) -> bool:
    """Whether it is what `spec` says, for so many tasks."""

    def is_(tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        good = isinstance(tensor, Tensor) and tensor.dtype == dtype
        return good and tuple(tensor.shape) == (batch, *shape)

    if spec is None:
        return observation is None
    if isinstance(spec, States | Views):
        return is_(observation, (), torch.int64)
    if isinstance(spec, Array):
        return is_(observation, spec.shape, spec.dtype)
    return (
        isinstance(observation, dict)
        and observation.keys() == spec.keys()
        and all(is_(observation[name], part.shape, part.dtype) for name, part in spec.items())
    )


def looked_at(observation: Observation, spec: ObservationSpec) -> Observation:
    """What it shows, if it is views' numbers; else what it is."""
    if isinstance(spec, Views) and isinstance(observation, Tensor):
        return spec.look(observation)
    return observation


def own(observation: Any) -> Any:
    """An observation, or a state, in memory of its own: whoever is handed it may do with it what he
    likes."""
    return each(observation, lambda x: x.clone())


def rows_of(value: Any, rows: Tensor | slice) -> Any:
    """Some of the tasks."""
    return each(value, lambda x: x[rows])


def equal(one: Observation, other: Observation) -> bool:
    """Whether they are the same, number by number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(torch.equal(t, other[k]) for k, t in one.items())
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one is other


def each(observation: Observation, f: Callable[[Tensor], Tensor]) -> Observation:
    """f of the tensor, or of each of them."""
    if observation is None:
        return None
    if isinstance(observation, dict):
        return {name: f(value) for name, value in observation.items()}
    return f(observation)


def join(observations: list[Observation]) -> Observation:
    """One after the other, along the first axis."""
    first = observations[0]
    if isinstance(first, dict):
        return {k: torch.cat([o[k] for o in observations]) for k in first}  # type: ignore[index,call-overload]
    return None if first is None else torch.cat(observations)  # type: ignore[arg-type]
