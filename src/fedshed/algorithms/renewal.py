"""Renewal policies: at which iterations an agent computes a new Hessian (the set I of Algorithm 4).

A policy has no state: it looks at the history and holds no counter, so there is nothing to save.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

from fedshed._utils.errors import ConfigError


class History(Struct, frozen=True):
    """What a renewal policy may look at.

    Attributes
    ----------
    t : int
        The iteration, from 1.
    n : int
        The number of coefficients.
    norms : tuple of float
        The last gradient norms: ||g_{t-3}||, ||g_{t-2}||, ||g_{t-1}||.
    last : int
        The iteration of the agent's last renewal; 0 if there was none.

    Examples
    --------
    >>> from fedshed.algorithms.renewal import History
    >>> History(9, 50, (4.0, 3.0, 2.2), 4).t
    9
    """

    t: int
    n: int
    norms: tuple[float, ...]
    last: int  # 0: never


class Once(Struct, frozen=True, tag=True):
    """Renew at the first iteration only: I = {1} (Algorithm 1).

    Examples
    --------
    >>> from fedshed.algorithms.renewal import History, Once
    >>> [Once()(History(t, 5, (), 1), "north") for t in (1, 2, 3)]
    [True, False, False]
    """

    def __call__(self, history: History, agent: str) -> bool:
        """Whether the agent renews its Hessian in iteration t."""
        return history.t == 1


class EveryRound(Struct, frozen=True, tag=True):
    """Renew at every iteration: I = {1, 2, 3, ...} (Mont-Dec, and Newton).

    Examples
    --------
    >>> from fedshed.algorithms.renewal import EveryRound, History
    >>> [EveryRound()(History(t, 5, (), 1), "north") for t in (1, 2, 3)]
    [True, True, True]
    """

    def __call__(self, history: History, agent: str) -> bool:
        """Whether the agent renews its Hessian in iteration t."""
        return True


class Periodic(Struct, frozen=True, tag=True):
    """Renew every T iterations: I = {1, T, 2T, ...} (Algorithm 3).

    Parameters
    ----------
    every : int, optional
        The period T, at least 1. Default: n - 1.

    Raises
    ------
    ConfigError
        If `every` is below 1.

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
        """Whether the agent renews its Hessian in iteration t."""
        return history.t == 1 or history.t % (self.every or max(1, history.n - 1)) == 0


class Fibonacci(Struct, frozen=True, tag=True, omit_defaults=True):
    """Renew at iterations whose distances grow like Fibonacci's numbers (Section 5.1).

    I = {C_1, C_2, ...} with C_j = F_1 + ... + F_j; once C_j >= n - 1, the next one is C_j + n - 1.

    Parameters
    ----------
    start : int, default 1
        The number that the paper's t has in the first iteration. Algorithm 4 starts at 0: then the first
        Hessian is one more, I = {0, C_1, C_2, ...} (docs/paper.md 1).

    Raises
    ------
    ConfigError
        If `start` is neither 0 nor 1.

    Examples
    --------
    >>> from fedshed.algorithms.renewal import Fibonacci, History
    >>> [t for t in range(1, 30) if Fibonacci()(History(t, 10, (), 1), "north")]
    [1, 2, 4, 7, 12, 21]
    >>> [t for t in range(1, 30) if Fibonacci(start=0)(History(t, 10, (), 1), "north")]
    [1, 2, 3, 5, 8, 13, 22]
    """

    start: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.start, bool) or self.start not in (0, 1):
            raise ConfigError(f"the Fibonacci set starts at 0 or 1, not {self.start}")

    def __call__(self, history: History, agent: str) -> bool:
        """Whether the agent renews its Hessian in iteration t."""
        t = history.t - 1 + self.start  # as the paper counts
        return t == self.start or t in fibonacci_set(history.n, t)


class GradientNorm(Struct, frozen=True, tag=True):
    """Renew when the gradient norm stalls: when its last decrease is below b times the one before.

    This is the reverse of the formula that is printed in the paper, which is `GradientNormAsPrinted`
    (docs/paper.md 3).

    Parameters
    ----------
    b : float, default 0.7
        The share of the former decrease.
    apart : int
        The least number of iterations between two renewals, at least 1; the largest number is n.

    Raises
    ------
    ConfigError
        If `b` is not finite or `apart` is below 1.

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
        """Whether the agent renews its Hessian in iteration t."""
        waited = history.t - history.last
        return (
            history.last == 0 or waited >= history.n or (waited >= self.apart and self._stalls(history.norms))
        )

    def _stalls(self, norms: tuple[float, ...]) -> bool:
        return len(norms) >= 3 and norms[-2] - norms[-1] < self.b * (norms[-3] - norms[-2])


class GradientNormAsPrinted(Struct, frozen=True, tag=True):
    """Renew by the change of the gradient norm, as the paper prints it (GN-SHED, Section 5.1).

    It renews if ||g_t|| - ||g_{t-1}|| < b (||g_{t-1}|| - ||g_{t-2}||), and after n iterations without a
    renewal. With b > 1 this is so when a decrease is more than b times the one before, or after a rise
    that does not go on as steeply; with b < 1 it is so nearly always (docs/paper.md 3).

    Parameters
    ----------
    b : float, default 2.0
        The paper leaves it open; from 1.5 to 4 it hardly matters on the paper's data (docs/results.md).

    Raises
    ------
    ConfigError
        If `b` is not finite.

    Examples
    --------
    >>> from fedshed.algorithms.renewal import GradientNormAsPrinted, History
    >>> rule = GradientNormAsPrinted()
    >>> [rule(History(9, 50, norms, 4), "north") for norms in ((4.0, 3.0, 2.2), (4.0, 3.0, 0.1))]
    [False, True]
    """

    b: float = 2.0

    def __post_init__(self) -> None:
        if not -math.inf < self.b < math.inf:
            raise ConfigError(f"GradientNormAsPrinted needs a finite b, not {self.b}")

    def __call__(self, history: History, agent: str) -> bool:
        """Whether the agent renews its Hessian in iteration t."""
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
    """The renewal iterations of `Fibonacci` in dimension n, at least up to t.

    Parameters
    ----------
    n : int
        The number of coefficients.
    t : int
        The iteration up to which the set is needed.

    Returns
    -------
    frozenset of int
        The iterations C_j.

    Examples
    --------
    >>> from fedshed.algorithms.renewal import fibonacci_set
    >>> sorted(fibonacci_set(10, 12))[:5]
    [1, 2, 4, 7, 12]
    """
    return _fibonacci(n, 1 << t.bit_length())


Renewal: TypeAlias = Once | EveryRound | Periodic | Fibonacci | GradientNorm | GradientNormAsPrinted
