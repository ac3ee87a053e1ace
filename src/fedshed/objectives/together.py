"""What several agents of one process ask for alike is computed once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import is_
from threading import RLock
from typing import Any, Generic, TypeVar

import numpy as np

from fedshed.linalg.arrays import Vector

T = TypeVar("T")


class SharedEvaluation(Generic[T]):
    """A function of vectors that many ask for alike: the second who asks has it computed for all.

    So nothing is computed for all that only one wants, unless nobody may compute `alone`.  The last two
    results are kept.
    """

    def __init__(self, compute: Callable[..., T], alone: bool = True) -> None:
        self._compute, self._alone, self._lock = compute, alone, RLock()
        self._kept: deque[tuple[tuple[Vector, ...], T]] = deque(maxlen=2)
        self._asked: deque[tuple[int, tuple[Vector, ...]]] = deque(maxlen=2)

    def __call__(self, who: int, *key: Vector) -> T | None:
        """The result for all; None to the first who asks, who computes alone."""
        if not self._alone:
            return self.found(*key)
        with self._lock:
            if (result := self._recalled(key)) is None:
                if any(other != who and _alike(asked, key) for other, asked in self._asked):
                    return self.found(*key)
                self._asked.append((who, _frozen(key)))
            return result

    def found(self, *key: Vector) -> T:
        """The result for all, computed if need be."""
        with self._lock:
            if (result := self._recalled(key)) is None:
                result = self._compute(*key)
                self._kept.appendleft((_frozen(key), result))
            return result

    def _recalled(self, key: tuple[Vector, ...]) -> T | None:
        """What is kept; agents of one process are sent the very same vectors, which is quick to see."""
        for known, result in self._kept:
            if all(map(is_, known, key)):
                return result
        for k, (known, result) in enumerate(self._kept):
            if _alike(known, key):
                self._kept[k] = _frozen(key), result
                return result
        return None


def _alike(known: tuple[Vector, ...], key: tuple[Vector, ...]) -> bool:
    return all(map(np.array_equal, known, key))


def _frozen(key: tuple[Vector, ...]) -> tuple[Vector, ...]:
    """Vectors that nobody will change."""
    return tuple(v if _unchanging(v) else v.copy() for v in key)


def _unchanging(v: Any) -> bool:
    """Whether an array and all that it is a view of are read-only."""
    while isinstance(v, np.ndarray) and not v.flags.writeable:
        v = v.base
    return v is None or isinstance(v, bytes)
