"""The notes below a summary: what its readers must know about the numbers, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import numpy as np

from fedshed.inference.records import Numbers, SurvivalFacts
from fedshed.inference.result import ENOUGH_CLUSTERS, FEW_SITES, Inference, Robust, by_site, few_sites
from fedshed.inference.wording import plain
from fedshed.objectives import family_of

OVERDISPERSED = 1.5
ENOUGH = 5
STRATIFIED = (
    "The model is stratified by site: each site has its own baseline hazard, and rows are compared within "
    "their site only, as in R's coxph(... + strata(site)). A model with one baseline hazard for the rows of "
    "all sites has other estimates and, above all with many small sites, smaller errors."
)
DOUBTFUL = 0.05  # P of a test of proportional hazards


def _overdispersed(it: Inference) -> bool:
    looked_at = family_of(it.loss).unit_dispersion and it.pearson is not None
    return looked_at and it.df_resid > 0 and (it.pearson or 0.0) > OVERDISPERSED * it.df_resid


def _aic_constant(it: Inference) -> Iterable[str]:
    """How the AIC of a linear or inverse Gaussian model differs from R's."""
    family = family_of(it.loss)
    if it.aic is None or it.nuisance is not None:
        return
    if family.quadratic:
        yield (
            "AIC and BIC do not count the dispersion as a parameter, as in statsmodels; R's AIC, which does, "
            "is larger by 2."
        )
    elif family.name == "inverse-gaussian":
        yield (
            "AIC and BIC do not count the dispersion as a parameter, and the log-likelihood is at this "
            "dispersion, as in statsmodels; R's AIC counts it and is at the deviance / No. rows."
        )


def caveats(it: Inference, robust: Robust) -> Iterable[str]:
    """The notes that these figures need."""
    if it.protected is not None:
        yield (
            "Protected: only sums over all sites left them, so there are no tables of single sites, no "
            "checks of each site's answers for convexity, and no models that replace silent sites."
        )
    if it.promise is not None:
        share = max(z**2 / c for z, c in zip(it.promise.noise, np.diag(it.covariance()), strict=True))
        yield (
            "Private: noise was added to each number that left, so there are no measures of fit and no "
            "test of the sites. Standard errors include the noise, which is "
            f"at most {share:.0%} of a variance here."
        )
        yield "Rows whose norm is larger than clip were scaled down to it; their number is not known."
    if it.nuisance is not None:
        yield from it.nuisance.in_words()
    if not family_of(it.loss).convex:
        yield "The cost of this family is not convex: the estimates are a local optimum; there may be others."
    if it.firth and it.penalised_log_likelihood is not None:
        yield (
            "The estimates maximise Firth's penalised likelihood, whose logarithm is "
            f"{it.penalised_log_likelihood:.8g} here. The log-likelihood, the deviance and the AIC are "
            "without the penalty. Standard errors are from the information at the estimates."
        )
    if any(it.l2) and not any(it.l1):
        yield (
            "The ridge shrinks the estimates: standard errors describe how they vary about their mean, not "
            "about the true values."
        )
    if by_site(robust) and not any(it.l1):
        yield from _robust_caveats(it)
    if robust == "cluster":
        yield (
            f"Robust errors are clustered within sites. They are based on {it.row_clusters:,} clusters and "
            f"use Student's t with {it.row_clusters - 1:,} degrees of freedom."
        )
        if names := _too_few(it, it.row_groups):
            yield f"No robust error is given for {_listed(names)}: too few clusters inform it."
    if family_of(it.loss).dispersed and it.dispersion is not None:
        yield "The dispersion is Pearson chi2 / Df residuals."
        yield from _aic_constant(it)
    if it.level_freedom is not None and not robust:
        yield _freedom_by_level(it.names, it.level_freedom)
    elif not by_site(robust) and robust != "cluster" and it.freedom() < inf:
        yield (
            f"Tests and intervals use Student's t with {plain(it.df_resid)} degrees of freedom, because the "
            "dispersion is estimated."
        )
    if it.weight_type == "precision" and family_of(it.loss).survival:
        yield (
            "A row is one observation whatever its weight; the errors of the model are the same if weights "
            "count rows (weight_type)."
        )
    elif it.weight_type == "precision":
        yield "Weights are precisions: a weight divides the variance of its row, which is one observation."
    if it.weight_type == "frequency":
        yield "Weights are frequencies: a weight is how often its row counts."
    if family_of(it.loss).survival and it.site_count > 1:
        yield STRATIFIED
    if it.survival is not None:
        yield from _doubtful_hazards(it.names, it.survival)
    if _overdispersed(it):
        yield (
            f"Pearson chi2 / Df residuals is {(it.pearson or 0.0) / it.df_resid:.3g}, but about 1 is "
            f"expected for a {family_of(it.loss).title} model: "
            "errors from the model are too small; compare robust ones (robust=True, --robust)."
        )
    few = sum(site.score.df > 0 and site.weight < ENOUGH * site.score.df for site in it.sites.values())
    if few:
        yield f"The score test is asymptotic: {few} sites have under {ENOUGH} rows per degree of freedom."


def _freedom_by_level(names: tuple[str, ...], freedom: Numbers) -> str:
    """Which coefficients are tested by differences between sites."""
    said = "Tests and intervals use Student's t with degrees of freedom by level, as R's nlme does"
    within = freedom[-1]  # of the intercept, by the same convention
    between = [name for name, df in zip(names, freedom, strict=True) if df != within]
    if not between:
        return f"{said}: {plain(within)}, because all columns vary within sites."
    sites = max(0.0, min(freedom))
    what = f"{plain(sites)} for {_listed(between)}, constant within sites, and {plain(within)} for the others"
    return f"{said}: {what}." + ("" if sites else " There are too few sites to test the former.")


def _doubtful_hazards(names: tuple[str, ...], facts: SurvivalFacts) -> Iterable[str]:
    """The coefficients whose hazard ratio seems to change with time."""
    found = [
        f"{name} (P = {test.p_value:.2g})"
        for name, test in zip(names, facts.proportional, strict=True)
        if test.p_value is not None and test.p_value < DOUBTFUL
    ]
    if found:
        yield (
            f"The hazard ratio of {_listed(found)} seems to change with time (score test of proportional "
            f"hazards on the {facts.transform} scale of time). The estimate is an average over time; "
            "consider strata, or an interaction with time."
        )


def _robust_caveats(it: Inference) -> Iterable[str]:
    """The notes on robust errors."""
    few = list(it.names) if it.cluster_covariance is None else _too_few(it, it.clusters)
    if few:
        shown = "No robust error is given" + ("" if len(few) == len(it.names) else f" for {_listed(few)}")
        yield (
            f"{shown}: the effective number of sites behind a coefficient is below {ENOUGH_CLUSTERS:g}. This "
            "happens if there are few sites, one has most of the rows, or each has its own intercept; use "
            "the model's errors."
        )
    if len(few) < len(it.names):
        yield f"Robust errors use Student's t, with {it.site_count - 1} degrees of freedom."
        if it.site_count < FEW_SITES:
            yield few_sites(it.site_count)


def _too_few(it: Inference, counts: tuple[float, ...] | None) -> list[str]:
    """The coefficients that too few clusters inform."""
    return [name for name, count in zip(it.names, counts or (), strict=False) if count < ENOUGH_CLUSTERS]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
