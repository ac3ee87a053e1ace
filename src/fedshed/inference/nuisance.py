"""The parameter of a family besides theta, as it was given or estimated, and its error."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, log, sqrt

import numpy as np
from msgspec import Struct

from fedshed.linalg.arrays import Matrix
from fedshed.solve.profile import JointPoint

NORMAL = 1.959963984540054  # the quantile of 0.975, and the root of that of chi2 with one degree of freedom
FEW_SITES = 6  # below which the variance between sites is hardly known


class Nuisance(Struct, frozen=True):
    """A parameter besides the coefficients: alpha, p or tau.

    `log_error` is the standard error of its logarithm from the joint Hessian of all parameters; it is None if
    the value was given or is 0. `profile` is the 95 % interval of tau from the profile likelihood, which is
    that of lme4's `confint` unless it is the restricted one. Other parameters have the interval of 1.96
    standard errors about their logarithm.
    """

    name: str
    value: float
    found: bool  # or given
    log_error: float | None = None
    note: str = ""
    profile: tuple[float, float] | None = None
    restricted: bool = False  # found by restricted maximum likelihood, as tau of a linear model

    @property
    def error(self) -> float | None:
        """Its standard error, by the delta method."""
        return None if self.log_error is None else self.value * self.log_error

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval, if there is one."""
        if self.profile is not None or self.log_error is None:
            return self.profile
        ends = (log(self.value) + side * NORMAL * self.log_error for side in (-1, 1))
        low, high = (exp(end) if end < 700 else inf for end in ends)
        return low, high

    def in_words(self) -> Iterable[str]:
        """How it was found, in sentences."""
        if not self.found:
            return
        ends = self.interval
        if ends is not None:
            error = "" if self.error is None else f"standard error {self.error:.3g}, "
            kind = "restricted likelihood" if self.restricted else "likelihood"
            how = "(from its logarithm)" if self.profile is None else "from the same"
            yield (
                f"{self.name} = {self.value:.6g} was found by profile {kind}: {error}95 % interval "
                f"{ends[0]:.4g} to {ends[1]:.4g} {how}."
            )
        if self.note:
            yield self.note


def log_error(weight: float, profile_curvature: float) -> float | None:
    """(W P'')^(-1/2), where P is the mean profile cost as a function of the parameter's logarithm."""
    return 1.0 / sqrt(weight * profile_curvature) if profile_curvature > 0 else None


def few_sites(count: int) -> str:
    """A warning about the variance between few sites."""
    return (
        f"{count} sites are few: with fewer than {FEW_SITES} the estimated standard deviation between sites "
        "is imprecise, and usually too small."
    )


def joint_covariance(point: JointPoint, weight: float) -> Matrix:
    """The block of theta in the inverse of the joint Hessian W [[H, m], [m', f_ss]].

    (H^-1 + a a' / P'') / W with a = H^-1 m; where the profile is not convex, H^-1 / W.
    """
    n = len(point.theta)
    inverse = np.column_stack([point.solved(row) for row in np.eye(n)])
    a, bend = point.solved(point.mixed), point.profile_curvature
    extra = np.outer(a, a) / bend if bend > 0 else np.zeros((n, n))
    return np.asarray((inverse + inverse.T) / 2 + extra) / weight
