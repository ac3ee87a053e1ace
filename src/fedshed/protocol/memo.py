"""Results that one process need not compute twice: bounded in bytes, and found by content only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any

import numpy as np

from fedshed.linalg.arrays import Matrix

MOST_BYTES = 64 * 2**20


def same(one: Matrix, other: Matrix) -> bool:
    """Whether two arrays, which nobody writes to, have the same entries."""
    return one is other or np.array_equal(one, other)


class Memo:
    """The newest results by key, up to a number of bytes in all; what is not found is computed again."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._held = most, 0
        self._known: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """What is known by that key, or None."""
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
        return None if found is None else found[0]

    def drop(self, key: Hashable) -> Any:
        """The value of that key, or None; it is removed, because nobody asks for it again."""
        with self._lock:
            found, gone = self._known.pop(key, (None, 0))
            self._held -= gone
        return found

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Remember a value of that many bytes; the oldest ones give way."""
        with self._lock:
            self._held -= self._known.pop(key, (None, 0))[1]
            self._known[key], self._held = (value, size), self._held + size
            while self._held > self._most:
                _, (_, gone) = self._known.popitem(last=False)
                self._held -= gone

    @property
    def nbytes(self) -> int:
        """Bytes of what is remembered."""
        return self._held
