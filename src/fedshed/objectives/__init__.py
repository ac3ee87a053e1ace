"""Local costs f^(i): the mean loss of a site's rows, without the ridge (the Master adds that)."""

from fedshed.objectives.base import LinearModel, Objective, Point
from fedshed.objectives.build import LOSSES, local_objectives
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic

__all__ = ["LOSSES", "LeastSquares", "LinearModel", "Logistic", "Objective", "Point", "local_objectives"]
