"""Positive amounts with a logarithmic link, mu = exp(z): l(z, y) = y exp(-z) + z, convex in z."""

from __future__ import annotations

from math import isclose, lgamma, log
from typing import ClassVar

import numpy as np

from fedshed.linalg.arrays import Scalars, Vector, namespace
from fedshed.objectives.base import LinearModel
from fedshed.objectives.family import Family, Totals


class Gamma(LinearModel):
    """Positive amounts: l(z, y) = y exp(-z) + z (McCullagh and Nelder 1989, chapter 8), without dispersion.

    Parameters
    ----------
    X : array or scipy CSR array
        One row per observation.
    y : array
        An amount per row, above 0.
    weights : array, optional
        The weight of each row. Default: 1.
    offset : array, optional
        A number per row that is added to its margin. Default: 0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.objectives import Gamma
    >>> model = Gamma(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]))
    >>> round(model.at(np.array([0.0])).value, 4)
    2.0
    """

    labelled: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True
    canonical: ClassVar[bool] = False

    def null_moments(self) -> Scalars:
        """The sums of y exp(-offset) and of weights."""
        return np.array(
            [self.total(self.y if self.offset is None else self.y * np.exp(-self.offset)), self.weight]
        )

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The logarithm of the mean."""
        levels: Vector = np.log(sums[:1] / sums[1])
        return levels

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Whether the first sum can be one of amounts, and the second is the weight."""
        return len(sums) == 2 and sums[0] >= 0 and isclose(sums[1], weight)

    def losses(self, z: Vector) -> Vector:
        """y exp(-z) + z."""
        losses: Vector = self.y * namespace(z).exp(-z) + z
        return losses

    def slopes(self, z: Vector) -> Vector:
        """1 - y exp(-z)."""
        slopes: Vector = 1.0 - self.y * namespace(z).exp(-z)
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """y exp(-z)."""
        curvatures: Vector = self.y * namespace(z).exp(-z)
        return curvatures

    def information(self, z: Vector) -> Vector:
        """1, which is not the curvature, because the logarithm is not the canonical link."""
        return np.ones_like(z)

    def excess(self, z: Vector) -> Vector:
        """exp(-t) - 1 + t with t = z - log y, which keeps its digits where the dispersion is small."""
        t = z - np.log(self.y)
        excess: Vector = np.expm1(-t) + t
        return excess

    def constants(self) -> Vector:
        """-log y."""
        constants: Vector = -np.log(self.y)
        return constants

    def precise_constant(self) -> float | None:
        """None: if weights are precisions, it depends on the dispersion row by row."""
        return self.total(self.constants()) if not self.weighing else None


def log_likelihood(fit: Totals, phi: float | None) -> float | None:
    """With shape 1 / phi (McCullagh and Nelder 1989, 8.3); unknown where the dispersion is."""
    if not phi or fit.constant is None:
        return None
    D, W = fit.deviance, fit.weight
    return fit.constant - (D / 2 + W + W * log(phi)) / phi - W * lgamma(1 / phi)


FAMILY = Family(
    name="gamma", loss="gamma", objective=Gamma, title="Gamma", link="log", dispersed=True,
    log_likelihood=log_likelihood, least=0.0, positive=True, response="an amount > 0",
    determination="Pseudo R2 (deviance)", ratio="ratio of means",
)  # fmt: skip
