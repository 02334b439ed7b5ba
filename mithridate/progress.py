"""Progress on the terminal (standard error); silent when nobody is looking."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from mithridate.experiments.stages import Stage
    from mithridate.training.loop import Values, Watcher


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
        "loss": ("loss", 3), "score_mean": ("target", 1), "score_0_*": ("under attack", 1),
        "norm_max": ("norm", 2),
    }  # fmt: skip
    """By pattern: what a value is called, and with how many digits."""

    def __init__(self, description: str, progress: Progress | None = None) -> None:
        self._progress = progress or _progress()
        self._description = description
        self._evaluation = ""
        self._preparation: TaskID | None = None

    def another(self, description: str) -> TrainingProgress:
        """A bar of its own for another run, below this one."""
        return TrainingProgress(description, self._progress)

    def __enter__(self) -> TrainingProgress:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def prepared(self, done: int, total: int) -> None:
        if self._preparation is None:
            self._preparation = self._progress.add_task("prepare", total=total, note="")
        self._progress.update(self._preparation, completed=done)

    def started(self, step: int, total: int) -> None:
        self._task = self._progress.add_task(
            self._description, total=total, completed=step, note=""
        )

    def stepped(self, step: int, values: Values) -> None:
        shown = [
            f"{label} {values[key]:.{digits}f}"
            for pattern, (label, digits) in self.SHOWN.items()
            for key in fnmatch.filter(values, pattern)
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


class StressProgress:
    """An onlooker of a stress test: how many cells are done, and how far this one is."""

    def __init__(self) -> None:
        self._progress = _progress()
        self._bars = TrainingProgress("", self._progress)
        self._cell: TaskID | None = None

    def __enter__(self) -> StressProgress:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def planned(self, total: int) -> None:
        self._cells = self._progress.add_task("cells", total=total, note="")

    def training(self, name: str) -> list[Watcher]:
        return [self._bars.another(f"against it: {name}")]

    def began(self, name: str, steps: int) -> None:
        if steps:
            self._cell = self._progress.add_task(f"measure {name}", total=steps, note="")

    def stepped(self) -> None:
        if self._cell is not None:
            self._progress.advance(self._cell)

    def finished(self) -> None:
        if self._cell is not None:
            self._progress.remove_task(self._cell)
            self._cell = None
        self._progress.advance(self._cells)


class GraphProgress:
    """A watcher of a graph of stages: how many are done, what is running, how long it may take."""

    def __init__(self, seconds: Callable[[list[Stage]], float]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True), disable=not Console(stderr=True).is_terminal,
        )  # fmt: skip
        self._seconds = seconds
        self._running: dict[str, Stage] = {}
        self.computed: list[str] = []
        """Labels of the stages that were computed while it looked on."""

    def __enter__(self) -> GraphProgress:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def planned(self, stages: list[Stage], done: set[str]) -> None:
        self._left = {stage.name: stage for stage in stages if stage.name not in done}
        self._task = self._progress.add_task(
            "stages", total=len(stages), completed=len(stages) - len(self._left), note=""
        )

    def started(self, stage: Stage) -> None:
        self._running[stage.name] = stage
        self._show()

    def finished(self, stage: Stage, outcome: str) -> None:
        self._running.pop(stage.name, None)
        if outcome == "computed":
            self.computed.append(stage.label)
        if outcome != "busy" and self._left.pop(stage.name, None) is not None:
            self._progress.advance(self._task)
        self._show()

    def _show(self) -> None:
        if self._progress.disable:
            return
        left = self._seconds(list(self._left.values()))
        running = ", ".join(stage.label for stage in list(self._running.values())[:3])
        minutes, rest = divmod(int(left), 60)
        note = f"about {minutes}:{rest:02d} left; {running}"
        self._progress.update(self._task, note=note)
