"""Rules of a site's table: its rows, its classes, and the cells that a study makes of it (docs/privacy.md).

The gradients of linear, Poisson and Gamma models are linear in y, and the sums of columns are known besides.
So sum_j w_j (y_j - c) x_j follows for every constant c, and where few rows differ from c it is a sum over
these.  The same holds for a column of the design in place of y.  No constant leaves fewer rows than the
commonest value; where no value is common, a few extreme rows outweigh the others most beside the median.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import Vector
from fedshed.linalg.rows import Rows
from fedshed.linalg.tall import Tall, by_column
from fedshed.objectives import LinearModel
from fedshed.privacy.points import effective_rows
from fedshed.privacy.policy import Objection, Policy

ROUNDING = 1e-9  # of a number of rows


def objections(policy: Policy, objective: Any, columns: Sequence[str] = ()) -> list[Objection]:
    """The rules that a site's table breaks, as its objective has it.

    Parameters
    ----------
    policy : Policy
        The site's rules.
    objective : LinearModel
        Its rows, target and weights.
    columns : sequence of str
        Names of the columns, for the site's own record.

    Returns
    -------
    list of Objection
        Empty where the table may be asked about.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.objectives.least_squares import LeastSquares
    >>> from fedshed.privacy.policy import Policy
    >>> rare = LeastSquares(np.arange(40.0)[:, None], np.eye(40)[3])
    >>> [one.rule for one in objections(Policy(), rare)]
    ['at least 5 rows of each class (min_rows_per_class)']
    """
    known = _KNOWN.get(objective)
    if known is None or known[:2] != (policy, columns):
        known = policy, columns, _found(policy, objective, columns)
        _KNOWN[objective] = known
    return list(known[2])


# the parts of a study ask about the same rows
_KNOWN: WeakKeyDictionary[LinearModel, tuple[Policy, Sequence[str], list[Objection]]] = WeakKeyDictionary()


def _found(policy: Policy, model: LinearModel, columns: Sequence[str]) -> list[Objection]:
    """What the policy has against the rows, the target, the columns and the weights."""
    if model.held:
        return held_objections(policy, model)
    rows = model.X.shape[0]
    found = []
    if rows < policy.min_rows:
        found.append(Objection(f"at least {policy.min_rows} rows (min_rows)", f"there are {rows}"))
    if model.dim > policy.max_parameters_per_row * rows:
        most = f"at most {policy.max_parameters_per_row:g} parameters per row (max_parameters_per_row)"
        found.append(Objection(most, f"{model.dim} parameters for {rows} rows"))
    found += target_objections(policy, model.outcomes, model.labelled, model.weights)
    found += column_objections(policy, model.X, columns)
    return found + policy.outweighed(model.weights)


def held_objections(policy: Policy, model: LinearModel) -> list[Objection]:
    """What the policy has against an evaluation of rows held out: sums and counts, but no gradient."""
    rows = model.X.shape[0]
    few = [Objection(f"at least {policy.min_rows} rows (min_rows)", f"there are {rows}")]
    found = few * (rows < policy.min_rows) + target_objections(policy, model.y, model.labelled, model.weights)
    return [Objection(f"of the rows held out, {one.rule}", one.detail) for one in found] + policy.outweighed(
        model.weights
    )


def target_objections(
    policy: Policy, y: NDArray[Any], labelled: bool, weights: Vector | None = None
) -> list[Objection]:
    """The rule on classes, of any target: a rare outcome is a class too, whatever the family."""
    counts = np.unique(y, return_counts=True)[1]
    if labelled or len(counts) == 2:
        if counts.min(initial=len(y)) >= policy.min_rows_per_class:
            return []
        least = f"at least {policy.min_rows_per_class} rows of each class (min_rows_per_class)"
        return [Objection(least, f"one class has {counts.min()}")]
    count = differing_rows(y, weights)
    if count >= policy.min_rows_per_class * (1 - ROUNDING):
        return []
    least = (
        f"at least {policy.min_rows_per_class} rows that make up the target's differences from its usual "
        "value (min_rows_per_class); limit its extreme values, or leave the site out"
    )
    return [Objection(least, f"{count:.3g} rows do")]


def column_objections(policy: Policy, X: Rows, columns: Sequence[str] = ()) -> list[Objection]:
    """The rule on levels: no rows, or enough, differ from the commonest value of a column.

    Of a column of zeros and ones these are the rows of its rarer level, of a product of such columns those of
    a cell.
    """
    rule = (
        f"at least {policy.min_rows_per_level} rows at each level of a column, and in each cell of a product "
        "(min_rows_per_level); group the levels, or leave the term out"
    )
    return [
        Objection(rule, f"{_name(columns, j)} differs from its commonest value in {rows} rows")
        for j, rows in _few_differ(X, policy.min_rows_per_level)
    ]


def computed_objections(
    policy: Policy, X: NDArray[np.float64] | Tall, computed: Sequence[int], columns: Sequence[str] = ()
) -> list[Objection]:
    """The rule on computed columns: a formula can make one that is large in a single row."""
    rule = (
        f"at least {policy.min_rows_per_level} rows that make up the differences within a computed column "
        "(min_rows_per_level); leave the term out, or use the column itself"
    )
    counts = {j: differing_rows(values) for j, values in by_column(X, computed)}
    return [
        Objection(rule, f"{_name(columns, j)} differs in {count:.3g} rows")
        for j, count in counts.items()
        if count < policy.min_rows_per_level * (1 - ROUNDING)
    ]


def cell_objections(policy: Policy, smallest: Mapping[str, int]) -> list[Objection]:
    """The rule on cells, by the rows of the smallest cell of each term: levels combined, references too."""
    rule = (
        f"at least {policy.min_rows_per_level} rows in each cell of a term (min_rows_per_level); "
        "group the levels, or leave the term out"
    )
    return [
        Objection(rule, f"a cell of {term} has {rows} rows")
        for term, rows in smallest.items()
        if rows < policy.min_rows_per_level
    ]


def differing_rows(values: NDArray[Any], weights: Vector | None = None) -> float:
    """How many rows make up the differences of values from a constant: the fewest, over constants.

    Effective rows of |v - c|, with c the commonest value or the median; all rows where nothing differs.
    """
    found, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    middle = np.searchsorted(np.cumsum(counts), len(values) / 2)
    constants = {float(found[counts.argmax()]), float(found[middle])}
    w = 1.0 if weights is None else weights
    return min(effective_rows(np.asarray(w * (values - c), dtype=np.float64)) for c in constants)


def _few_differ(X: Rows, least: int) -> Iterator[tuple[int, int]]:
    """The columns in which fewer rows than `least`, but some, differ from the commonest value."""
    if not X.shape[1]:  # of ordered classes without columns there are thresholds only
        return
    if isinstance(X, np.ndarray | Tall):
        yield from _few_differ_in_blocks(X if isinstance(X, Tall) else Tall(X), least)
        return
    rows, by_column = X.shape[0], X.tocsc()
    filled = np.add.reduceat(np.append(by_column.data != 0, False), by_column.indptr[:-1]) * (
        np.diff(by_column.indptr) > 0
    )
    for j in range(X.shape[1]):
        differ = int(filled[j])
        if 2 * differ > rows:
            column = by_column[:, [j]].toarray().ravel()
            differ = int((column != _middle(column[:, None])).sum())
        if 0 < differ < least:
            yield j, differ


def _few_differ_in_blocks(X: Tall, least: int) -> Iterator[tuple[int, int]]:
    """The same of dense rows, block by block; a column is left as soon as enough rows differ.

    Where fewer than `least` differ, all but these have one value, which is the median of any larger block.
    """
    usual, differ = None, np.zeros(X.shape[1], dtype=np.intp)
    for _, block in X.blocks():
        usual = _middle(block) if usual is None else usual
        open_ = np.flatnonzero(differ < least)
        if not len(open_):
            return
        differ[open_] += (block[:, open_] != usual[open_]).sum(axis=0)
    yield from ((int(j), int(differ[j])) for j in np.flatnonzero((differ > 0) & (differ < least)))


def _middle(block: NDArray[np.float64]) -> Vector:
    """A value of each column with as many below as above."""
    half = len(block) // 2
    return np.asarray(np.partition(block, half, axis=0)[half])


def _name(columns: Sequence[str], j: int) -> str:
    return columns[j] if j < len(columns) else f"column {j}"
