"""What the environments' presets have in common."""

from __future__ import annotations

from typing import Any

SMALL_BATCHES: dict[str, Any] = {
    "long_batch": 16, "long_length": 20, "short_batch": 16, "short_length": 10,
}  # fmt: skip
SMOKE_PRETRAIN: dict[str, Any] = {  # of seconds
    "threads": 1,
    "model": {"layers": 2, "heads": 2, "width": 16},
    "steps": 60,
    "optimiser": {"warmup_steps": 5, "learning_rate": 3e-3},
    "batches": SMALL_BATCHES,
    "log_every": 5,
    "evaluate_every": 20,
    "evaluate_tasks": 50,
    "final_tasks": 100,
    "checkpoint_every": 10,
}
SMOKE_TRAIN: dict[str, Any] = {
    "threads": 1,
    "tasks": 20,
    "rounds": 3,
    "iterations": 5,
    "synthetic": {"rounds": 2},
    "optimiser": {"warmup_steps": 5},
    "batches": SMALL_BATCHES,
    "compare_every": 1,
    "evaluate_every": 2,
    "evaluate_tasks": 20,
    "final_tasks": 40,
    "checkpoint_every": 1,
}
CONSTANT: dict[str, Any] = {"warmup_steps": 0, "final_fraction": 1.0, "clip_norm": None}
"""The paper's optimiser: neither warm-up nor decay nor clipping."""
