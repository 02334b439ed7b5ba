"""Stages as tasks of a Ray cluster."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from mithridate.errors import UserError
from mithridate.experiments.frontier import (
    POLL_SECONDS,
    RETRIES,
    Frontier,
    Watcher,
    count_loss,
    perform_elsewhere,
)
from mithridate.experiments.stages import Outcome, Stage
from mithridate.experiments.store import Store
from mithridate.files import reason, shown

LOOPBACK = ("127.", "localhost")


def host_and_port(address: str) -> tuple[str, int]:
    match = re.fullmatch(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})", address)
    if match is None or not 0 < int(match[2]) < 2**16:
        raise UserError(f"--address '{shown(address)}': expected HOST:PORT, e.g. 10.0.0.1:6379")
    return match[1].strip("[]"), int(match[2])


def check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    try:
        socket.create_connection(host_and_port(address), timeout=10).close()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot reach the Ray cluster {address}: {reason(error)}") from None


def run_on_ray(
    frontier: Frontier, store: Store, shipped: bool, watcher: Watcher, address: str | None
) -> None:
    """Stages as Ray tasks that ask for their threads. Ray tries a task again when its worker or
    node dies; the store, on a path that all nodes share, keeps what was finished."""
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
            raise UserError(f"cannot reach the Ray cluster {address}: {reason(error)}") from None
    task = ray.remote(perform_elsewhere)
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
                    count_loss(losses, stage)
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
