"""How long the command takes to say what it can do."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def startup(repetitions: int) -> dict[str, float]:
    """Median seconds of `mithridate --help`, and of a Python that does nothing, in turns."""
    commands = {"help_s": ["-m", "mithridate", "--help"], "python_s": ["-c", "pass"]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repetitions + 1):
        for name, arguments in commands.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(some[1:]) for name, some in seconds.items()}
