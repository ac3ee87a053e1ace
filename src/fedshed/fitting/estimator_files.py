"""Fitted estimators as JSON with a schema version, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.version import __version__
from fedshed.inference import Inference

SCHEMA = 2


class _File(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fitted estimator: its parameters and its fitted attributes."""

    fedshed_estimator: int
    fedshed_version: str
    kind: str
    parameters: dict[str, Any]
    coef: Any
    intercept: Any
    features: int
    names: tuple[str, ...] | None
    classes: list[bool | int | float | str] | None
    iterations: int
    converged: bool
    reason: str
    inference: Inference | None
    offset: bool = False  # whether it was fitted with one

    def __post_init__(self) -> None:
        if self.inference and self.inference.loss == "multinomial" and self.inference.coding is None:
            raise ValueError("its coefficients have no reference class; fit it again")
        if self.parameters.get("family") == "ordinal" and self.classes is not None:
            if np.shape(self.coef) != (1, self.features) or np.shape(self.intercept) != (
                len(self.classes) - 1,
            ):
                raise ValueError(f"the shapes of coef and intercept do not fit {self.features} features")
            return
        lines = () if self.classes is None else (1 if len(self.classes) == 2 else len(self.classes),)
        if np.shape(self.coef) != (*lines, self.features) or np.shape(self.intercept) != lines:
            raise ValueError(f"the shapes of coef and intercept do not fit {self.features} features")


def encode(estimator: Any) -> bytes:
    """The JSON of a fitted estimator."""
    classes, names = getattr(estimator, "classes_", None), getattr(estimator, "feature_names_in_", None)
    content = _File(
        SCHEMA, __version__, type(estimator).__name__, _plain(estimator.get_params(deep=False)),
        estimator.coef_.tolist(), np.asarray(estimator.intercept_).tolist(), estimator.n_features_in_,
        None if names is None else tuple(map(str, names)), None if classes is None else classes.tolist(),
        estimator.n_iter_, bool(estimator.converged_), estimator.reason_, estimator.inference_,
        estimator.has_offset_,
    )  # fmt: skip
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def decode(path: str | Path, kinds: Mapping[str, type]) -> Any:
    """The estimator in a file."""
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=_File)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not an estimator that fedshed wrote: {error}") from error
    if file.fedshed_estimator != SCHEMA or file.kind not in kinds:
        raise ConfigError(
            f"{path} has schema {file.fedshed_estimator} and kind {file.kind!r}, but fedshed {__version__} "
            f"reads schema {SCHEMA} of {', '.join(kinds)}; load it with the version that wrote it"
        )
    return _fitted(file, kinds[file.kind](**_arrays(file.parameters)))


def _fitted(file: _File, estimator: Any) -> Any:
    estimator.coef_, estimator.n_features_in_ = np.array(file.coef), file.features
    estimator.intercept_ = np.array(file.intercept) if isinstance(file.intercept, list) else file.intercept
    estimator.n_iter_, estimator.converged_, estimator.reason_ = file.iterations, file.converged, file.reason
    estimator.inference_, estimator.has_offset_ = file.inference, file.offset
    if file.names is not None:
        estimator.feature_names_in_ = np.array(file.names, dtype=object)
    if file.classes is not None:
        estimator.classes_ = np.array(file.classes)
    return estimator


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters for JSON, which cannot contain an algorithm or a budget that is an object."""
    plain = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in parameters.items()
    }
    for name, value in plain.items():
        if not isinstance(value, bool | int | float | str | list | None):
            raise ConfigError(f"{name}={value!r} cannot be saved; give a name or a number instead")
    return plain


def _arrays(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) if isinstance(value, list) else value for name, value in parameters.items()}
