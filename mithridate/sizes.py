"""What a configuration needs of memory, roughly. What no machine holds is refused, in one line,
before anything is allocated or written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mithridate.config import Config, EnvConfig, ModelConfig
from mithridate.errors import UserError
from mithridate.stage_config import (
    AdversarialConfig,
    AttackConfig,
    BatchesConfig,
    DistillConfig,
    EvaluateConfig,
    PretrainConfig,
)

STEP = 48
"""Bytes of one step of one task in a trajectory."""
STREAMS = 16_384
"""Bytes of one task's random streams."""
OPTIMISED = 16
"""Bytes of a parameter, with its gradient and Adam's moments."""
KEPT = 20
"""Numbers that the backward pass keeps for each token, layer and unit of width."""


def check_size(config: Config) -> None:
    """Raise a UserError if this machine cannot hold what the configuration describes."""
    for what, size in _parts(config).items():
        require(size, what)


def require(size: float, what: str) -> None:
    """Raise a UserError if so many bytes, for `what`, are more than there are."""
    have = available()
    if size > have:
        raise UserError(
            f"{what} would need about {_readable(size)} of memory, this machine has "
            f"{_readable(have)}: choose less"
        )


def _parts(config: Any) -> Mapping[str, float]:
    """Bytes by what needs them; each name says what to lower."""
    env: EnvConfig = config.env
    once, each = env.memory()
    parts: dict[str, float] = {"env": once}
    model = getattr(config, "model", ModelConfig())
    if isinstance(config, PretrainConfig | AdversarialConfig):
        parts["model"] = _model(model, env)
        parts["batches or model"] = _batches(config.batches, model, each)
        measured = max(config.evaluate_tasks, config.final_tasks)
        at_once = min(measured, 250)
        parts["evaluate_tasks, final_tasks or env"] = _rollout(measured, at_once, env, model)
    if isinstance(config, DistillConfig):
        parts["pool × tasks"] = (config.pool + 1) * config.tasks * env.horizon * STEP
    if isinstance(config, AdversarialConfig):
        parts["memory × tasks"] = config.memory * config.tasks * env.horizon * STEP
    if isinstance(config, DistillConfig | AdversarialConfig | AttackConfig):
        parts["tasks or env"] = _rollout(config.tasks, config.tasks, env, model)
    if isinstance(config, EvaluateConfig):
        parts["tasks or env"] = _rollout(config.tasks, min(config.tasks, config.block), env, model)
    return parts


def _model(model: ModelConfig, env: EnvConfig) -> float:
    width = float(model.width)
    return OPTIMISED * (model.layers * 12 * width * width + 2 * env.horizon * width)


def _batches(batches: BatchesConfig, model: ModelConfig, each: float) -> float:
    def one(batch: int, length: int) -> float:
        tokens = float(batch) * (length + 1)
        return tokens * (4 * KEPT * model.layers * model.width + STEP) + batch * each

    return max(
        one(batches.long_batch, batches.long_length), one(batches.short_batch, batches.short_length)
    )


def _rollout(tasks: int, at_once: int, env: EnvConfig, model: ModelConfig) -> float:
    """Scores of all tasks; trajectory, streams and the model's cache of those at once."""
    cache = 8.0 * model.layers * model.width * (env.horizon + 16)
    here = at_once * (env.horizon * STEP + STREAMS + cache)
    return here + tasks * (env.memory()[1] + 8 * env.horizon)


def available() -> float:
    """Bytes of memory that this process may use."""
    limits = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        limits.append(float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(ValueError, OSError):  # a container's
        limits.append(float(Path("/sys/fs/cgroup/memory.max").read_text()))
    with contextlib.suppress(ImportError):
        import resource

        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        if soft != resource.RLIM_INFINITY:
            limits.append(float(soft))
    return min(limits, default=float("inf"))


def _readable(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} PB"
