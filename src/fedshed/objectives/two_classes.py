"""What models of two classes have in common, whatever their link: y = -1 or +1."""

from __future__ import annotations

from math import isclose
from typing import ClassVar

import numpy as np

from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.objectives.base import LinearModel


class TwoClasses(LinearModel):
    """A model of two classes; its loss falls as the margin of a row moves to the row's own side."""

    can_recede: ClassVar[bool] = True

    def gains(self, direction: Vector) -> Matrix:
        """How far each row moves to its own side."""
        return np.asarray(self.y * self.linear(direction))[:, None]

    def null_moments(self) -> Scalars:
        """The weights of both classes, and the sum of offsets."""
        positive = self.total((self.y > 0).astype(np.float64))
        shift = 0.0 if self.offset is None else self.total(self.offset)
        return np.array([self.weight - positive, positive, shift])

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Two weights that add up to the site's, and the sum of offsets."""
        return len(sums) == 3 and sums[:2].min() >= -1e-9 * weight and isclose(sums[:2].sum(), weight)
