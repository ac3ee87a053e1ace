"""Tests of the terms of a model: chi2, or F if the dispersion is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from typing import Any

import numpy as np
from msgspec import Struct
from scipy.special import chdtrc, fdtrc

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed._utils.notebook import html_table
from fedshed.inference import Inference
from fedshed.inference.result import Robust
from fedshed.preparation import DesignPlan


class Test(Struct, frozen=True):
    """A test of coefficients: chi2 with df, or F with df and df_resid if the dispersion is estimated."""

    name: str
    statistic: float
    df: float
    df_resid: float  # infinite for chi2
    p_value: float

    def __str__(self) -> str:
        if isnan(self.statistic):
            return f"{self.name}: no test, because there are too few sites or clusters, or no standard errors"
        kind = f"chi2({self.df:g})" if self.df_resid == inf else f"F({self.df:g}, {self.df_resid:g})"
        return f"{self.name}: {kind} = {self.statistic:.4g}, P = {self.p_value:.3g}"


class Tests(Struct, frozen=True):
    """Tests of several terms, one per row."""

    tests: tuple[Test, ...]

    def to_rows(self) -> list[dict[str, Any]]:
        """The tests as plain data, one dictionary for each term."""
        return [
            {"term": one.name, "statistic": one.statistic, "df": one.df,
             "df_resid": None if one.df_resid == inf else one.df_resid, "p_value": one.p_value}
            for one in self.tests
        ]  # fmt: skip

    def __getitem__(self, name: str) -> Test:
        found = {one.name: one for one in self.tests}
        if name not in found:
            raise ConfigError(f"there is no term {name!r}{closest(name, found)}")
        return found[name]

    def __str__(self) -> str:
        return "\n".join(map(str, self.tests))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self.to_rows())


def wald(plan: DesignPlan, it: Inference, robust: Robust = False) -> Tests:
    """The Wald test of each term: b'V^-1 b of its coefficients, as F if the dispersion is estimated."""
    return Tests(
        tuple(_wald(it, term, _places(plan, it, term), robust) for term in dict.fromkeys(plan.terms))
    )


def _places(plan: DesignPlan, it: Inference, term: str) -> list[int]:
    """The coefficients of a term; those of several classes are against the reference class."""
    width = len(plan.coefficients)
    columns = [j for j, t in enumerate(plan.terms) if t == term]
    return [k * width + j for k in range(len(it.names) // width) for j in columns]


def _wald(it: Inference, term: str, places: Sequence[int], robust: Robust) -> Test:
    V = it.covariance(robust)[np.ix_(places, places)]
    errors = it.std_err(robust)[list(places)]
    enough = not it.clustered(robust) or 2 * len(places) <= it.freedom(robust)  # the sandwich has this rank
    if not enough or np.isnan(V).any() or np.isnan(errors).any():
        return Test(term, np.nan, len(places), np.nan, np.nan)
    b = it.coef[list(places)]
    freedom = float(it.freedoms(robust)[list(places)].min())
    return judged(term, float(b @ np.linalg.solve(V, b)), len(places), freedom)


def judged(name: str, chi2: float, df: float, freedom: float) -> Test:
    """The test of a statistic that is chi2 with df, or df times F if `freedom` is finite."""
    if freedom == inf:
        return Test(name, chi2, df, inf, float(chdtrc(df, chi2)))
    return Test(name, chi2 / df, df, freedom, float(fdtrc(df, freedom, chi2 / df)))
