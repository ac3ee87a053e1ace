"""Numbers that add up over sites: what one exchange with sums is made of, masked or not."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import fsum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Vector

LARGEST = 1e290  # numbers above it raise their flag even in plain sums, whose total could be infinite


class Addends(Struct, frozen=True):
    """A site's totals in one exchange, to be added over sites: numbers by their width, and the slot of each.

    Where a number is not finite or too large, the flag of its slot is raised and 0 is added.
    """

    wide: Vector  # float64; 128 bits on the wire, 64 of them fraction
    wide_slots: NDArray[np.intp]  # slot of each
    slim: Vector  # float64; 64 bits, `fraction` of them fraction (packed Hessians)
    slim_slots: NDArray[np.intp]
    raised: NDArray[np.bool_]  # one for each slot: raised whatever the numbers are
    noise: tuple[int, ...] = ()  # whole multiples of 2^-64 added to the wide numbers; empty: none


class Totals(Struct, frozen=True):
    """Sums over sites, and whether any site raised each slot's flag.

    The numbers of a raised slot mean nothing.
    """

    wide: Vector
    slim: Vector
    raised: NDArray[np.bool_]
    sites: int = 0  # how many were added


def add(parts: Sequence[Addends]) -> Totals:
    """The sums over sites without masks, each rounded once, in any order of the sites."""
    wide, wide_bad = _cleared([part.wide for part in parts])
    slim, slim_bad = _cleared([part.slim for part in parts])
    raised = np.zeros(len(parts[0].raised), dtype=bool)
    for part, bad_wide, bad_slim in zip(parts, wide_bad, slim_bad, strict=True):
        raised |= part.raised
        raised[part.wide_slots[bad_wide]] = True
        raised[part.slim_slots[bad_slim]] = True
    noises = [part.noise for part in parts if part.noise]
    return Totals(_sums(wide, noises), _sums(slim, []), raised, len(parts))


def _cleared(numbers: Sequence[Vector]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers, 0 where they cannot be added, and where that is: NaN, infinite or above `LARGEST`."""
    stacked = np.array(numbers, dtype=np.float64)
    bad = ~(np.abs(stacked) < LARGEST)
    return np.where(bad, 0.0, stacked), bad


def _sums(numbers: NDArray[np.float64], noises: Sequence[tuple[int, ...]]) -> Vector:
    """The sums of the columns, and of the noise in multiples of 2^-64, rounded to the nearest float64."""
    if not noises:
        return np.array([fsum(column) for column in numbers.T.tolist()], dtype=np.float64)
    drawn = [Fraction(sum(column), 2**64) for column in zip(*noises, strict=True)]
    exact = [sum(map(Fraction, column)) + z for column, z in zip(numbers.T.tolist(), drawn, strict=True)]
    return np.array([float(x) for x in exact], dtype=np.float64)
