"""Parts of an `Inference`: tests, sites, survival and privacy, as plain data."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from fedshed.linalg.arrays import Matrix, Vector, pack

Numbers = tuple[float, ...]


class Score(Struct, frozen=True):
    """A score test, whose statistic has a chi-squared distribution under the null hypothesis."""

    statistic: float  # the value of chi2
    df: int  # the degrees of freedom
    p_value: float | None  # the p-value; None if there is nothing to test


class ClassCoding(Struct, frozen=True):
    """How the coefficients of a multinomial model compare its classes."""

    classes: tuple[bool | int | float | str, ...]  # all K classes
    columns: tuple[str, ...]  # the names of the columns, with the intercept
    reference: int | None  # the place of the reference class; None: coefficients sum to 0 over the classes

    def in_words(self) -> str:
        """What a coefficient means, in one sentence."""
        if self.reference is None:
            return (
                "Coefficients sum to 0 over the classes: they compare each class with the geometric mean of "
                "all classes, not with another class"
            )
        return f"Reference class: {self.classes[self.reference]} (the other classes are compared with it)"


class SiteReport(Struct, frozen=True):
    """The fit of the common model at one site, and the test of this site against the others."""

    rows: int  # the rows of the site
    weight: float  # the sum of the weights of its rows
    deviance: float  # the deviance of its rows under the common model
    contribution: float  # what the site adds to the statistic of the test of heterogeneity
    score: Score  # the score test of this site against all others


class Promise(Struct, frozen=True):
    """Differential privacy of each row: (epsilon, delta), for predictors of at most the norm `clip`.

    `noise` is the standard deviation that the noise adds to each coefficient; the standard errors include it.
    """

    epsilon: float
    delta: float
    clip: float
    noise: Numbers


class PhTest(Struct, frozen=True):
    """A score test of proportional hazards: chi2 with df degrees of freedom; with none nothing is tested."""

    statistic: float
    df: int
    p_value: float | None


class SurvivalFacts(Struct, frozen=True):
    """Facts about a survival model: its events, Harrell's C, and tests of proportional hazards.

    C is computed from pairs of rows of the same site and stratum; `proportional` has a test per coefficient,
    on the scale of time that `transform` names: "identity", "log", "rank" or "km".
    """

    events: float
    concordance: float | None
    pairs: float
    transform: str
    proportional: tuple[PhTest, ...]
    proportional_global: PhTest


def numbers(array: Vector) -> Numbers:
    """An array as plain numbers."""
    return tuple(array.tolist())


def packed(A: Matrix | None) -> Numbers | None:
    """A symmetric matrix as plain numbers."""
    return None if A is None or not np.isfinite(A).all() else numbers(pack(A))
