"""fedshed: second-order federated learning of convex models."""

from fedshed import channels, datasets, renewal
from fedshed.algorithms import ALGORITHMS
from fedshed.channels import ByteRate, Constant, PerAgent, Rayleigh, Recorded
from fedshed.datasets import Federation
from fedshed.errors import CodecError, ConfigError, DataError, Error, ProtocolError, SingularError
from fedshed.linesearch import FullStep, Fused, TwoExchange
from fedshed.optimize import Result, optimize, optimum, resume

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "ByteRate",
    "CodecError",
    "ConfigError",
    "Constant",
    "DataError",
    "Error",
    "Federation",
    "FullStep",
    "Fused",
    "PerAgent",
    "ProtocolError",
    "Rayleigh",
    "Recorded",
    "Result",
    "SingularError",
    "TwoExchange",
    "__version__",
    "channels",
    "datasets",
    "optimize",
    "optimum",
    "renewal",
    "resume",
]
