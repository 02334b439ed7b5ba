"""What the environments' presets have in common."""

from __future__ import annotations

from typing import Any

SMALL_BATCHES: dict[str, Any] = {
    "long_batch": 16, "short_batch": 16, "short_length": 10,
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
PAPER_PRETRAIN: dict[str, Any] = {  # 400 epochs of 1,250 batches of 64, as in the original code
    "steps": 500_000,
    "optimiser": CONSTANT,
    "batches": {"long_every": 1},
    "evaluate_every": 12_500,
    "checkpoint_every": 1000,
}
PAPER_DISTILL: dict[str, Any] = {  # where the paper says anything; steps as in pretraining
    **PAPER_PRETRAIN,
    "optimiser": {**CONSTANT, "learning_rate": 1e-4},
}
PAPER_TRAIN: dict[str, Any] = {
    # Algorithm 1 as printed: every task under attack, by attackers that only the penalty keeps to
    # their budget while they learn; no synthetic contexts, no memory, temperature 1.
    "threats": [{"attacker": "gaussian(project=false)"}],
    "rounds": 20,
    "iterations": 20,
    "temperature": 1.0,
    "renew": 0.0,
    "memory": 1,
    "synthetic": {"rounds": 0, "share": 0.0},
    "optimiser": {**CONSTANT, "learning_rate": 1e-4},
    "batches": {"long_every": 1},
    "compare_every": 1,
    "evaluate_every": 5,
}
