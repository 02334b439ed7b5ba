"""Who runs the stages: this process, local processes, or a Ray cluster. The graph is the same, the
stages are the same, and so are the records.

Whoever it is, a stage is computed under a claim in the store (`stages.perform`), so that any number
of executors may share a store. A stage that somebody else is computing is looked at again later.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import multiprocessing
import os
import socket
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

from mithridate.errors import UserError, unknown
from mithridate.experiments.stages import Outcome, Stage, perform
from mithridate.experiments.store import Store

EXECUTORS = ("inline", "processes", "ray")
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


def check_executor(executor: str) -> None:
    """Raise a UserError if there is no such executor here."""
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    if executor == "ray" and importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed: pip install 'mithridate[ray]'")


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
    """Compute every stage that is not done yet."""
    check_executor(executor)
    watcher = watcher or Nobody()
    frontier = Frontier(stages, store)
    watcher.planned(stages, set(frontier.done))
    if not frontier.waiting:
        return
    if executor == "inline":
        _inline(frontier, store, shipped, watcher)
    elif executor == "processes":
        _processes(frontier, store, shipped, watcher, workers)
    else:
        with contextlib.redirect_stdout(sys.stderr):  # Ray says there what it thinks of dead nodes
            _ray(frontier, store, shipped, watcher, address)


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


# Local processes -------------------------------------------------------------------------------


def _perform_elsewhere(stage: Stage, root: str, shipped: bool) -> Outcome:
    return perform(stage, Store(root), shipped=shipped)


def _begin_worker() -> None:
    """Waiting threads of one worker should not spin on the cores of another."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _processes(
    frontier: Frontier, store: Store, shipped: bool, watcher: Watcher, workers: int | None
) -> None:
    """As many stages at a time as the cores have room for, by the threads their configurations
    fix. A worker that dies takes only its stages down, and they are tried again."""
    cores = os.cpu_count() or 1
    count = workers or cores
    room = max(cores, count)
    losses: dict[str, int] = {}
    pool = _new_pool(count)
    running: dict[concurrent.futures.Future[Outcome], Stage] = {}
    later: dict[str, float] = {}
    try:
        while frontier.waiting:
            broken = False
            used = sum(min(stage.threads, room) for stage in running.values())
            for stage in frontier.ready({s.name for s in running.values()}):
                need = min(stage.threads, room)
                if len(running) >= count or (running and used + need > room):
                    break
                if later.get(stage.name, 0.0) > time.monotonic():
                    continue
                try:
                    future = pool.submit(_perform_elsewhere, stage, str(store.root), shipped)
                except BrokenProcessPool:
                    broken = True
                    break
                watcher.started(stage)
                running[future] = stage
                used += need
            if not running and not broken:
                time.sleep(POLL_SECONDS)  # others are at all that could be done
                continue
            finished, _ = concurrent.futures.wait(
                running, POLL_SECONDS, concurrent.futures.FIRST_COMPLETED
            )
            for future in finished:
                stage = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    broken = True
                    _count_loss(losses, stage)
                    watcher.finished(stage, "busy")
                    continue
                watcher.finished(stage, outcome)
                if outcome == "busy":
                    later[stage.name] = time.monotonic() + POLL_SECONDS
                else:
                    frontier.finish(stage)
            if broken:
                for stage in running.values():
                    watcher.finished(stage, "busy")
                running.clear()
                pool.shutdown(wait=False, cancel_futures=True)
                pool = _new_pool(count)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _new_pool(count: int) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
    )


def _count_loss(losses: dict[str, int], stage: Stage) -> None:
    losses[stage.name] = losses.get(stage.name, 0) + 1
    if losses[stage.name] > RETRIES:
        raise UserError(
            f"{stage.label}: its worker died {losses[stage.name]} times; is there enough memory?"
        )


# Ray -------------------------------------------------------------------------------------------


LOOPBACK = ("127.", "localhost")


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot reach the Ray cluster {address}: {error}") from None


def _ray(
    frontier: Frontier, store: Store, shipped: bool, watcher: Watcher, address: str | None
) -> None:
    """Stages as Ray tasks that ask for their threads. Ray tries a task again when its worker or
    node dies; the store, on a path that all nodes share, keeps what was finished."""
    if address is not None:
        _check_reachable(address)
    if address is None or address.startswith(LOOPBACK):
        # A cluster on this machine alone. Ray would look for it at the machine's other address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    started_here = not ray.is_initialized()
    if started_here:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"cannot reach the Ray cluster {address}: {error}") from None
    task = ray.remote(_perform_elsewhere)
    root = str(Path(store.root).resolve())
    running: dict[Any, Stage] = {}
    losses: dict[str, int] = {}
    later: dict[str, float] = {}
    try:
        while frontier.waiting:
            cpus = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
            for stage in frontier.ready({s.name for s in running.values()}):
                if later.get(stage.name, 0.0) > time.monotonic():
                    continue
                if len(running) >= 2 * cpus:  # enough to keep everybody busy
                    break
                watcher.started(stage)
                options = {"num_cpus": min(stage.threads, cpus), "max_retries": RETRIES}
                running[task.options(**options).remote(stage, root, shipped)] = stage
            if not running:
                time.sleep(POLL_SECONDS)  # others are at all that could be done
                continue
            finished, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for reference in finished:
                stage = running.pop(reference)
                try:
                    outcome: Outcome = ray.get(reference)
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError,
                        ray.exceptions.ObjectLostError):  # fmt: skip
                    _count_loss(losses, stage)
                    outcome = "busy"
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                watcher.finished(stage, outcome)
                if outcome == "busy":
                    later[stage.name] = time.monotonic() + POLL_SECONDS
                else:
                    frontier.finish(stage)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started_here:
            ray.shutdown()
