"""The privacy that a study promises each row: `privacy = {epsilon = 4, delta = 1e-6, clip = 3}`."""

from __future__ import annotations

from math import isfinite

from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed.privacy.zcdp import rho_for

WEAK = 10.0  # an epsilon above it promises little


class Privacy(Struct, frozen=True, forbid_unknown_fields=True):
    """Differential privacy of a study: (epsilon, delta) for replacing any one row.

    The predictors of a row, without the intercept, are scaled down to the norm `clip` if their norm is
    larger. Columns should therefore have similar sizes, near 1: scale them by public numbers in the formula,
    such as `I((age - 60) / 15)`.

    Parameters
    ----------
    epsilon : float
        The privacy parameter epsilon, above 0; a smaller value is more private.
    delta : float
        The privacy parameter delta, between 0 and 1, and below 1 / N for N rows.
    clip : float
        The largest norm of a row's predictors, above 0.

    Raises
    ------
    ConfigError
        If a value is out of range.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.Privacy(epsilon=4.0, delta=1e-6, clip=3.0).rho > 0.3
    True
    """

    epsilon: float
    delta: float
    clip: float

    def __post_init__(self) -> None:
        if not (isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon of privacy must be a number above 0, such as 4, not {self.epsilon!r}")
        if not 0 < self.delta < 1:
            raise ConfigError(
                f"delta of privacy must be between 0 and 1, such as 1e-6, and below 1 / rows, not "
                f"{self.delta!r}"
            )
        if not (isfinite(self.clip) and self.clip > 0):
            raise ConfigError(
                f"clip of privacy, the largest norm of a row's predictors, must be a number above 0, not "
                f"{self.clip!r}"
            )

    @property
    def rho(self) -> float:
        """The largest budget rho of zero-concentrated differential privacy (zCDP) for (epsilon, delta)."""
        return rho_for(self.epsilon, self.delta)

    @property
    def weak(self) -> str:
        """A sentence about a promise that protects little; empty otherwise."""
        if self.epsilon <= WEAK:
            return ""
        return f"privacy with epsilon = {self.epsilon:g} promises little; at most {WEAK:g} is usual"

    def check_rows(self, rows: int) -> None:
        """Refuse a delta that publishing some row whole would satisfy, with a ConfigError."""
        if self.delta * rows >= 1:
            raise ConfigError(
                f"delta of privacy is {self.delta:g}, but it must be below 1 / rows = {1 / rows:.2g}; "
                f"{0.01 / rows:.1g} is usual for {rows} rows"
            )
