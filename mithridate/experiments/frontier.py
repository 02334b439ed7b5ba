"""How far a graph of stages is: what is done, what can be done next, and who looks on."""

from __future__ import annotations

from typing import Protocol

from mithridate.errors import UserError
from mithridate.experiments.stages import Outcome, Stage, perform
from mithridate.experiments.store import Store
from mithridate.users_code import import_extensions

POLL_SECONDS = 0.25
RETRIES = 6
"""How often a stage may lose its worker before that is taken to be the stage's fault. (When a local
worker dies, the stages of its neighbours are lost with it.)"""


class Watcher(Protocol):
    """Somebody who looks on while the graph is worked off."""

    def planned(self, stages: list[Stage], done: set[str]) -> None: ...

    def started(self, stage: Stage) -> None: ...

    def finished(self, stage: Stage, outcome: Outcome) -> None: ...


class Nobody:
    """A watcher that looks away."""

    def planned(self, stages: list[Stage], done: set[str]) -> None:
        pass

    def started(self, stage: Stage) -> None:
        pass

    def finished(self, stage: Stage, outcome: Outcome) -> None:
        pass


class Frontier:
    """Which stages are done, and which can be done next."""

    def __init__(self, stages: list[Stage], store: Store) -> None:
        self.waiting = {stage.name: stage for stage in stages}
        self.done: set[str] = set()
        for stage in stages:
            if store.get(stage.name) is not None:
                self.finish(stage)

    def finish(self, stage: Stage) -> None:
        self.waiting.pop(stage.name, None)
        self.done.add(stage.name)

    def ready(self, running: set[str]) -> list[Stage]:
        return [
            stage
            for stage in self.waiting.values()
            if stage.name not in running
            and all(part.name in self.done for part in stage.inputs.values())
        ]


def perform_elsewhere(stage: Stage, root: str, shipped: bool) -> Outcome:
    """For a process that is given nothing but the store's path."""
    import_extensions()
    return perform(stage, Store(root), shipped=shipped)


def count_loss(losses: dict[str, int], stage: Stage) -> None:
    """Of a stage whose worker died."""
    losses[stage.name] = losses.get(stage.name, 0) + 1
    if losses[stage.name] > RETRIES:
        raise UserError(
            f"{stage.label}: its worker died {losses[stage.name]} times; is there enough memory?"
        )
