"""Counts with a logarithmic link, mu = exp(z): l(z, y) = exp(z) - y z, convex in z."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec.structs import replace
from scipy.special import gammaln, xlogy

from fedshed.linalg.arrays import Matrix, Scalars, Vector, namespace
from fedshed.objectives.base import LinearModel
from fedshed.objectives.family import Family, no_likelihood


class Poisson(LinearModel):
    """Counts with a logarithmic link: l(z, y) = exp(z) - y z (McCullagh and Nelder 1989, chapter 6).

    Parameters
    ----------
    X : array or scipy CSR array
        One row per observation.
    y : array
        A count or rate per row, at least 0.
    weights : array, optional
        The weight of each row. Default: 1.
    offset : array, optional
        A number per row that is added to its margin. Default: 0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.objectives import Poisson
    >>> model = Poisson(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]))
    >>> round(model.at(np.array([0.0])).value, 4)
    1.0
    """

    labelled: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True
    can_recede: ClassVar[bool] = True

    def gains(self, direction: Vector) -> Matrix:
        """How far the mean of each row falls: without bound for a count of 0, else not at all."""
        z = self.linear(direction)
        return np.column_stack([-z, np.where(self.y > 0, z, -z)])

    def null_moments(self) -> Scalars:
        """The sums of counts and of exposures exp(offset)."""
        exposure = self.weight if self.offset is None else self.total(np.exp(self.offset))
        return np.array([self.total(self.y), exposure])

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The logarithm of the rate; 0 where there is no count at all."""
        levels: Vector = np.log(sums[:1] / sums[1]) if sums[0] > 0 else np.zeros(1)
        return levels

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Whether these can be sums of counts and of exposures, whose sum the Master does not know."""
        return len(sums) == 2 and bool((sums >= 0).all())

    def losses(self, z: Vector) -> Vector:
        """exp(z) - y z."""
        losses: Vector = namespace(z).exp(z) - self.y * z
        return losses

    def slopes(self, z: Vector) -> Vector:
        """exp(z) - y."""
        slopes: Vector = namespace(z).exp(z) - self.y
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """exp(z)."""
        curvatures: Vector = namespace(z).exp(z)
        return curvatures

    def excess(self, z: Vector) -> Vector:
        """y (exp(t) - 1 - t), t = z - log y, which keeps its digits where a count is large; exp(z) for 0."""
        counted = self.y > 0
        t = z - np.log(self.y, out=np.zeros_like(z), where=counted)
        return np.where(counted, self.y * (np.expm1(t) - t), np.exp(z))

    def constants(self) -> Vector:
        """y log y - y - log y!."""
        constants: Vector = xlogy(self.y, self.y) - self.y - gammaln(self.y + 1.0)
        return constants

    def averages(self) -> bool:
        """Whether some are rates."""
        return not np.array_equal(self.y, np.round(self.y))

    def precise_constant(self) -> float:
        """The constant for counts w y behind rates y, with an exposure as weight or in the offset."""
        counts = self.y if self.weights is None else self.y * self.weights
        if not np.allclose(counts, np.round(counts), rtol=1e-9, atol=1e-9):
            return self.total(self.constants())  # no counts behind them: as statsmodels has it
        return float((xlogy(counts, counts) - counts - gammaln(counts + 1.0)).sum())


FAMILY = Family(
    name="poisson", loss="poisson", objective=Poisson, title="Poisson", link="log", least=0.0,
    response="a count or rate >= 0", unit_dispersion=True, ratio="rate ratio",
)  # fmt: skip
QUASI = replace(
    FAMILY, name="quasi-poisson", loss="quasi-poisson", title="Quasi-Poisson", dispersed=True,
    unit_dispersion=False, log_likelihood=no_likelihood, determination="Pseudo R2 (deviance)",
)  # fmt: skip
