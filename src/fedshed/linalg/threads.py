"""One thread for BLAS, so that a computation gives the same bits on any machine with this library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from threadpoolctl import threadpool_limits

HELD: ContextVar[bool] = ContextVar("held", default=False)  # whether somebody around holds BLAS at one thread


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold BLAS at one thread, unless that is so already: the limit is one of the whole process."""
    if HELD.get():
        yield
        return
    with threadpool_limits(1):
        token = HELD.set(True)
        try:
            yield
        finally:
            HELD.reset(token)
