"""Stages in processes on this machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any

from mithridate.experiments.frontier import (
    POLL_SECONDS,
    Frontier,
    Watcher,
    count_loss,
    perform_elsewhere,
)
from mithridate.experiments.stages import Outcome, Stage
from mithridate.experiments.store import Store


class _Worker:
    """What a local worker knows about itself."""

    busy = False
    stopping = False

    @classmethod
    def begin(cls) -> None:
        # Waiting threads of one worker should not spin on the cores of another.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        signal.signal(signal.SIGTERM, cls.stop)
        threading.Thread(target=_end_with_parent, daemon=True).start()

    @classmethod
    def stop(cls, *_: Any) -> None:
        """Asked to stop: leave the stage, lift its claim. (A training has a way of its own, which
        keeps what it has done.) A worker that is idle waits to be told that there is no more."""
        cls.stopping = True
        if cls.busy:
            raise SystemExit

    @classmethod
    def perform(cls, stage: Stage, root: str, shipped: bool) -> Outcome:
        if cls.stopping:
            raise SystemExit
        cls.busy = True
        try:
            return perform_elsewhere(stage, root, shipped)
        finally:
            cls.busy = False


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that are started within never hear Ctrl-C: the terminal tells everybody, but it is
    for the parent to say what comes of it."""
    if not hasattr(signal, "pthread_sigmask"):  # not a POSIX system
        yield
        return
    resource_tracker.ensure_running()  # it lets signals through as it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_in_processes(
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
                    with _deaf_children():
                        future = pool.submit(_Worker.perform, stage, str(store.root), shipped)
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
                except (BrokenProcessPool, SystemExit):
                    broken = True
                    count_loss(losses, stage)
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
        _end(pool, bool(running))


def _new_pool(count: int) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=_Worker.begin
    )


def _end(pool: concurrent.futures.ProcessPoolExecutor, busy: bool) -> None:
    """Let the workers go. Those that are busy are asked to stop, and may finish their step; who
    does not want to wait for that interrupts again."""
    workers = list((pool._processes or {}).values()) if busy else []
    try:
        for worker in workers:
            worker.terminate()
        pool.shutdown(wait=busy, cancel_futures=True)
    except KeyboardInterrupt:
        for worker in workers:
            worker.kill()
        raise
