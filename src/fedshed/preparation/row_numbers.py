"""Columns of whole numbers that number the rows, at one site or dealt over many."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.preparation.messages import Ready
from fedshed.preparation.objections import in_short
from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.spellings import option

FEWEST = 20  # rows in which such a column is recognised
AT_A_SITE = 10  # rows of a site that says whether its numbers are all different
PAIRS = 9.5  # that would agree on average: the probability that none does is below 1e-4
_DENSEST = 3 / (5 * np.sqrt(5))


def numbers_rows(values: NDArray[np.float64]) -> bool:
    """Whether numbers are whole, all different, and so close together that this is no chance.

    Of n numbers drawn from a range of m, n (n - 1) / (2 m) pairs agree on average.
    """
    known = values[~np.isnan(values)]
    n = len(known)
    if n < FEWEST or not all_different(known, FEWEST):
        return False
    span = float(known.max() - known.min()) + 1.0
    return n * (n - 1) / (2 * span) >= PAIRS


def all_different(values: NDArray[np.float64], least: int = AT_A_SITE) -> bool:
    """Whether these are at least so many numbers, all whole and no two the same."""
    whole = len(values) >= least and bool(np.isfinite(values).all() and (values == np.round(values)).all())
    return whole and len(np.unique(values)) == len(values)


def refuse_or_note(plan: DesignPlan, ready: Mapping[str, Ready]) -> tuple[str, ...]:
    """A sentence for each column that numbers the rows of all sites together, if the study names it.

    One that the study does not name is refused.
    """
    named = plan.study.columns is not None or plan.study.formula is not None
    notes = []
    for j, name in enumerate(plan.columns):
        sites = [site for site, each in sorted(ready.items()) if j in each.different]
        if not sites or not _number_rows(j, ready):
            continue
        found = (
            f"{in_short(sites)}: column {name!r} has a different whole number in each row and looks like an "
            "identifier"
        )
        if not named:
            raise DataError(
                f"{found}; leave it out (exclude = [{name!r}], {option('exclude', name)}), or name it in "
                "columns or a formula to use it all the same"
            )
        notes.append(f"{found}; leave it out of the columns or the formula unless it measures something")
    return tuple(notes)


def _number_rows(column: int, ready: Mapping[str, Ready]) -> bool:
    """Whether no two rows of any site agree, although `PAIRS` would on average if that were chance.

    Draws with standard deviation s agree with probability 3 / (5 sqrt(5) s) at least: among densities of one
    variance the integral of the square is least for Epanechnikov's.  A density that is constant about each
    whole number has the variance s^2 + 1 / 12.
    """
    pairs = rows = 0.0
    for each in ready.values():
        if each.rows < AT_A_SITE:
            continue
        if column not in each.different or column not in each.measured or each.variances is None:
            return False
        spread = np.sqrt(float(each.variances[each.measured.index(column)]) + 1 / 12)
        pairs += each.rows * (each.rows - 1) / 2 * _DENSEST / spread
        rows += each.rows
    return bool(rows >= FEWEST and pairs >= PAIRS)
