"""The training loop: step, log, evaluate, checkpoint, resume.

What is trained is a `Trainee`; the loop knows nothing else about it. Its state is a dict of
tensors and its randomness is a function of (seed, step), so a run killed at any moment and
started again ends with the same bits as one that was never disturbed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mithridate.errors import Interrupted
from mithridate.signals import stop_asked
from mithridate.tensor_files import misfit
from mithridate.training.run_directory import RunDirectory

Values = dict[str, float]


class Trainee(Protocol):
    def step(self, step: int) -> Values:
        """Do update number `step` (from 0); what to log. Raises TrainingDiverged beforehand."""
        ...

    def evaluate(self, step: int) -> Values:
        """Measure without side effects, after `step` updates."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Everything that `step` changes."""
        ...

    def load_tensors(self, tensors: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Cadence:
    """When things happen, in steps."""

    steps: int
    log_every: int
    evaluate_every: int
    checkpoint_every: int


class Watcher(Protocol):
    """Somebody who looks on: a progress bar, TensorBoard, a test."""

    def prepared(self, done: int, total: int) -> None:
        """Before the first step, where an environment has something to prepare."""
        ...

    def started(self, step: int, total: int) -> None: ...

    def stepped(self, step: int, values: Values) -> None: ...

    def logged(self, step: int, values: Values) -> None: ...


def train(
    trainee: Trainee, cadence: Cadence, run: RunDirectory, watchers: list[Watcher] | None = None
) -> None:
    """Bring `trainee` to `cadence.steps`, from the run's checkpoint if it has one."""
    watchers = watchers or []
    step, seconds = _restore(trainee, run, cadence.steps)
    for watcher in watchers:
        watcher.started(step, cadence.steps)

    def log(step: int, values: Values) -> None:
        run.append_log({"step": step, **values})
        for watcher in watchers:
            watcher.logged(step, values)

    def checkpoint() -> None:
        meta = {"step": step, "seconds": seconds + time.monotonic() - begun}
        run.save_checkpoint(trainee.tensors(), meta)

    begun = time.monotonic()
    with stop_asked() as stop_requested:
        while step < cadence.steps:
            values = trainee.step(step)
            step += 1
            for watcher in watchers:
                watcher.stepped(step, values)
            if step % cadence.log_every == 0 or step == 1:
                log(step, {**values, "seconds": seconds + time.monotonic() - begun})
            if step % cadence.evaluate_every == 0 or step == cadence.steps:
                log(step, trainee.evaluate(step))
            if step % cadence.checkpoint_every == 0 or step == cadence.steps or stop_requested():
                checkpoint()
            if stop_requested() and step < cadence.steps:
                raise Interrupted(f"stopped after step {step} of {cadence.steps}")


def _restore(trainee: Trainee, run: RunDirectory, last: int) -> tuple[int, float]:
    """Load the checkpoint, if any; forget log lines that are younger than it."""
    found = run.load_checkpoint()
    if found is None:
        run.truncate_log(0)
        return 0, 0.0
    tensors, meta = found
    try:
        trainee.load_tensors(tensors)
        fits = misfit(trainee.tensors(), tensors) is None and 0 <= meta["step"] <= last
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError):
        fits = False
    if not fits:
        raise run.damaged()
    run.truncate_log(meta["step"])
    return int(meta["step"]), float(meta["seconds"])
