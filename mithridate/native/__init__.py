"""The native CPU kernels, if they were built.

MITHRIDATE_KERNELS=reference forces the PyTorch path, =native makes a missing build an error;
MITHRIDATE_ISA=avx2 (avx512, portable) forces an instruction set.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

from mithridate.errors import UserError, unknown

MODES = ("auto", "native", "reference")
HEAD_WIDTHS = (8, 16, 32)
ALIGNMENT = 16
"""Model widths and cache capacities that the kernels take are multiples of this."""


@cache
def kernels() -> Any:
    """The extension module, or None if it is not built or not wanted."""
    mode = os.environ.get("MITHRIDATE_KERNELS", "auto")
    if mode not in MODES:
        raise unknown("value of MITHRIDATE_KERNELS", mode, MODES)
    if mode == "reference":
        return None
    try:
        module = importlib.import_module("mithridate.native._kernels")
    except ImportError:
        if mode == "native":
            raise UserError(
                "MITHRIDATE_KERNELS=native, but the native kernels are not built: "
                "reinstall mithridate with a C++ compiler, or unset the variable"
            ) from None
        return None
    wanted = os.environ.get("MITHRIDATE_ISA")
    if wanted:
        if wanted not in module.instruction_sets():
            raise unknown("MITHRIDATE_ISA on this machine", wanted, module.instruction_sets())
        module.use(wanted)
    return module


def description() -> str:
    """For `mithridate doctor`."""
    module = kernels()
    if module is not None:
        return f"yes ({module.active()}; available: {', '.join(module.instruction_sets())})"
    if os.environ.get("MITHRIDATE_KERNELS") == "reference":
        return "no (MITHRIDATE_KERNELS=reference)"
    return "no (not built: reinstall with a C++ compiler)"
