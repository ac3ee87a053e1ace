"""Measures for scikit-learn's cross-validation that need the site of each row."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedshed._utils.errors import DataError
from fedshed.objectives.ranking import concordance


def auc_within_sites(y_true: Any, y_score: Any, sites: Any, sample_weight: Any = None) -> float:
    """The AUC within sites: the share of concordant pairs among pairs of rows of the same site.

    An evaluation reports the same measure. A model that only knows the site of each row can have a pooled AUC
    above 1/2, but its AUC within sites is 1/2.

    Parameters
    ----------
    y_true : array
        The class of each row; there must be two classes, and the second in sorted order is the positive one.
    y_score : array
        The score or probability of the positive class.
    sites : array
        The site of each row.
    sample_weight : array, optional
        How often each row counts.

    Returns
    -------
    float
        The share, from 0 to 1.

    Raises
    ------
    DataError
        If there are more than two classes, lengths differ, or no site has rows of both classes.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.auc_within_sites([0, 1, 0, 1], [0.1, 0.2, 0.8, 0.7], ["a", "a", "b", "b"])
    0.5
    """
    labels, scores, where = np.asarray(y_true), np.asarray(y_score, dtype=np.float64), np.asarray(sites)
    weights = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    classes = np.unique(labels)
    if len(classes) > 2 or not len(labels) == len(scores) == len(where) == len(weights):
        raise DataError(
            "auc_within_sites needs two classes, and one score, one site and one weight for each row"
        )
    pairs, products = 0.0, 0.0
    for site in np.unique(where):
        mine = where == site
        _, place = np.unique(scores[mine], return_inverse=True)
        up = labels[mine] == classes[-1]
        positive, negative = (
            np.bincount(place, weights[mine] * side, place.max() + 1).astype(np.float64) for side in (up, ~up)
        )
        pairs += concordance(positive, negative)[0]
        products += float(positive.sum() * negative.sum())
    if products <= 0:
        raise DataError("no site has rows of both classes, so that there are no pairs to compare")
    return float(pairs / products)
