"""The algorithms and their parts: renewal policies, channels and line searches."""

from fedshed.algorithms import channels, renewal
from fedshed.algorithms.aggregate import ShedAggregate
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.newton_seldom import NewtonSeldom
from fedshed.algorithms.pen import Pen
from fedshed.algorithms.qn_shed import QnShed
from fedshed.algorithms.registry import ALGORITHMS, Budget, Entry, as_channel, build
from fedshed.algorithms.rho import Midpoint, NextEigenvalue, TailMean
from fedshed.algorithms.rivals import compressors
from fedshed.algorithms.rivals.agd import Agd, HeavyBall
from fedshed.algorithms.rivals.dane import Dane
from fedshed.algorithms.rivals.disco import Disco
from fedshed.algorithms.rivals.fednl import FedNL
from fedshed.algorithms.rivals.fedns import FedNS
from fedshed.algorithms.rivals.giant import Done, Giant, GiantDeterminantal
from fedshed.algorithms.rivals.local_steps import FedAvg, FedProx
from fedshed.algorithms.rivals.q_shed import QShed
from fedshed.algorithms.rivals.scaffold import Scaffold
from fedshed.algorithms.shed import Shed

__all__ = [
    "ALGORITHMS", "Agd", "Budget", "Dane", "Disco", "Done", "Entry", "FedAvg", "FedNL", "FedNS", "FedProx",
    "Giant", "GiantDeterminantal", "HeavyBall", "Lbfgs", "Midpoint", "Newton", "NewtonSeldom",
    "NextEigenvalue", "Pen", "QShed", "QnShed", "Scaffold", "Shed", "ShedAggregate", "TailMean", "as_channel",
    "build", "channels", "compressors", "renewal",
]  # fmt: skip
