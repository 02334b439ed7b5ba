"""What is installed, and what this machine offers."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from mithridate.model.weights import zoo_names
from mithridate.native import description, kernels
from mithridate.versions import installed, versions

EXTRAS = {
    "bench": ("transformers",), "docs": ("sphinx", "furo", "myst_parser"), "gym": ("gymnasium",),
    "miniworld": ("miniworld",), "pandas": ("pandas",), "polars": ("polars",), "ray": ("ray",),
    "tensorboard": ("tensorboard",),
}  # fmt: skip
"""Each extra and the packages that it brings."""


def examine() -> dict[str, Any]:
    accelerator = "none"
    if torch.cuda.is_available():
        accelerator = f"{torch.cuda.get_device_name()}, not used"
    elif torch.backends.mps.is_available():
        accelerator = "mps, not used"
    return {
        "versions": versions(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerator": accelerator,
        "native_kernels": kernels() is not None,
        "native_description": description(),
        "extras": {name: all(map(installed, needs)) for name, needs in EXTRAS.items()},
        "zoo": zoo_names(),
    }
