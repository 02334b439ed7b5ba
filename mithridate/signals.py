"""Being asked to stop, at a moment that does no harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def postponed() -> Iterator[None]:
    """Signals that ask for a stop are heard after the block, not within it."""
    if threading.current_thread() is not threading.main_thread():  # it hears none
        yield
        return
    with _kept(signal.SIGINT), _kept(signal.SIGTERM):
        yield


@contextmanager
def _kept(number: int) -> Iterator[None]:
    before = signal.getsignal(number)
    if before is None:  # somebody's who is not Python: it raises nothing here
        yield
        return
    came = False

    def note(*_: Any) -> None:
        nonlocal came
        came = True

    try:
        signal.signal(number, note)
        yield
    finally:
        signal.signal(number, before)
        if came:
            signal.raise_signal(number)


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Whether a stop was asked for, to be looked at between two steps; who asks a second time is
    heard at once."""
    requested = False

    def request(number: int, frame: Any) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = {number: signal.signal(number, request) for number in STOPPING}
    try:
        yield lambda: requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
