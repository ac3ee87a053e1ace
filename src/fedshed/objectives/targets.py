"""What y must be for each loss, and how it is coded alike at every site."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.objectives.cox import NO_EVENT
from fedshed.objectives.family import Family
from fedshed.tables.survival import is_survival

LARGEST_OFFSET = 500.0  # of a logarithmic link: exp(500) is 1e217


def common_classes(family: Family, labels: Iterable[NDArray[Any]]) -> tuple[Any, ...] | None:
    """The classes over all sites, sorted; None for a loss without classes.

    One site may hold rows of one class only. The logistic loss needs exactly two classes over all sites; the
    larger one is coded as +1.

    Parameters
    ----------
    family : Family
        The family of the model.
    labels : iterable of array
        The labels of each site.

    Returns
    -------
    tuple or None
        The classes.

    Raises
    ------
    DataError
        If there are too few or too many classes, or the order of ordered classes is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.objectives import common_classes, family_of
    >>> common_classes(family_of("logistic"), [np.array(["no", "no"]), np.array(["yes", "no"])])
    ('no', 'yes')
    """
    if family.survival:
        _some_event(family, list(labels))
    if not family.classified:
        return None
    classes = np.unique(np.concatenate([np.unique(y) for y in labels])).tolist()
    shown = _shown(classes)
    if len(classes) < 2:
        raise DataError(f"y has only {len(classes)} class over all sites{shown}; check the target column")
    if family.classes == "ordered" and any(isinstance(label, str) for label in classes):
        raise DataError(
            f"the order of classes that are text is not known{shown}; list them in their order "
            "(classes = [...], --classes), or code them as numbers"
        )
    if family.classes == "two" and len(classes) > 2:
        raise DataError(
            f"the {family.loss} loss needs exactly two classes over all sites, but there are {len(classes)}"
            f"{shown}; use 'multinomial', keep two, or code one against the rest"
        )
    return tuple(classes)


def _shown(classes: list[Any]) -> str:
    """The first few classes; numbers may be measurements, and are not quoted."""
    if not all(isinstance(label, bool | str) for label in classes):
        return ""
    return f" ({', '.join(map(str, classes[:5]))}{', ...' if len(classes) > 5 else ''})"


def _some_event(family: Family, labels: list[NDArray[Any]]) -> None:
    """Refuse times without an event at any site; one site may have none."""
    if all(is_survival(y) and not y["event"].any() for y in labels):
        raise DataError(NO_EVENT)


def coded(family: Family, site: str, y: NDArray[Any], classes: tuple[Any, ...] | None) -> NDArray[Any]:
    """y of one site as its loss needs it: -1 and +1, the index of the class, or checked numbers."""
    if family.classes == "two" and classes is not None:
        return np.where(y == classes[1], 1.0, -1.0)
    if classes is not None:
        order = np.argsort(np.array(classes))  # of ordered classes, their order need not be that of words
        return np.asarray(order[np.searchsorted(np.array(classes), y, sorter=order)])
    if family.survival:
        return _records(family, site, y)
    return _suited(family, site, _numbers(family.loss, site, y))


def _records(family: Family, site: str, y: NDArray[Any]) -> NDArray[Any]:
    if not is_survival(y):
        raise DataError(
            f"site {site!r}: the {family.loss} loss needs a time and an event of each row; give y as a "
            "structured array with the fields event and time"
        )
    return y


def _numbers(loss: str, site: str, y: NDArray[Any]) -> NDArray[np.float64]:
    if is_survival(y):
        raise DataError(
            f"site {site!r}: the {loss} loss needs a target, but y holds times and events; use the cox loss"
        )
    if y.dtype.kind in "US":
        raise DataError(
            f"site {site!r}: the {loss} loss needs a numeric target, but y holds text; convert it"
        )
    numbers: NDArray[np.float64] = y.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise DataError(f"site {site!r}: the target holds NaN or infinity; drop or fill those rows")
    return numbers


def _suited(family: Family, site: str, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts are not negative (a fraction is a rate, and allowed), amounts are positive."""
    bad = family.unsuited(y)
    if bad.any():
        raise DataError(
            f"site {site!r}: the {family.loss} loss needs {family.response}, but the target is {y[bad][0]:g} "
            f"in a row ({bad.sum()} such rows); correct or drop those rows"
        )
    return y


def check_offset(family: Family, site: str, offset: NDArray[np.float64] | None) -> None:
    """Refuse offsets whose exponential is no number: most likely an exposure without its logarithm."""
    if offset is None or not family.logarithmic:
        return
    largest = float(np.abs(offset).max(initial=0.0))
    if largest > LARGEST_OFFSET:
        raise DataError(
            f"site {site!r}: an offset of {largest:.3g} is the logarithm of an exposure that is too large "
            "for a number; give the logarithm of the exposure as the offset, or the exposure itself as "
            "exposure"
        )
