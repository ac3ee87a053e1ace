"""Rows that are held out of a fit, to be predicted afterwards: a fraction of each site's, or a column."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError, DataError
from fedshed.tables.columns import Column
from fedshed.tables.frames import Frame

if TYPE_CHECKING:
    from fedshed.preparation.study import Study

NOT_EVALUATED = ("cox", "cox-breslow")  # whose concordance belongs to its own conversation


def check_holdout(study: Study) -> None:
    """Refuse a fraction that leaves no rows, and studies whose rows cannot be predicted from sums."""
    if study.holdout is None:
        return
    if isinstance(study.holdout, bool) or (isinstance(study.holdout, str) and not study.holdout):
        raise ConfigError("holdout is a fraction between 0 and 1, or the name of a column of booleans")
    if not isinstance(study.holdout, str) and not 0 < study.holdout < 1:
        raise ConfigError(
            f"holdout, the fraction of rows that are not fitted, lies between 0 and 1, not {study.holdout!r}"
        )
    if study.privacy is not None:
        raise ConfigError(
            "a private study has no evaluation: its counts would be released without noise; leave holdout out"
        )
    if study.family in NOT_EVALUATED:
        raise ConfigError(f"the {study.family} family has no evaluation of held-out rows; leave holdout out")


def fitted_rows(study: Study, frame: Frame, site: str) -> Frame:
    """The rows of a site to which the study's model is fitted: neither held out nor of weight 0."""
    rows = _kept_rows(study, frame, site)
    weighed = _rows_of_weight(study, rows)
    return rows if weighed.all() else rows.take(weighed)


def weighed_rows(study: Study, frame: Frame, site: str) -> NDArray[np.bool_]:
    """Which of the rows of a site that are not held out do not have the weight 0."""
    return _rows_of_weight(study, _kept_rows(study, frame, site))


def _kept_rows(study: Study, frame: Frame, site: str) -> Frame:
    if study.holdout is None:
        return frame
    held = held_out(study, frame, site)
    if held.all():
        raise DataError(
            "all rows are held out, so none is left to fit; hold out fewer, or leave out the site"
        )
    return frame.take(~held)


def _rows_of_weight(study: Study, frame: Frame) -> NDArray[np.bool_]:
    """Which rows do not have the weight 0; all of them where all have it, which is refused later."""
    column = None if study.weight is None else frame.column(study.weight)
    if column is None or column.kind != "number" or not column.values.any():
        return np.ones(frame.rows, dtype=np.bool_)
    return np.asarray(column.values != 0)


def held_rows(study: Study, frame: Frame, site: str) -> Frame:
    """The rows of a site that are predicted afterwards."""
    held = held_out(study, frame, site)
    if not held.any():
        raise DataError("no row is held out; hold out more (holdout), or leave out the site")
    return frame.take(held)


def held_out(study: Study, frame: Frame, site: str) -> NDArray[np.bool_]:
    """Which rows of a site are held out, the same at every call.

    A fraction is drawn at the site from the seed and its name; rows of one cluster stay together.
    """
    if isinstance(study.holdout, str):
        return _marked(study.holdout, frame.column(study.holdout))
    if study.holdout is None:
        return np.zeros(frame.rows, dtype=np.bool_)
    seed = int.from_bytes(blake2b(f"{study.holdout_seed} {site}".encode(), digest_size=16).digest(), "big")
    rng = np.random.default_rng(seed)
    codes = np.arange(frame.rows)
    if study.cluster is not None:
        codes = np.unique(frame.column(study.cluster).as_category().values, return_inverse=True)[1]
    place = np.argsort(np.argsort(rng.random(int(codes.max(initial=-1)) + 1)))[codes]  # of each row's cluster
    wanted = round(study.holdout * frame.rows)
    sizes = np.cumsum(np.bincount(place))
    return np.asarray(place < np.searchsorted(sizes, wanted, side="left") + (wanted > 0))


def _marked(name: str, column: Column) -> NDArray[np.bool_]:
    """The rows that a column of booleans, or of zeros and ones, marks."""
    if lost := int(column.missing.sum()):
        raise DataError(f"column {name!r}, which holds rows out, is missing in {lost} rows; fill them in")
    if column.kind == "boolean":
        return np.asarray(column.values == 1)
    if column.kind == "number" and np.isin(column.values, (0.0, 1.0)).all():
        return np.asarray(column.values == 1.0)
    raise DataError(f"column {name!r}, which holds rows out, must hold booleans, or 0 and 1; convert it")
