"""Batches that are made while the one before is learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def made_ahead(make: Callable[[int], T], count: int, so: bool = True) -> Iterator[T]:
    """make(0), make(1), … in this order. If so, each is made in another thread while the caller
    works with the one before: for callers whose work is in the kernels, which leave Python alone.
    `make` must not depend on that work. The other thread has one thread of PyTorch's."""
    if not so:
        yield from map(make, range(count))
        return
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        coming = pool.submit(make, 0)
        for i in range(count):
            here = coming.result()
            if i + 1 < count:
                coming = pool.submit(make, i + 1)
            yield here
