"""The JSON file of a fitted model, and the record of its fit."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import in_words, write_atomically
from fedshed._utils.version import __version__
from fedshed.exchange.groups import GroupTraffic
from fedshed.inference import Inference
from fedshed.inference.evaluation import Evaluation
from fedshed.inference.meta import SiteResult
from fedshed.objectives import family_of
from fedshed.preparation import DesignPlan
from fedshed.preparation.counts import RowCount

SCHEMA = 2  # a reader refuses any other


class Run(Struct, frozen=True, omit_defaults=True):
    """The record of a fit: all exchanges and bytes, from the preparation to the standard errors."""

    converged: bool
    reason: str
    algorithm: str
    iterations: int
    exchanges: int
    uplink_bytes: int
    downlink_bytes: int
    hops: tuple[GroupTraffic, ...] = ()  # bytes between the relay of each group and its members


class ModelFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of model.json."""

    fedshed_model: int
    fedshed_version: str
    plan: DesignPlan
    inference: Inference
    run: Run
    rows: dict[str, RowCount] = {}
    evaluation: Evaluation | UnsetType | None = UNSET
    estimates: dict[str, SiteResult] = {}

    def __post_init__(self) -> None:
        classes = 0 if self.plan.classes is None else len(self.plan.classes)
        many = family_of(self.plan.study.loss).classes == "many"
        if many and self.inference.coding is None:
            raise ValueError("its coefficients have no reference class, as in fedshed 0.2; fit it again")
        width = len(self.plan.coefficients) * (classes - 1 if many else 1)
        if self.plan.loss != self.inference.loss or len(self.inference.names) != width:
            raise ValueError(f"the plan has {width} coefficients, but the inference does not match them")
        if (classes > 1) != self.plan.study.classified:
            raise ValueError(f"{classes} classes do not fit the {self.plan.study.family} family")


def write_model(path: str | Path, content: ModelFile) -> Path:
    """Write a model."""
    return write_atomically(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def read_model(path: str | Path) -> ModelFile:
    """Read a model; ConfigError if the file is not a model."""
    try:
        data = Path(path).read_bytes()
        schema = msgspec.json.decode(data).get("fedshed_model")
        if schema != SCHEMA:
            known = f"fedshed {__version__} reads schema {SCHEMA}; fit the model again"
            raise ConfigError(f"{path} has schema {schema!r}, but {known}")
        return msgspec.json.decode(data, type=ModelFile)
    except OSError as error:
        raise ConfigError(in_words(error)) from error
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a model that fedshed wrote: {error}; save it again") from error
