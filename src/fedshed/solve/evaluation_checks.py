"""Whether a site's sums and counts of an evaluation are those of some rows, and agree with each other.

With W the weight of the rows, e their errors and v any value that is averaged,

    (sum w v)^2 <= W sum w v^2,    |sum w e| <= sum w |e|,    sum w |e|^2 = sum w e^2.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING

import numpy as np

from fedshed.linalg.arrays import Scalars
from fedshed.objectives.family import Family

if TYPE_CHECKING:
    from fedshed.solve.evaluating import Evaluated, Tabulated

CLOSE = 1e-6  # relative: what rounding, and sums in fixed point, cannot explain


def impossible_sums(answer: Evaluated, family: Family) -> str | None:
    """Why no rows have these sums, if none have."""
    many = family.classes in ("many", "ordered")
    count = 2 if many else 5
    if not (len(answer.sums) == len(answer.squares) == count and len(answer.moments) >= 1):
        return "sums of another number"
    if answer.rows < 1 or not answer.weight > 0:
        return "sums over no rows"
    own = answer.moments[:-1] if family.classes == "none" else answer.moments
    if not len(own) or not family.objective.possible_moments(own, answer.weight):
        return "sums of the target that no rows have"
    if (answer.squares < 0).any() or _too_large(answer) or answer.sums[:2].min() < -CLOSE * answer.weight:
        return "sums that no squares allow"
    return _impossible_classes(answer) if many else _impossible_errors(answer, family.classes == "two")


def _too_large(answer: Evaluated) -> bool:
    """(sum w v)^2 > W sum w v^2."""
    with np.errstate(over="ignore"):
        sums = np.abs(answer.sums)
        return bool((sums > (1 + CLOSE) * np.sqrt(answer.weight) * np.sqrt(answer.squares) + 1e-9).any())


def _impossible_errors(answer: Evaluated, two: bool) -> str | None:
    """What is wrong with sums of errors, and with a line of recalibration."""
    _, square, absolute, error, _ = answer.sums.tolist()
    same = all(_close(square, float(other)) for other in answer.squares[2:4])
    if not same or abs(error) > absolute * (1 + CLOSE) + 1e-9:
        return "sums of errors that contradict each other"
    if two and not square * (1 - CLOSE) - 1e-9 <= absolute <= answer.weight * (1 + CLOSE):
        return "errors of probabilities beyond 1"
    if answer.confusion is not None or answer.hits is not None or (answer.line is not None and not two):
        return "numbers that were not asked for"
    return None if answer.line is None or _is_line(answer.line) else "a line that has no covariance"


def _is_line(line: Scalars) -> bool:
    """Whether these are a, b and the entries of a covariance matrix."""
    if len(line) != 5:
        return False
    _, _, first, both, second = line.tolist()
    return bool(first > 0 and second > 0 and both * both <= first * second * (1 + CLOSE))


def _impossible_classes(answer: Evaluated) -> str | None:
    """What is wrong with Brier scores, a confusion matrix or the number of right classes."""
    if answer.sums[1] > 2 * answer.weight * (1 + CLOSE) or answer.line is not None:
        return "Brier scores beyond 2"
    if answer.hits is not None and not 0 <= answer.hits <= answer.weight * (1 + 1e-9):
        return "more right classes than rows"
    cells, classes = answer.confusion, len(answer.moments)
    if cells is None:
        return None
    if len(cells) != classes**2 or cells.min() < 0 or not _close(float(cells.sum()), answer.weight):
        return "a confusion matrix of other rows"
    right = float(cells[:: classes + 1].sum())
    agrees = answer.hits is None or _close(right, answer.hits, answer.weight)
    return None if agrees else "another number of right classes than its confusion matrix"


def other_rows(table: Tabulated, sums: Evaluated, two: bool, alone: bool) -> str | None:
    """Why counts cannot be of the rows that were summed up, if they cannot; `alone`: they are of one site."""
    if table.loss < -CLOSE * sums.weight or table.squares < 0:
        return "a negative loss of the model without columns"
    if not two:
        return None if _no_counts(table) else "counts that were not asked for"
    if table.positive is None or table.negative is None:
        return "no counts"
    ups, downs = float(table.positive.sum()), float(table.negative.sum())
    if not _close(ups + downs, sums.weight):
        return "counts of other rows than it summed up"
    if alone and not (_close(table.products, ups * downs) and _possible_pairs(table, ups * downs)):
        return "another number of pairs than its counts"
    if table.variance is not None and table.variance.max(initial=0.0) > 1:
        return "a variance of a share beyond 1"
    return _other_groups(table.groups, ups, sums.weight)


def _possible_pairs(table: Tabulated, products: float) -> bool:
    """Whether concordant pairs are within what counts on one grid allow: pairs of one bin may be either."""
    positive, negative = table.positive, table.negative
    ends, other = table.positive_ends, table.negative_ends
    alike = ends is other is None or (ends is not None and other is not None and np.array_equal(ends, other))
    if positive is None or negative is None or not alike:
        return True
    least, slack = float(positive @ (np.cumsum(negative) - negative)), CLOSE * products
    return least - slack <= table.pairs <= least + float(positive @ negative) + slack


def _no_counts(table: Tabulated) -> bool:
    found = table.positive, table.negative, table.groups, table.variance
    ends = table.positive_ends, table.negative_ends, table.group_ends
    return table.pairs == table.products == 0 and all(one is None for one in (*found, *ends))


def _other_groups(groups: Scalars | None, ups: float, weight: float) -> str | None:
    """What is wrong with the groups of a calibration curve: weight, events and sum of probabilities."""
    if groups is None:
        return None
    if len(groups) % 3:
        return "groups without three numbers each"
    by, slack = groups.reshape(-1, 3), CLOSE * weight
    within = (by >= -slack).all() and (by[:, 1:] <= by[:, :1] + slack).all()
    same = _close(float(by[:, 0].sum()), weight) and _close(float(by[:, 1].sum()), ups, weight)
    return None if within and same else "groups of other rows than it counted"


def impossible_line_sums(sums: Scalars, weight: float) -> str | None:
    """Why no rows have these five sums of a recalibration, if none have."""
    error, _, a, b, c = sums.tolist()
    slack = CLOSE * weight
    possible = abs(error) <= weight + slack and -slack <= a <= weight / 4 + slack and c >= -slack
    return None if possible and b * b <= a * c * (1 + CLOSE) + slack else "a recalibration of no rows"


def _close(a: float, b: float, scale: float = 0.0) -> bool:
    return isclose(a, b, rel_tol=CLOSE, abs_tol=max(1e-9, CLOSE * scale))
