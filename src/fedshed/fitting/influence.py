"""`influence`: the model fitted again without each site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshed._utils.errors import ConfigError, Error
from fedshed.fitting.fit import fit
from fedshed.fitting.model import Model
from fedshed.inference.influence import Influence
from fedshed.preparation import Study


def influence(tables: Mapping[str, Any], study: Study, **options: Any) -> Influence:
    """How much the estimate rests on each site: the model is fitted again without it.

    `Model.influence` estimates the same from what was exchanged already, in one Newton step; this is exact,
    and takes a fit for each site.  A level that only one site has leaves the model with that site.

    Parameters
    ----------
    tables, study
        As in `fedshed.fit`; two sites at least.
    options
        As `fedshed.fit` takes them.

    Returns
    -------
    Influence
        With the changes by site, `largest()` and `to_csv()`.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}
    >>> south = {"x": [0.4, 1.2, 2.0, 3.1], "y": [1.2, 2.4, 2.9, 4.6]}
    >>> study = fedshed.Study(family="linear", target="y")
    >>> found = fedshed.influence({"north": north, "south": south}, study)
    >>> found.largest()[0][0]
    'south'
    """
    if len(tables) < 2:
        raise ConfigError("the influence of a site needs others beside it; give tables of two sites or more")
    if study.protected:
        raise ConfigError(
            "a protected study hides what a single site adds, which fits without it would show; leave out "
            "protected"
        )
    whole = fit(tables, study, **options)
    changes, without = {}, {}
    for site in sorted(map(str, tables)):
        others = {name: table for name, table in tables.items() if str(name) != site}
        try:
            changes[site] = _change(whole, fit(others, study, **options))
        except Error as error:
            without[site] = str(error)
    it = whole.inference
    return Influence(it.names, it.coefficients, tuple(it.std_err().tolist()), changes, without, exact=True)


def _change(whole: Model, part: Model) -> tuple[float, ...]:
    """The estimate of all sites less that of some; an error where that is of other coefficients, or none."""
    if part.inference.names != whole.inference.names:
        lost = next(name for name in whole.inference.names if name not in part.inference.names)
        raise ConfigError(f"the coefficient {lost!r} cannot be estimated without it")
    if not part.converged:
        raise ConfigError(f"the fit without it did not converge ({part.run.reason})")
    pairs = zip(whole.inference.coefficients, part.inference.coefficients, strict=True)
    return tuple(all_sites - others for all_sites, others in pairs)
