"""Whether the sites have a column in the same unit, as far as its means and standard deviations show it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Scalars
from fedshed.preparation.messages import Ready
from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.row_numbers import all_different
from fedshed.tables.frames import Frame

APART = 3.0  # pooled standard deviations between means that have the same unit
TIMES = 10.0  # between standard deviations that have the same unit
FEW = 3.0  # how much more is asked of few rows
LEAST = 10  # rows of a site whose mean and standard deviation say something


class _Moments(Struct, frozen=True):
    """A column at one site."""

    rows: int
    weight: float
    mean: float
    variance: float


def moments(
    plan: DesignPlan, frame: Frame, weights: NDArray[np.float64] | None
) -> tuple[tuple[int, ...], Scalars, Scalars, tuple[int, ...]]:
    """The columns of numbers with three values or more, their weighted means, and variances about them.

    The last are those whose values are whole numbers and all different.
    """
    read = plan.used(frame)
    found, different = [], []
    for j, name in enumerate(plan.columns):
        values = read[name].values
        if name not in plan.levels and _several(values):
            with np.errstate(over="ignore", invalid="ignore"):
                mean = np.average(values, weights=weights)
                variance = np.average(np.square(values - mean), weights=weights)
            if np.isfinite(variance):
                found.append((j, mean, variance))
                different += [j] if all_different(values) else []
    return (
        tuple(j for j, _, _ in found),
        np.array([mean for _, mean, _ in found], dtype=np.float64),
        np.array([variance for _, _, variance in found], dtype=np.float64),
        tuple(different),
    )


def _several(values: NDArray[np.float64]) -> bool:
    """Whether there are three values at least; zeros and ones have no unit."""
    return bool(((values != values.min()) & (values != values.max())).any())


def of_units(plan: DesignPlan, ready: Mapping[str, Ready]) -> tuple[str, ...]:
    """A sentence for each column whose unit seems to differ between sites."""
    sentences = (
        _of_scales(name, found) or _of_means(name, found)
        for j, name in enumerate(plan.columns)
        if len(found := _at_sites(j, ready)) > 1
    )
    return tuple(sentence for sentence in sentences if sentence)


def _at_sites(column: int, ready: Mapping[str, Ready]) -> dict[str, _Moments]:
    found = {}
    for site, each in sorted(ready.items()):
        if each.means is None or each.variances is None:
            continue
        if not len(each.measured) == len(each.means) == len(each.variances):
            raise ProtocolError(f"site {site!r} sent means and variances of different lengths")
        if column in each.measured and each.rows >= LEAST:
            k = each.measured.index(column)
            found[site] = _Moments(each.rows, each.weight, float(each.means[k]), float(each.variances[k]))
    return found


def _of_scales(name: str, found: Mapping[str, _Moments]) -> str:
    """Standard deviations at least tenfold apart.

    One outlier among n rows moves it by 1 / sqrt(n) of its size, so of few rows more than tenfold is asked.
    """
    sds = {site: float(np.sqrt(each.variance)) for site, each in found.items() if each.variance > 0}

    def far(one: str, other: str) -> bool:
        times = max(sds[one] / sds[other], sds[other] / sds[one])
        return bool(times >= TIMES * (1 + FEW / np.sqrt(min(found[one].rows, found[other].rows))))

    if not (odd := _odd(sds, far)):
        return ""
    times = sds[odd[0]] / median(sds[site] for site in sds if far(odd[0], site))
    return (
        f"column {name!r}: the standard deviation at {_named(odd)} is {_rounded(times)} times that "
        f"{_elsewhere(sds, odd)}; check that all sites give it in the same unit"
    )


def _of_means(name: str, found: Mapping[str, _Moments]) -> str:
    """Means more than three pooled standard deviations apart.

    A mean of n rows has a standard error of 1 / sqrt(n) of these; four of them are added.
    """
    means = {site: each.mean for site, each in found.items()}
    weight = sum(each.weight for each in found.values())
    pooled = float(np.sqrt(sum(each.weight * each.variance for each in found.values()) / weight))

    def far(one: str, other: str) -> bool:
        rows = min(found[one].rows, found[other].rows)
        return bool(abs(means[one] - means[other]) > (APART + 4 / np.sqrt(rows)) * pooled > 0)

    if not (odd := _odd(means, far)):
        return ""
    apart = abs(means[odd[0]] - median(means[site] for site in means if far(odd[0], site))) / pooled
    return (
        f"column {name!r}: the mean at {_named(odd)} is {_rounded(apart)} standard deviations from that "
        f"{_elsewhere(means, odd)}; check that all sites give it in the same unit"
    )


def _odd(values: Mapping[str, float], far: Callable[[str, str], bool]) -> list[str]:
    """The sites that are far from at least half of all; where all are, those with the larger values."""
    odd = [site for site in values if 2 * sum(far(site, other) for other in values) >= max(len(values), 2)]
    if len(odd) == len(values):
        odd = [site for site in odd if values[site] > median(values.values())]
    return odd


def _named(odd: Sequence[str]) -> str:
    return f"site {odd[0]!r}" + (f" (and {len(odd) - 1} more)" if len(odd) > 1 else "")


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _elsewhere(sites: Collection[str], odd: Sequence[str]) -> str:
    others = [site for site in sites if site not in odd]
    return f"at site {others[0]!r}" if len(others) == 1 else "at the other sites"
