from . import algorithms as algorithms
from . import datasets as datasets
from ._utils.errors import (
    CodecError as CodecError,
)
from ._utils.errors import (
    ConfigError as ConfigError,
)
from ._utils.errors import (
    DataError as DataError,
)
from ._utils.errors import (
    DisclosureError as DisclosureError,
)
from ._utils.errors import (
    Error as Error,
)
from ._utils.errors import (
    ProtocolError as ProtocolError,
)
from ._utils.errors import (
    SingularError as SingularError,
)
from ._utils.version import __version__ as __version__
from .algorithms import ALGORITHMS as ALGORITHMS
from .algorithms import channels as channels
from .algorithms import renewal as renewal
from .algorithms.channels import (
    ByteRate as ByteRate,
)
from .algorithms.channels import (
    Constant as Constant,
)
from .algorithms.channels import (
    PerAgent as PerAgent,
)
from .algorithms.channels import (
    Rayleigh as Rayleigh,
)
from .algorithms.channels import (
    Recorded as Recorded,
)
from .algorithms.costs import Network as Network
from .algorithms.linesearch import FullStep as FullStep
from .algorithms.linesearch import Fused as Fused
from .algorithms.linesearch import TwoExchange as TwoExchange
from .exchange.groups import Group as Group
from .exchange.groups import GroupTraffic as GroupTraffic
from .exchange.ray_sites import RaySites as RaySites
from .experiments.compare import compare as compare
from .experiments.comparison import Comparison as Comparison
from .fitting import estimators as estimators
from .fitting.classifier import FederatedClassifier as FederatedClassifier
from .fitting.cox_estimator import FederatedCox as FederatedCox
from .fitting.estimators import (
    FederatedGammaRegressor as FederatedGammaRegressor,
)
from .fitting.estimators import (
    FederatedLinearRegression as FederatedLinearRegression,
)
from .fitting.estimators import (
    FederatedPoissonRegressor as FederatedPoissonRegressor,
)
from .fitting.evaluate import LeaveOneSiteOut as LeaveOneSiteOut
from .fitting.evaluate import evaluate as evaluate
from .fitting.evaluate import leave_one_site_out as leave_one_site_out
from .fitting.firth_tests import firth_tests as firth_tests
from .fitting.fit import fit as fit
from .fitting.influence import influence as influence
from .fitting.logistic_estimator import FederatedLogisticRegression as FederatedLogisticRegression
from .fitting.meta_analysis import meta_analysis as meta_analysis
from .fitting.model import Model as Model
from .fitting.nested import drop_one as drop_one
from .fitting.nested import likelihood_ratio as likelihood_ratio
from .fitting.path import path as path
from .fitting.path import select as select
from .fitting.path_result import Path as Path
from .fitting.process_sites import ProcessSites as ProcessSites
from .fitting.regressor import FederatedRegressor as FederatedRegressor
from .fitting.scorers import auc_within_sites as auc_within_sites
from .fitting.survival import survival as survival
from .inference.evaluation import Evaluation as Evaluation
from .inference.influence import Influence as Influence
from .inference.meta import MetaAnalysis as MetaAnalysis
from .inference.survival_result import SurvivalCurves as SurvivalCurves
from .preparation import Study as Study
from .privacy.private import Privacy as Privacy
from .protocol.precision import Bits as Bits
from .protocol.precision import Differences as Differences
from .protocol.precision import EntropyCoded as EntropyCoded
from .protocol.precision import Exact as Exact
from .solve.optimize import optimize as optimize
from .solve.optimize import optimum as optimum
from .solve.optimize import resume as resume
from .solve.run import Result as Result
from .solve.watching import RunLog as RunLog
from .tables import Federation as Federation
