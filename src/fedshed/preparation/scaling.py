"""Means and scales of the design over all sites, from sums and sums of squares only.

In two exchanges, so that no digits are lost: the means first, then the sums of squares about them (the
corrected two-pass algorithm: Chan, Golub, LeVeque 1983, The American Statistician 37, 242).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.linalg.arrays import Scalars
from fedshed.linalg.rows import varying_columns
from fedshed.linalg.tall import in_blocks
from fedshed.preparation.messages import Deviations, Ready, Told, Values
from fedshed.preparation.plan import DesignPlan
from fedshed.tables.stored import Table

FAR = 1e8  # scales from 0
REMOTE = 20.0  # standard deviations from 0, where a column and its square need centring
DIGITS = 1e-10  # of the squared mean: a smaller variance has lost its digits
ROUNDING = 1e-14  # of the mean: a smaller standard deviation is that of rounding


def sums(table: Table) -> Scalars:
    """The weighted sum of each column."""
    return np.asarray(_weights(table) @ table.X)


def deviations(table: Table, means: Scalars) -> Deviations:
    """The weighted sums of x - m and (x - m)^2 of each column."""
    if means.shape != (table.X.shape[1],):
        raise DataError(f"was sent {len(means)} means for {table.X.shape[1]} columns; prepare again")
    found = [_deviations(_weights(table)[part], X - means) for part, X in in_blocks(table.X)]
    first, second = zip(*found, strict=True)
    return Deviations(reduce(np.add, first), reduce(np.add, second))


def _deviations(w: Scalars, centred: NDArray[np.float64]) -> tuple[Scalars, Scalars]:
    total = w @ centred
    return total, w @ np.square(centred, out=centred)


def constant(table: Table) -> tuple[int, ...]:
    """The columns that have one value in all rows of this site."""
    return tuple(np.flatnonzero(~varying_columns(table.X)).tolist())


def means(ready: Mapping[str, Ready], width: int) -> Scalars:
    """The mean of each column over all sites."""
    totals = [_sized(site, each.sums, width) for site, each in sorted(ready.items())]
    return np.asarray(sum(totals) / _total(ready))


def standardised(
    plan: DesignPlan,
    ready: Mapping[str, Ready],
    about: Scalars,
    found: Mapping[str, Deviations],
    same: set[int],
) -> DesignPlan:
    """The plan with centres m and scales s; s = 1 where a column is the same everywhere.

    s is the standard deviation over all rows (divided by N, not N - 1).  Without an intercept nothing is
    moved, m = 0: the model would be another.
    """
    width = len(plan.names)
    shift, scales = _spread(plan, ready, found)
    scales[[j for j in range(width) if j in same or scales[j] == 0.0]] = 1.0
    centres = about + shift if plan.intercept else np.zeros(width)
    return replace(plan, centres=tuple(centres.tolist()), scales=tuple(scales.tolist()))


def without_spread(
    plan: DesignPlan, ready: Mapping[str, Ready], about: Scalars, found: Mapping[str, Deviations]
) -> set[int]:
    """The columns whose standard deviation over all rows is 0; refused unless they are penalised."""
    shift, deviations = _spread(plan, ready, found)
    same = set(np.flatnonzero(deviations <= ROUNDING * np.abs(about + shift)).tolist())
    _refuse_unpenalised(plan, same)
    return same


def _spread(
    plan: DesignPlan, ready: Mapping[str, Ready], found: Mapping[str, Deviations]
) -> tuple[Scalars, Scalars]:
    """The mean of x - m and the standard deviation of each column over all sites."""
    weight, width = _total(ready), len(plan.names)
    shift = sum(_sized(site, each.sums, width) for site, each in sorted(found.items())) / weight
    squares = sum(_sized(site, each.squares, width) for site, each in sorted(found.items())) / weight
    return np.asarray(shift), np.sqrt(np.maximum(squares - shift**2, 0.0))


def told(plan: DesignPlan, about: Scalars, before: Ready, found: Deviations, now: Ready) -> Told:
    """A site's last answer, with the mean squares of its columns, standardised or not, from its deviations.

    sum w (x - c)^2 = B - 2 (c - m) A + (c - m)^2 W, where A and B are the sums of x - m and (x - m)^2.
    """
    centres = np.zeros(len(about)) if plan.centres is None else np.array(plan.centres)
    scales = np.ones(len(about)) if plan.scales is None else np.array(plan.scales)
    d = centres - about
    squares = (found.squares - 2 * d * found.sums + d**2 * before.weight) / before.weight / scales**2
    if plan.centres is not None:
        squares[np.abs(about) > FAR * scales] = np.nan  # x - c has lost its digits there
    return Told(**{name: getattr(now, name) for name in Ready.__struct_fields__}, squares=squares)


def mean_squares(plan: DesignPlan, ready: Ready) -> Scalars | None:
    """The mean square of each design column at a site, as far as it follows from what the site said.

    Of a design that is not standardised, that of its columns of numbers; NaN for the others.
    """
    if isinstance(ready, Told):
        return ready.squares
    if plan.study.formula is not None or ready.means is None or ready.variances is None:
        return None
    found = dict(zip(ready.measured, ready.variances + ready.means**2, strict=True))
    known = {plan.columns[j]: value for j, value in found.items() if plan.columns[j] not in plan.levels}
    return np.array([known.get(name, np.nan) for name in plan.names])


def standard_deviations(plan: DesignPlan, ready: Mapping[str, Ready]) -> dict[str, float]:
    """The standard deviation of design columns over all rows, as far as it follows from what the sites said.

    Of a standardised design that of every column; else of columns of numbers that no site left out.
    """
    if plan.scales is not None:
        return dict(zip(plan.names, plan.scales, strict=True))
    moments = [(each.weight, _moments(plan, each)) for _, each in sorted(ready.items())]
    known = set.intersection(*(set(found) for _, found in moments))
    weight = sum(weight for weight, _ in moments)
    deviations = {}
    for name in (name for name in plan.names if name in known):
        mean = sum(w * found[name][0] for w, found in moments) / weight
        variance = sum(w * (found[name][1] + (found[name][0] - mean) ** 2) for w, found in moments) / weight
        if variance > DIGITS * mean**2:
            deviations[name] = float(np.sqrt(variance))
    return deviations


def _moments(plan: DesignPlan, ready: Ready) -> dict[str, tuple[float, float]]:
    """The mean and the variance of each design column at a site, as far as the site said."""
    if isinstance(ready, Told) and ready.sums is not None and ready.squares is not None:
        means = ready.sums / ready.weight
        pairs = zip(means.tolist(), (ready.squares - means**2).tolist(), strict=True)
        return dict(zip(plan.names, pairs, strict=True))
    if ready.means is None or ready.variances is None:
        return {}
    found = zip(ready.measured, ready.means.tolist(), ready.variances.tolist(), strict=True)
    return {plan.columns[j]: (mean, variance) for j, mean, variance in found}


def by_column(plan: DesignPlan, columns: tuple[int, ...], found: Mapping[str, Values]) -> dict[str, Scalars]:
    """The value at each site of design columns that do not vary within any, by name."""
    rows = np.array([_sized(site, found[site].values, len(columns)) for site in sorted(found)])
    return {plan.names[j]: values for j, values in zip(columns, rows.T, strict=True)}


def same_everywhere(plan: DesignPlan, found: Mapping[str, Scalars]) -> set[int]:
    """The columns that have one value over all sites; refused unless they are penalised."""
    same = {plan.names.index(name) for name, values in found.items() if (values == values[0]).all()}
    _refuse_unpenalised(plan, same)
    return same


def far_from_zero(plan: DesignPlan, ready: Mapping[str, Ready], columns: tuple[str, ...]) -> bool:
    """Whether the mean of one of the columns is more than `REMOTE` standard deviations from 0."""
    for column in columns:
        j = plan.columns.index(column)
        found = [
            (each.weight, float(each.means[k]), float(each.variances[k]))
            for each in ready.values()
            if each.means is not None and each.variances is not None
            for k in (i for i, place in enumerate(each.measured) if place == j)
        ]
        weight = sum(w for w, _, _ in found)
        mean = sum(w * m for w, m, _ in found) / weight if found else 0.0
        variance = sum(w * (v + (m - mean) ** 2) for w, m, v in found) / weight if found else 0.0
        if mean**2 > REMOTE**2 * variance:
            return True
    return False


def empty_cells(plan: DesignPlan, found: Mapping[str, Scalars]) -> tuple[str, ...]:
    """The columns of interactions that are 0 in every row of every site, and not penalised.

    R drops their coefficients, too, because no row tells of them.
    """
    if plan.study.formula is None:
        return ()
    terms = dict(zip(plan.names, plan.terms, strict=True))
    penalty = dict(zip(plan.names, _penalties(plan).tolist()[: len(plan.names)], strict=True))
    zero = (name for name, values in found.items() if not values.any())
    return tuple(name for name in zero if ":" in terms[name] and penalty[name] == 0)


def without_columns(ready: Ready, names: tuple[str, ...]) -> Ready:
    """What a site said of its design, but for some columns."""
    kept = [j for j, name in enumerate(ready.names) if name not in names]
    constant = set(ready.constant)
    return replace(
        ready,
        names=tuple(ready.names[j] for j in kept),
        terms=tuple(ready.terms[j] for j in kept),
        constant=tuple(k for k, j in enumerate(kept) if j in constant),
        sums=None if ready.sums is None else ready.sums[kept],
    )


def _refuse_unpenalised(plan: DesignPlan, same: set[int]) -> None:
    penalised = _penalties(plan)
    unpenalised = [plan.names[j] for j in sorted(same) if penalised[j] == 0]
    if plan.intercept and unpenalised:
        raise DataError(
            f"{unpenalised[0]!r} is the same in every row of every site, so it is collinear with the "
            "intercept; leave it out, or give it l2 > 0"
        )


def _penalties(plan: DesignPlan) -> Scalars:
    l2, l1 = plan.l2(), plan.l1()
    return l2 if l1 is None else l2 + l1


def _weights(table: Table) -> NDArray[np.float64]:
    return np.ones(len(table.y)) if table.weights is None else table.weights


def _total(ready: Mapping[str, Ready]) -> float:
    return sum(ready[site].weight for site in sorted(ready))


def _sized(site: str, values: Scalars | None, width: int) -> Scalars:
    if values is None or len(values) != width:
        raise ProtocolError(f"site {site!r} sent {0 if values is None else len(values)} sums, not {width}")
    return values
