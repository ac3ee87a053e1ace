"""Renewal policies: at which iterations an agent recomputes its Hessian (the set I of Algorithm 4).

A policy is pure: it looks at the history and holds no counter, so there is nothing to save.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

from fedshed._utils.errors import ConfigError


class History(Struct, frozen=True):
    """What a policy may look at: ||g_{t-3}||, ||g_{t-2}||, ||g_{t-1}|| and the agent's last renewal."""

    t: int
    n: int
    norms: tuple[float, ...]
    last: int  # 0: never


class Once(Struct, frozen=True, tag=True):
    """I = {1} (Algorithm 1).

    Examples
    --------
    >>> from fedshed.algorithms.renewal import History, Once
    >>> [Once()(History(t, 5, (), 1), "north") for t in (1, 2, 3)]
    [True, False, False]
    """

    def __call__(self, history: History, agent: str) -> bool:
        """Is t in I?"""
        return history.t == 1


class EveryRound(Struct, frozen=True, tag=True):
    """I = {1, 2, 3, ...} (Mont-Dec, and Newton).

    Examples
    --------
    >>> from fedshed.algorithms.renewal import EveryRound, History
    >>> [EveryRound()(History(t, 5, (), 1), "north") for t in (1, 2, 3)]
    [True, True, True]
    """

    def __call__(self, history: History, agent: str) -> bool:
        """Is t in I?"""
        return True


class Periodic(Struct, frozen=True, tag=True):
    """I = {1, T, 2T, ...} (Algorithm 3).

    Parameters
    ----------
    every : int, optional
        T. Default: n - 1.

    Examples
    --------
    >>> from fedshed.algorithms.renewal import History, Periodic
    >>> [t for t in range(1, 10) if Periodic(4)(History(t, 5, (), 1), "north")]
    [1, 4, 8]
    """

    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None and not (isinstance(self.every, int) and self.every >= 1):
            raise ConfigError(f"the renewal period must be a whole number >= 1, not {self.every}")

    def __call__(self, history: History, agent: str) -> bool:
        """Is t in I?"""
        return history.t == 1 or history.t % (self.every or max(1, history.n - 1)) == 0


class Fibonacci(Struct, frozen=True, tag=True):
    """I = {C_j}, C_j = F_1 + ... + F_j; once C_j >= n - 1 the next is C_j + n - 1 (Section 5.1).

    Examples
    --------
    >>> from fedshed.algorithms.renewal import Fibonacci, History
    >>> [t for t in range(1, 30) if Fibonacci()(History(t, 10, (), 1), "north")]
    [1, 2, 4, 7, 12, 21]
    """

    def __call__(self, history: History, agent: str) -> bool:
        """Is t in I?"""
        return history.t in fibonacci_set(history.n, history.t)


class GradientNorm(Struct, frozen=True, tag=True):
    """Renew when ||g|| stalls: its last decrease is below b times the one before (docs/paper.md 3).

    Parameters
    ----------
    b : float
        The share of the decrease before; 0.7 was chosen on Fashion-MNIST with l2 = 1e-5 (docs/results.md).
    apart : int
        At least so many iterations lie between two renewals, and at most n.

    Examples
    --------
    >>> from fedshed.algorithms.renewal import GradientNorm, History
    >>> [GradientNorm()(History(9, 50, norms, 4), "north") for norms in ((4.0, 3.0, 2.2), (4.0, 3.0, 2.9))]
    [False, True]
    """

    b: float = 0.7
    apart: int = 3

    def __post_init__(self) -> None:
        if not (-math.inf < self.b < math.inf and self.apart >= 1):
            raise ConfigError(f"GradientNorm needs a finite b and apart >= 1, not {self.b}, {self.apart}")

    def __call__(self, history: History, agent: str) -> bool:
        """Is t in I?"""
        waited = history.t - history.last
        return (
            history.last == 0 or waited >= history.n or (waited >= self.apart and self._stalls(history.norms))
        )

    def _stalls(self, norms: tuple[float, ...]) -> bool:
        return len(norms) >= 3 and norms[-2] - norms[-1] < self.b * (norms[-3] - norms[-2])


class GradientNormAsPrinted(Struct, frozen=True, tag=True):
    """||g_t|| - ||g_{t-1}|| < b (||g_{t-1}|| - ||g_{t-2}||), as printed: fires on *good* progress.

    Parameters
    ----------
    b : float
        As in `GradientNorm`, which is what the text of the paper means.

    Examples
    --------
    >>> from fedshed.algorithms.renewal import GradientNormAsPrinted, History
    >>> history = History(9, 50, (4.0, 3.0, 0.1), 4)
    >>> print(GradientNormAsPrinted()(history, "north"))
    True
    """

    b: float = 0.3

    def __call__(self, history: History, agent: str) -> bool:
        """Is t in I?"""
        waited, norms = history.t - history.last, history.norms
        fires = len(norms) >= 3 and norms[-1] - norms[-2] < self.b * (norms[-2] - norms[-3])
        return history.last == 0 or waited >= history.n or fires


@lru_cache(maxsize=256)
def _fibonacci(n: int, length: int) -> frozenset[int]:
    c, step, following = 1, 1, 1
    indices = [c]
    while c < length:
        step, following = following, step + following
        c = c + (step if c < n - 1 else max(1, n - 1))
        indices.append(c)
    return frozenset(indices)


def fibonacci_set(n: int, t: int) -> frozenset[int]:
    """The renewal indices of Fib-SHED in dimension n, at least up to t."""
    return _fibonacci(n, 1 << t.bit_length())


Renewal: TypeAlias = Once | EveryRound | Periodic | Fibonacci | GradientNorm | GradientNormAsPrinted
