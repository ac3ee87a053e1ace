"""A fitted model: what a practitioner keeps; estimates with their errors, and predictions for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.special import expit, softmax

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import in_words, write_atomically
from fedshed._utils.notebook import html_table
from fedshed._utils.version import __version__
from fedshed.inference import Inference, Summary
from fedshed.linalg.arrays import Matrix
from fedshed.objectives import family_of
from fedshed.preparation import DesignPlan
from fedshed.solve.trace import Trace

SCHEMA = 1  # of the JSON file; a reader refuses one it does not know


class Run(Struct, frozen=True):
    """How the fit went: everything that crossed the wire, from the first schema to the standard errors."""

    converged: bool
    reason: str
    algorithm: str
    iterations: int
    exchanges: int
    uplink_bytes: int
    downlink_bytes: int


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """What model.json holds."""

    fedshed_model: int
    fedshed_version: str
    plan: DesignPlan
    inference: Inference
    run: Run

    def __post_init__(self) -> None:
        classes = 0 if self.plan.classes is None else len(self.plan.classes)
        width = len(self.plan.coefficients) * (
            classes if family_of(self.plan.study.loss).classes == "many" else 1
        )
        if self.plan.study.loss != self.inference.loss or len(self.inference.names) != width:
            raise ValueError(f"the plan is of {width} coefficients, the inference of others")
        if (classes > 1) != self.plan.study.classified:
            raise ValueError(f"{classes} classes for the {self.plan.study.family} family")


class Model:
    """The plan from a table to a design, the estimates on the original scale, and how they were found.

    Examples
    --------
    >>> import fedshed
    >>> tables = {"north": {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}}
    >>> model = fedshed.fit(tables, fedshed.Study(family="linear", target="y"))
    >>> model.predict({"x": [1.0]}).round(2).item()
    2.17
    """

    def __init__(self, plan: DesignPlan, inference: Inference, run: Run, trace: Trace | None = None) -> None:
        self.plan, self.inference, self.run, self.trace = plan, inference, run, trace

    def __repr__(self) -> str:
        study, ended = self.plan.study, "converged" if self.converged else f"NOT converged: {self.run.reason}"
        size = f"{len(self.inference.sites)} sites, {self.inference.rows} rows"
        return (
            f"Model of {study.target}: {study.family}, {size}, {len(self.inference.names)} coefficients, "
            f"{ended}; summary() shows it"
        )

    def _repr_html_(self) -> str:
        return html_table(self.summary().to_rows(), repr(self), most=200)

    @property
    def converged(self) -> bool:
        """Whether the estimates are those of the pooled rows."""
        return self.run.converged

    @property
    def coefficients(self) -> dict[str, float]:
        """The estimates by name."""
        return dict(zip(self.inference.names, self.inference.coefficients, strict=True))

    def summary(self, *, robust: bool = False, level: float = 0.95) -> Summary:
        """Coefficients with errors, measures of fit and the sites; robust: errors clustered by site."""
        ended = () if self.converged else (f"NOT CONVERGED: {self.run.reason}",)
        return Summary(
            self.inference, title=f"Federated regression of {self.plan.study.target}", robust=robust,
            level=level, converged=self.converged, exchanges=self.run.exchanges,
            uplink_bytes=self.run.uplink_bytes, downlink_bytes=self.run.downlink_bytes,
            notes=(*ended, *self.plan.notes),
        )  # fmt: skip

    def predict(self, frame: Any) -> NDArray[Any]:
        """The mean of each row of a table, or its most probable class."""
        if self.plan.classes is None:
            return family_of(self.plan.study.loss).mean(self._linear(frame)[:, 0])
        return np.asarray(np.array(self.plan.classes)[self.predict_proba(frame).argmax(axis=1)])

    def predict_proba(self, frame: Any) -> Matrix:
        """The probability of each class, a column each."""
        if self.plan.classes is None:
            raise ConfigError(f"the {self.plan.study.family} family has no classes; use predict")
        z = self._linear(frame)
        p: Matrix = np.column_stack([expit(-z), expit(z)]) if z.shape[1] == 1 else softmax(z, axis=1)
        return p

    def save(self, path: str | Path) -> Path:
        """Write the model as JSON."""
        content = _File(SCHEMA, __version__, self.plan, self.inference, self.run)
        return write_atomically(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """A model that was saved; it has no trace."""
        try:
            data = Path(path).read_bytes()
            schema = msgspec.json.decode(data).get("fedshed_model")
            if schema != SCHEMA:
                raise ConfigError(f"{path} has schema {schema!r}; this fedshed {__version__} reads {SCHEMA}")
            file = msgspec.json.decode(data, type=_File)
        except OSError as error:
            raise ConfigError(in_words(error)) from error
        except (msgspec.MsgspecError, AttributeError) as error:
            raise ConfigError(f"{path} is not a model that fedshed wrote: {error}; save it again") from error
        return cls(file.plan, file.inference, file.run)

    def _linear(self, frame: Any) -> Matrix:
        """x'coef (+ offset), one column, or one for each of several classes."""
        plan = msgspec.structs.replace(self.plan, centres=None, scales=None)  # coefficients are on this scale
        X = plan.design(frame)
        X = np.column_stack([X, np.ones(len(X))]) if plan.intercept else X
        z: Matrix = X @ self.inference.coef.reshape(-1, X.shape[1]).T
        offset = plan.offset(frame)
        return z if offset is None else z + offset[:, None]
