"""`meta_analysis`: a meta-analysis of the sites' own estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from fedshed.fitting.fit import fit
from fedshed.inference.meta import MetaAnalysis
from fedshed.preparation import Study


def meta_analysis(tables: Mapping[str, Any], study: Study, **options: Any) -> MetaAnalysis:
    """Two-stage meta-analysis: combine the sites' own estimates, and compare them with the pooled estimate.

    For the meta-analysis, each site fits the model to its own rows and sends only its coefficients and their
    covariance. Sites with too few rows, separated classes or collinear columns are left out, and the result
    names them.

    Parameters
    ----------
    tables : mapping
        The table of each site, as in `fedshed.fit`.
    study : Study
        The model and its columns, without a penalty and not protected, because a protected study hides the
        estimates of single sites.
    options
        Options for `fedshed.fit`, such as `algorithm` or `over`.

    Returns
    -------
    MetaAnalysis
        The estimates, with `combined(coefficient, method)`, `to_text()`, `to_csv()` and `plot()`.

    Raises
    ------
    ConfigError
        If the study is penalised or protected, or its family has no meta-analysis.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.9, 1.7, 2.2], "y": [1.0, 1.9, 3.2, 3.3]}
    >>> south = {"x": [0.4, 1.2, 2.0, 3.1], "y": [1.2, 2.4, 2.9, 4.6]}
    >>> study = fedshed.Study(family="linear", target="y")
    >>> found = fedshed.meta_analysis({"north": north, "south": south, "east": {"x": [1], "y": [2]}}, study)
    >>> found.sites, found.left_out
    (('north', 'south'), {'east': 'it has too few rows for the number of coefficients'})
    """
    return fit(tables, replace(study, site_estimates=True), **options).meta()
