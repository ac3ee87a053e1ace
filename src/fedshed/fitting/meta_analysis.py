"""`meta_analysis`: each site's own estimate, and what they make together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from fedshed.fitting.fit import fit
from fedshed.inference.meta import MetaAnalysis
from fedshed.preparation import Study


def meta_analysis(tables: Mapping[str, Any], study: Study, **options: Any) -> MetaAnalysis:
    """The sites' own estimates combined in two stages, beside the estimate of all rows.

    Each site fits the model to its own rows and sends its coefficients and their covariance, nothing else.
    Sites that have too few rows, separated rows or collinear columns are left out by name.

    Parameters
    ----------
    tables, study
        As in `fedshed.fit`, without a penalty; protected studies hide what a meta-analysis needs.
    options
        As `fedshed.fit` takes them.

    Returns
    -------
    MetaAnalysis
        With `combined(coefficient, method)`, `to_text()`, `to_csv()` and `plot()`.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.9, 1.7, 2.2], "y": [1.0, 1.9, 3.2, 3.3]}
    >>> south = {"x": [0.4, 1.2, 2.0, 3.1], "y": [1.2, 2.4, 2.9, 4.6]}
    >>> study = fedshed.Study(family="linear", target="y")
    >>> found = fedshed.meta_analysis({"north": north, "south": south, "east": {"x": [1], "y": [2]}}, study)
    >>> found.sites, found.left_out
    (('north', 'south'), {'east': 'it has too few rows for so many coefficients'})
    """
    return fit(tables, replace(study, site_estimates=True), **options).meta()
