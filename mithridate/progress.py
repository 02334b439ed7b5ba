"""Progress on the terminal (standard error); silent when nobody is looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mithridate.training.loop import Values


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}/s" if speed else "", style="cyan")


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(),
        TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip


class TrainingProgress:
    """A watcher of the training loop: a bar with rate, time left, loss or score, and the last
    evaluation."""

    SHOWN: ClassVar[dict[str, tuple[str, int]]] = {
        "loss": ("loss", 3), "score_mean": ("target", 1), "score_0_gaussian": ("under attack", 1),
        "norm_max": ("norm", 2),
    }  # fmt: skip

    def __init__(self, description: str, progress: Progress | None = None) -> None:
        self._progress = progress or _progress()
        self._description = description
        self._evaluation = ""

    def another(self, description: str) -> TrainingProgress:
        """A bar of its own for another run, below this one."""
        return TrainingProgress(description, self._progress)

    def __enter__(self) -> TrainingProgress:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def started(self, step: int, total: int) -> None:
        self._task = self._progress.add_task(
            self._description, total=total, completed=step, note=""
        )

    def stepped(self, step: int, values: Values) -> None:
        shown = [
            f"{label} {values[key]:.{digits}f}"
            for key, (label, digits) in self.SHOWN.items()
            if key in values
        ]
        note = ", ".join(shown) + self._evaluation
        self._progress.update(self._task, completed=step, note=note)

    def logged(self, step: int, values: Values) -> None:
        if "clean_mean" in values:
            self._evaluation = f", clean {values['clean_mean']:.2f}"


@contextmanager
def counting(description: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar that moves by one each time the function it yields is called."""
    with _progress() as progress:
        task = progress.add_task(description, total=total, note="")
        yield lambda: progress.advance(task)
