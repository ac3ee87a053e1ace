"""Dispersion and log-likelihood of each family, from deviance, Pearson's chi2 and a constant of y.

McCullagh and Nelder (1989), 2.2 and 8.3; the conventions are those of statsmodels' GLM.
"""

from __future__ import annotations

from math import lgamma, log, pi

from msgspec import Struct

FAMILIES = {
    "least-squares": ("Gaussian", "identity"),
    "logistic": ("Binomial", "logit"),
    "poisson": ("Poisson", "log"),
    "gamma": ("Gamma", "log"),
    "multinomial": ("Multinomial", "softmax"),
}


class Totals(Struct, frozen=True):
    """A fit over all sites."""

    rows: int
    weight: float
    deviance: float
    pearson: float | None
    constant: float


def dispersion(loss: str, fit: Totals, df_resid: float) -> float | None:
    """phi = chi2 / (W - k) where the family has one, else 1; None where nothing is left to estimate it."""
    if loss not in ("least-squares", "gamma"):
        return 1.0
    return None if df_resid <= 0 or fit.pearson is None else fit.pearson / df_resid


def log_likelihood(loss: str, fit: Totals, phi: float | None) -> float | None:
    """At the estimate; Gaussian: maximal over phi too; None for a perfect fit or an unknown dispersion."""
    D, W = fit.deviance, fit.weight
    if loss == "least-squares":
        return None if D <= 0 else -W / 2 * (log(2 * pi * D / W) + 1)
    if loss == "gamma":
        if not phi:
            return None
        return fit.constant - (D / 2 + W + W * log(phi)) / phi - W * lgamma(1 / phi)
    return fit.constant - D / 2
