"""PEN, predictive entropy-coded Newton, one named part per file.

frame       the common coordinates in which the global Hessian is near the identity
innovation  what the common copy of an agent could not predict of its gradient and Hessian
dither      rounding at random where the agents' errors are alike
spectral    eigenpairs of what entry coding missed that stand out of its noise
coding      triangles in uniform steps, logarithms, digests
memo        what is not computed twice in one process
direction   the Master's step
state       what the Master keeps between two rounds
agent       what an agent holds and answers
algorithm   the rounds
"""

from fedshed.algorithms.pen.algorithm import Pen
from fedshed.algorithms.pen.state import PenState

__all__ = ["Pen", "PenState"]
