"""Who runs on how many threads.

The kernels have threads of their own, which wait without holding on to a core. PyTorch's threads
hold on to theirs for milliseconds after each operation, in the way of the kernels and of any other
process. Where the kernels do the work, what is left to PyTorch is small, and one thread does it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Wanted(threading.local):
    number: int | None = None


_WANTED = _Wanted()


def kernel_threads() -> int:
    """How many threads the kernels have: as many as PyTorch has or, while that has but one on their
    account, had before."""
    return torch.get_num_threads() if _WANTED.number is None else _WANTED.number


@contextmanager
def left_to_kernels(so: bool = True) -> Iterator[None]:
    """If so, PyTorch has one thread in here, and the kernels have all that are wanted."""
    if not so or _WANTED.number is not None:
        yield
        return
    _WANTED.number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_WANTED.number)
        _WANTED.number = None
