"""Two processes on the same cores: how much longer each takes than one alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

KINDS = ("rollout", "train_step")

WORK = """
import json, sys, time
import torch
from mithridate.agents.in_context import InContextAgent
from mithridate.bench import run

kind, threads, batch, length = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
model = run.bandit_model(length)
if kind == "rollout":
    work = run.rolling(InContextAgent(model), batch, length)
else:
    work = run.training(model, model, batch, length)
work()
for line in sys.stdin:
    seconds, until = [], time.perf_counter() + float(line)
    while not seconds or time.perf_counter() < until:
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    print(json.dumps(seconds), flush=True)
"""
"""What each process runs: it works as long as a line of its input says, and prints how long each
repetition took."""


@dataclass(frozen=True)
class Sharing:
    name: str
    alone_s: float
    together_s: float
    """The slower of the two."""
    ratio: float


def two_at_once(
    threads: int, tasks: int, batch: int, length: int, seconds: float, turns: int
) -> list[Sharing]:
    """Medians over turns of one alone and both at once, for rollouts and for training steps."""
    return [
        _shared(kind, threads, tasks if kind == "rollout" else batch, length, seconds, turns)
        for kind in KINDS
    ]


def _shared(
    kind: str, threads: int, batch: int, length: int, seconds: float, turns: int
) -> Sharing:
    command = [sys.executable, "-c", WORK, kind, *map(str, (threads, batch, length))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as other:
        alone, together = [], []
        _work([one, other], 0)  # until both are ready
        for _ in range(turns):
            alone.append(_work([one], seconds)[0])
            together.append(max(_work([one, other], 2 * seconds)))
        for process in (one, other):
            process.communicate()  # the end of its input is the end of its work
    a, b = statistics.median(alone), statistics.median(together)
    return Sharing(kind, a, b, b / a)


def _work(processes: list[Any], seconds: float) -> list[float]:
    """The median repetition of each, at once."""
    for process in processes:
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
    return [statistics.median(json.loads(p.stdout.readline())) for p in processes]
