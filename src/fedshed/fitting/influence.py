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
    """The influence of each site on the estimate, by fitting the model again without the site.

    The result is exact and takes one fit per site; `Model.influence` approximates it by one Newton step,
    without further exchanges. If only one site has a level, the model without that site lacks the level.

    Parameters
    ----------
    tables : mapping
        The table of each site, as in `fedshed.fit`; at least two sites.
    study : Study
        The model and its columns, not protected.
    options
        Options for `fedshed.fit`, such as `algorithm` or `over`.

    Returns
    -------
    Influence
        The changes by site, with `largest()` and `to_csv()`.

    Raises
    ------
    ConfigError
        If there are fewer than two sites, or the study is protected.

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
        raise ConfigError("the influence of a site needs at least two sites; give the tables of more sites")
    if study.protected:
        raise ConfigError(
            "a protected study hides the contribution of a single site, which fits without it would reveal; "
            "leave out protected"
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
    """The change of the estimate; ConfigError if the part has other coefficients or did not converge."""
    if part.inference.names != whole.inference.names:
        lost = next(name for name in whole.inference.names if name not in part.inference.names)
        raise ConfigError(f"the coefficient {lost!r} cannot be estimated without this site")
    if not part.converged:
        raise ConfigError(f"the fit without this site did not converge ({part.run.reason})")
    pairs = zip(whole.inference.coefficients, part.inference.coefficients, strict=True)
    return tuple(all_sites - others for all_sites, others in pairs)
