"""Local costs f^(i): the mean loss of a site's rows, without the ridge, which the Master adds."""

from fedshed.objectives.base import LinearModel
from fedshed.objectives.build import coefficient_names, local_objective, local_objectives
from fedshed.objectives.families import FAMILIES, family_of
from fedshed.objectives.family import Family
from fedshed.objectives.gamma import Gamma
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic
from fedshed.objectives.multinomial import Multinomial, contrasts
from fedshed.objectives.objective import Fit, Objective, Point
from fedshed.objectives.poisson import Poisson
from fedshed.objectives.stack import stacked
from fedshed.objectives.targets import common_classes

__all__ = [
    "FAMILIES",
    "Family",
    "Fit",
    "Gamma",
    "LeastSquares",
    "LinearModel",
    "Logistic",
    "Multinomial",
    "Objective",
    "Point",
    "Poisson",
    "coefficient_names",
    "common_classes",
    "contrasts",
    "family_of",
    "local_objective",
    "local_objectives",
    "stacked",
]
