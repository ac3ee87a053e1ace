"""fedshed: second-order federated learning of convex models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedshed import algorithms, channels, datasets, estimators, renewal
    from fedshed.algorithms import ALGORITHMS
    from fedshed.channels import ByteRate, Constant, PerAgent, Rayleigh, Recorded
    from fedshed.datasets import Federation
    from fedshed.errors import (
        CodecError,
        ConfigError,
        DataError,
        DisclosureError,
        Error,
        ProtocolError,
        SingularError,
    )
    from fedshed.estimators import (
        FederatedGammaRegressor,
        FederatedLinearRegression,
        FederatedLogisticRegression,
        FederatedPoissonRegressor,
    )
    from fedshed.experiments.compare import compare
    from fedshed.experiments.comparison import Comparison
    from fedshed.fitting import fit
    from fedshed.linesearch import FullStep, Fused, TwoExchange
    from fedshed.model import Model
    from fedshed.precision import Bits, EntropyCoded, Exact
    from fedshed.preparation import Study
    from fedshed.solving import Result, optimize, optimum, resume
    from fedshed.watching import RunLog

# Names are imported when they are first used, so that `import fedshed` and `fedshed --help` are quick.
_HOMES = {
    "algorithms": ("ALGORITHMS",),
    "channels": ("ByteRate", "Constant", "PerAgent", "Rayleigh", "Recorded"),
    "datasets": ("Federation",),
    "errors": (
        "CodecError",
        "ConfigError",
        "DataError",
        "DisclosureError",
        "Error",
        "ProtocolError",
        "SingularError",
    ),
    "estimators": (
        "FederatedGammaRegressor",
        "FederatedLinearRegression",
        "FederatedLogisticRegression",
        "FederatedPoissonRegressor",
    ),
    "experiments": ("Comparison", "compare"),
    "fitting": ("fit",),
    "linesearch": ("FullStep", "Fused", "TwoExchange"),
    "model": ("Model",),
    "precision": ("Bits", "EntropyCoded", "Exact"),
    "preparation": ("Study",),
    "solving": ("Result", "optimize", "optimum", "resume"),
    "watching": ("RunLog",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(f"fedshed.{_MODULE_OF[name]}"), name)
    elif name in ("algorithms", "channels", "datasets", "estimators", "renewal"):
        value = import_module(f"fedshed.{name}")
    else:
        raise AttributeError(f"module 'fedshed' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ALGORITHMS",
    "Bits",
    "ByteRate",
    "CodecError",
    "Comparison",
    "ConfigError",
    "Constant",
    "DataError",
    "DisclosureError",
    "EntropyCoded",
    "Error",
    "Exact",
    "FederatedGammaRegressor",
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "FederatedPoissonRegressor",
    "Federation",
    "FullStep",
    "Fused",
    "Model",
    "PerAgent",
    "ProtocolError",
    "Rayleigh",
    "Recorded",
    "Result",
    "RunLog",
    "SingularError",
    "Study",
    "TwoExchange",
    "__version__",
    "algorithms",
    "channels",
    "compare",
    "datasets",
    "estimators",
    "fit",
    "optimize",
    "optimum",
    "renewal",
    "resume",
]
