"""Local costs f^(i): the mean loss of a site's rows, without the ridge (the Master adds that)."""

from fedshed.objectives.base import Fit, LinearModel, Objective, Point
from fedshed.objectives.build import LOSSES, coefficient_names, local_objective, local_objectives
from fedshed.objectives.counts import Gamma, Poisson
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic
from fedshed.objectives.multinomial import Multinomial, contrasts
from fedshed.objectives.stack import stacked
from fedshed.objectives.targets import common_classes

__all__ = [
    "LOSSES",
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
    "local_objective",
    "local_objectives",
    "stacked",
]
