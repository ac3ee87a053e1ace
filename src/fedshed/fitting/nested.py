"""Likelihood-ratio tests of nested models, and of each term of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.fitting.fit import fit
from fedshed.fitting.model import Model
from fedshed.fitting.term_tests import Test, Tests, judged
from fedshed.inference import Inference
from fedshed.objectives import family_of
from fedshed.preparation import Study, formulas
from fedshed.preparation.expressions import quoted
from fedshed.preparation.filling import indicator


def likelihood_ratio(small: Model, large: Model) -> Test:
    """Test whether a larger model fits better than a smaller model that is nested in it.

    The statistic is 2 (log L_large - log L_small), which is compared with chi2. If the dispersion is
    estimated, it is the F statistic (D_small - D_large) / (df phi), where D is the deviance and phi the
    dispersion of the larger model.

    Parameters
    ----------
    small, large : Model
        Two models that were fitted to the same rows of the same sites; the large model must have all terms
        of the small one.

    Returns
    -------
    Test
        The test, with `statistic`, `df` and `p_value`.

    Raises
    ------
    ConfigError
        If the models are not nested, are penalised, did not converge, or were fitted to different rows.

    Examples
    --------
    >>> import fedshed
    >>> tables = {"north": {"x": [0.1, 0.9, 1.7, 2.0], "y": [1.0, 1.9, 3.2, 3.1]}}
    >>> small = fedshed.fit(tables, fedshed.Study(family="linear", target="y", columns=()))
    >>> large = fedshed.fit(tables, fedshed.Study(family="linear", target="y"))
    >>> fedshed.likelihood_ratio(small, large).p_value < 0.05
    True
    """
    _comparable(small, large)
    a, b = small.inference, large.inference
    df = b.parameters - a.parameters
    if (
        b.nuisance is not None and b.nuisance.found
    ):  # each model has its own, so that deviances are not comparable
        return judged(f"{large.plan.study.target}: {df:g} more coefficients", _gain(a, b), df, inf)
    phi = b.dispersion if family_of(b.loss).dispersed else 1.0
    if not phi:
        raise ConfigError(
            "the larger model leaves no residual variation to estimate the dispersion; leave out terms"
        )
    if a.deviance is None or b.deviance is None:
        raise ConfigError("a private model has no deviance, so that a likelihood-ratio test is not possible")
    if a.deviance < b.deviance * (1 - 1e-9):
        raise ConfigError(
            "the smaller model fits better than the larger one, so that they are not nested; predictors of "
            "the same name must have the same values in both"
        )
    name = f"{large.plan.study.target}: {df:g} more coefficients"
    return judged(name, max(a.deviance - b.deviance, 0.0) / phi, df, b.freedom())


def _gain(a: Inference, b: Inference) -> float:
    """Twice the difference of log-likelihoods."""
    if a.log_likelihood is None or b.log_likelihood is None or family_of(b.loss).quadratic:
        raise ConfigError(
            "restricted likelihoods (REML) of linear models with a random intercept are not comparable if "
            "the terms differ; use Wald tests instead (Model.anova)"
        )
    return max(2 * (b.log_likelihood - a.log_likelihood), 0.0)


def _comparable(small: Model, large: Model) -> None:
    a, b = small.inference, large.inference
    if small.plan.study.loss != large.plan.study.loss or small.plan.study.target != large.plan.study.target:
        raise ConfigError(
            "the models have different families or targets; fit both with the same family and target"
        )
    if not set(a.names) < set(b.names):
        extra = sorted(set(a.names) - set(b.names))
        why = f"{extra[0]!r} is only in the smaller model" if extra else "they have the same coefficients"
        raise ConfigError(
            f"the models are not nested: {why}; all terms of the smaller model must be in the larger one"
        )
    if a.firth or b.firth:
        raise ConfigError(
            "two fits with Firth's penalty have different penalties, so that their likelihoods are not "
            "comparable; use "
            "fedshed.firth_tests, which keeps the penalty of the larger model"
        )
    if any((*a.l2, *b.l2, *a.l1, *b.l1)):
        raise ConfigError("a likelihood-ratio test needs fits without a penalty; set l2 = 0 and l1 = 0")
    if not small.converged or not large.converged:
        raise ConfigError(
            "a likelihood-ratio test needs models that converged; increase max_iterations, or see run.reason"
        )
    for site in sorted({*small.rows, *large.rows}):
        one, other = small.rows.get(site), large.rows.get(site)
        if one is None or other is None:
            raise ConfigError(
                f"site {site!r} takes part in only one of the models; fit both to the same sites"
            )
        if (one.used, one.digest) != (other.used, other.digest):
            raise ConfigError(
                f"site {site!r} used different rows in the two models ({one.used:,} and {other.used:,}), most"
                " likely because of missing values; fit both to the rows that are complete in the larger one"
            )


def drop_one(tables: Mapping[str, Any], study: Study, **options: Any) -> Tests:
    """Likelihood-ratio tests of all terms, each against the model without that term.

    As in R's `drop1`, a term that is part of an interaction is not tested.

    Parameters
    ----------
    tables : mapping
        The table of each site, as in `fedshed.fit`.
    study : Study
        The model and its columns, without a penalty.
    options
        Options for `fedshed.fit`, such as `algorithm` or `over`.

    Returns
    -------
    Tests
        One test for each term.

    Raises
    ------
    ConfigError
        If rows with missing values were dropped, or the models cannot be compared (see `likelihood_ratio`).

    Examples
    --------
    >>> import fedshed
    >>> tables = {"north": {"x": [0.1, 0.9, 1.7, 2.0], "z": [1, 0, 0, 1], "y": [1.0, 1.9, 3.2, 3.1]}}
    >>> tests = fedshed.drop_one(tables, fedshed.Study(family="linear", target="y"))
    >>> [one.name for one in tests.tests]
    ['x', 'z']
    """
    whole = fit(tables, study, **options)
    if any(count.dropped and count.missing.keys() - {study.weight} for count in whole.rows.values()):
        raise ConfigError(
            "rows with missing values were dropped, and models without a term would drop other rows; remove "
            "rows with missing values from the tables first"
        )
    marks = set(map(indicator, whole.plan.columns)) if study.fills_in else set[str]()
    terms = [t for t in dict.fromkeys(whole.plan.terms) if t not in marks and not _part_of_another(t, whole)]
    smaller = {term: fit(tables, _without(whole, term), **options) for term in terms}
    return Tests(tuple(replace(likelihood_ratio(smaller[term], whole), name=term) for term in terms))


def _part_of_another(term: str, model: Model) -> bool:
    factors = set(term.split(":"))
    return any(factors < set(other.split(":")) for other in model.plan.terms)


def _without(model: Model, term: str) -> Study:
    """The study without one term, on the rows that the whole model uses."""
    study = model.plan.study
    if study.formula is None:
        columns = tuple(c for c in model.plan.columns if c != term)
        return replace(study, columns=columns, exclude=(), levels=_of(study, columns))
    categories = formulas.formula_of(study).categories
    factors = (quoted(factor) if factor in model.plan.columns else factor for factor in term.split(":"))
    written = ":".join(f"C({factor})" if factor.strip("`") in categories else factor for factor in factors)
    smaller = replace(study, formula=f"{study.formula} - {written}", levels={})
    return replace(smaller, levels=_of(study, formulas.formula_of(smaller).columns))


def _of(study: Study, columns: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The levels that a study lists for these columns."""
    return {column: levels for column, levels in study.levels.items() if column in columns}
