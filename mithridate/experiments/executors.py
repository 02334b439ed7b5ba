"""Who runs the stages: this process, local processes, or a Ray cluster. The graph is the same, the
stages are the same, and so are the records.

Whoever it is, a stage is computed under a claim in the store (`stages.perform`), so that any number
of executors may share a store. A stage that somebody else is computing is looked at again later.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time

from mithridate.errors import Interrupted, UserError, unknown
from mithridate.experiments.cluster import check_reachable, host_and_port, run_on_ray
from mithridate.experiments.frontier import POLL_SECONDS, Frontier, Nobody, Watcher
from mithridate.experiments.processes import run_in_processes
from mithridate.experiments.stages import Stage, perform
from mithridate.experiments.store import Store
from mithridate.files import shown

EXECUTORS = ("inline", "processes", "ray")
MANY_WORKERS = 256


def check_executor(executor: str, workers: int | None = None, address: str | None = None) -> None:
    """Raise a UserError if there is no such executor here."""
    if executor not in EXECUTORS:
        raise unknown("executor", shown(executor), EXECUTORS)
    if workers is not None and not 1 <= workers <= MANY_WORKERS:
        raise UserError(f"--workers must be from 1 to {MANY_WORKERS}, not {shown(workers)}")
    if address is not None:
        host_and_port(address)
    if executor != "ray":
        return
    if importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed: pip install 'mithridate[ray]'")
    if address is not None:
        check_reachable(address)


def run_graph(
    stages: list[Stage],
    store: Store,
    executor: str = "inline",
    *,
    workers: int | None = None,
    address: str | None = None,
    shipped: bool = False,
    watcher: Watcher | None = None,
) -> None:
    """Compute every stage that is not done yet. Interrupted if the user asks to stop."""
    check_executor(executor, workers, address)
    watcher = watcher or Nobody()
    frontier = Frontier(stages, store)
    watcher.planned(stages, set(frontier.done))
    if not frontier.waiting:
        return
    try:
        if executor == "inline":
            _inline(frontier, store, shipped, watcher)
        elif executor == "processes":
            run_in_processes(frontier, store, shipped, watcher, workers)
        else:
            # Ray says on standard output what it thinks of dead nodes.
            with contextlib.redirect_stdout(sys.stderr):
                run_on_ray(frontier, store, shipped, watcher, address)
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted("finished stages are kept") from None


def _inline(frontier: Frontier, store: Store, shipped: bool, watcher: Watcher) -> None:
    while frontier.waiting:
        moved = False
        for stage in frontier.ready(set()):
            watcher.started(stage)
            outcome = perform(stage, store, shipped=shipped)
            watcher.finished(stage, outcome)
            if outcome != "busy":
                frontier.finish(stage)
                moved = True
        if not moved:
            time.sleep(POLL_SECONDS)
