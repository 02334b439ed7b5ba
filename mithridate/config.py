"""What configurations are made of: frozen, strict, and each default written once.

Those of stages are in stage_config.py, those of environments, agents and attackers in their files;
settings.py makes them of what a user says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

IN_ROOMS = 10.0
"""The budget in environments with states, where an attack is a table of states and actions."""
LARGE = 1e6
"""No number that is not a count is larger: its square still means something in 32 bits."""
SMALL = 1e-9
"""And none that must not be zero is smaller."""
Positive = Annotated[int, Field(gt=0, lt=2**31)]
Points = Annotated[int, Field(ge=3, le=10_001)]
"""Of a grid."""
NonNegative = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Threads = Annotated[int, Field(gt=0, le=1024)]
Replications = Annotated[int, Field(gt=0, le=1000)]
Number = Annotated[float, Field(ge=-LARGE, le=LARGE, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(ge=SMALL, le=LARGE, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=LARGE, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
COLDEST, HOTTEST = 1e-3, 1e3
Temperature = Annotated[float, Field(ge=COLDEST, le=HOTTEST, allow_inf_nan=False)]
"""Of a distribution that actions are sampled from. Below, it is greedy; above, it is uniform."""


def as_tuple(value: Any) -> Any:
    """Lists (from JSON) and single names are welcome where a tuple is kept."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]


class Config(BaseModel):
    """Base of all configurations: immutable, no unknown keys, no silent conversions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    later: ClassVar[tuple[str, ...]] = ()
    """Fields that were added when there were runs and stores already. At their defaults they are
    left out of what identifies a configuration, so that these stay what they are."""

    def to_json(self) -> dict[str, Any]:
        data = self.model_dump(mode="json")
        fields = type(self).model_fields
        for name in self.later:
            if getattr(self, name) == fields[name].default:
                del data[name]
        return data

    def cautions(self) -> Iterator[str]:
        """What is allowed, and probably not what is meant."""
        yield from ()

    def hash(self) -> str:
        """Twelve hex digits that identify this configuration's content."""
        return hash_of(self.to_json())


def hash_of(content: dict[str, Any]) -> str:
    """The same of a configuration that is data, perhaps of an earlier version."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class EnvConfig(Config):
    """Base of the environments' configurations (each in the environment's own file)."""

    which_tasks: ClassVar[tuple[str, ...]] = ()
    """Fields that say which of the environment's tasks are drawn, and change nothing in any."""
    name: str
    """The environment's registered name."""
    horizon: Positive
    """Steps of an episode (H)."""

    def facts(self) -> dict[str, float]:
        """What algorithms that ask are told of it, by name."""
        return {}

    def memory(self) -> tuple[float, float]:
        """Bytes, roughly, that the environment needs once, and for each task. An environment whose
        tasks are large says so."""
        return 0.0, 0.0


class ModelConfig(Config):
    """The transformer."""

    layers: Positive = 4
    """Number of blocks."""
    heads: Positive = 4
    """Attention heads per block."""
    width: Positive = 32
    """Embedding dimension; must be a multiple of `heads`."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class OptimiserConfig(Config):
    """AdamW with a linear warm-up and a cosine decay."""

    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate."""
    warmup_steps: NonNegative = 100
    """Steps over which the learning rate rises from zero."""
    final_fraction: Fraction = 0.02
    """The cosine ends at this fraction of the peak; 1 keeps the rate constant."""
    weight_decay: NonNegativeFloat = 1e-4
    """Decoupled weight decay."""
    clip_norm: PositiveFloat | None = 1.0
    """Gradient norm above which gradients are scaled down; null for no clipping."""
