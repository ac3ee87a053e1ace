"""A fitted model: what a practitioner keeps; estimates with their errors, and predictions for new rows."""

from __future__ import annotations

import csv
import io
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType
from numpy.typing import NDArray
from scipy.special import softmax

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import in_words, write_atomically
from fedshed._utils.names import printable
from fedshed._utils.notebook import html_table
from fedshed._utils.version import __version__
from fedshed.exchange.groups import GroupTraffic
from fedshed.fitting.term_tests import Tests, wald
from fedshed.inference import Inference, Summary
from fedshed.inference.combinations import Estimate, contrast
from fedshed.inference.evaluation import Evaluation
from fedshed.inference.influence import Influence, influence_of
from fedshed.inference.meta import MetaAnalysis, SiteResult
from fedshed.inference.result import Distribution, Robust, student
from fedshed.inference.survival_result import SurvivalCurves
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.tall import Tall, in_blocks
from fedshed.objectives import family_of
from fedshed.objectives.ordinal import class_probabilities
from fedshed.preparation import DesignPlan
from fedshed.preparation.counts import RowCount, filled_in_words
from fedshed.preparation.filling import MISSING
from fedshed.solve.run import Result
from fedshed.solve.trace import Trace

COLUMNS = (
    "name", "term", "level", "class", "estimate", "standard_error", "statistic", "p_value", "low", "high",
    "exp_estimate", "exp_low", "exp_high",
)  # fmt: skip
MEASURES = (
    "observations", "weight_type", "df_model", "df_resid", "deviance", "null_deviance", "pearson",
    "dispersion", "log_likelihood", "aic", "bic", "heterogeneity", "sites",
)  # fmt: skip
SCHEMA = 2  # of the JSON file; a reader refuses one it does not know


class Run(Struct, frozen=True, omit_defaults=True):
    """How the fit went: everything that crossed the wire, from the first schema to the standard errors."""

    converged: bool
    reason: str
    algorithm: str
    iterations: int
    exchanges: int
    uplink_bytes: int
    downlink_bytes: int
    hops: tuple[GroupTraffic, ...] = ()  # bytes between the relay of each group and its members


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """What model.json holds."""

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
        width = len(self.plan.coefficients) * (
            classes if family_of(self.plan.study.loss).classes == "many" else 1
        )
        if self.plan.loss != self.inference.loss or len(self.inference.names) != width:
            raise ValueError(f"the plan is of {width} coefficients, the inference of others")
        if (classes > 1) != self.plan.study.classified:
            raise ValueError(f"{classes} classes for the {self.plan.study.family} family")


class Prediction(NamedTuple):
    """The mean of each row, its standard error, and the ends of its confidence interval."""

    mean: Vector
    std_err: Vector
    low: Vector
    high: Vector


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

    def __init__(
        self, plan: DesignPlan, inference: Inference, run: Run, trace: Trace | None = None,
        rows: dict[str, RowCount] | None = None, evaluation: Evaluation | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.inference, self.run, self.trace = plan, inference, run, trace
        self.evaluation = evaluation  # on rows that the study held out
        self.rows = rows or {}  # of each site: used, dropped, and by which column
        self.estimates: dict[str, SiteResult] = {}  # each site's own, where the study asks for them

    def __repr__(self) -> str:
        study, ended = self.plan.study, "converged" if self.converged else f"NOT converged: {self.run.reason}"
        size = f"{self.inference.site_count} sites, {self.inference.rows} rows"
        return (
            f"Model of {printable(study.target)}: {study.family}, {size}, "
            f"{len(self.inference.names)} coefficients, {ended}; summary() shows it"
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

    def summary(
        self, *, robust: Robust = False, level: float = 0.95, exp: bool = False,
        distribution: Distribution = "auto", influence: bool = False,
    ) -> Summary:  # fmt: skip
        """Coefficients with errors, measures of fit and the sites.

        robust: errors clustered by site; exp: exponentials of the coefficients, such as odds ratios;
        distribution: "normal" in place of Student's t, where the dispersion is estimated; influence:
        a note on the site that moves the estimate most.
        """
        ended = () if self.converged else (f"NOT CONVERGED: {self.run.reason}",)
        return Summary(
            self.inference, title=f"Federated regression of {self.plan.study.target}", robust=robust,
            level=level, exp=exp, distribution=distribution, converged=self.converged,
            exchanges=self.run.exchanges, uplink_bytes=self.run.uplink_bytes,
            downlink_bytes=self.run.downlink_bytes, about=self.plan.about(),
            notes=(*ended, *self.plan.notes, *self._filled()), counts=self.rows, influence=influence,
        )  # fmt: skip

    def _filled(self) -> tuple[str, ...]:
        """What was filled in where values are missing, in sentences."""
        fills = {} if isinstance(self.plan.fills, UnsetType) else self.plan.fills
        marked = () if isinstance(self.plan.indicators, UnsetType) else self.plan.indicators
        return filled_in_words(self.rows, {**fills, **{c: MISSING for c in marked if c in self.plan.levels}})

    def contrast(self, combination: str, *, level: float = 0.95, robust: Robust = False) -> Estimate:
        """A combination of coefficients with its interval: `model.contrast("arm[b] - arm[a]")`."""
        return contrast(self.inference, combination, level, robust)

    def anova(self, *, robust: Robust = False) -> Tests:
        """The Wald test of each term; `fedshed.drop_one` has likelihood-ratio tests, a fit for each term."""
        return wald(self.plan, self.inference, robust)

    def influence(self) -> Influence:
        """What each site adds to the estimate, in one Newton step from what the sites said at the estimate.

        `fedshed.influence` fits the model again without each site.
        """
        it = self.inference
        if it.protected is not None:
            raise ConfigError(
                "only sums over all sites are known of a protected study, so no site's influence"
            )
        found = influence_of(it)
        if found is None:
            raise ConfigError(
                "the influence of sites was not computed: there is one site only, they are too many, there "
                "are no standard errors, or the fit has an l1 or Firth's penalty; fedshed.influence fits the "
                "model again without each"
            )
        return found

    def meta(self) -> MetaAnalysis:
        """The sites' own estimates combined, where the study asked for them (`site_estimates = true`)."""
        if not self.estimates:
            raise ConfigError(
                "the sites were not asked for their own estimates; add site_estimates = true to the study, "
                "or use fedshed.meta_analysis"
            )
        return MetaAnalysis(self.plan.study.target, self.inference, self.estimates)

    def to_csv(self, level: float = 0.95, robust: Robust = False) -> str:
        """The coefficients as CSV, an empty field for what was not computed."""
        table = self.inference.table(level, robust)
        with np.errstate(over="ignore"):
            numbers = np.hstack([table, np.exp(table[:, [0, 4, 5]])]).tolist()
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, row in zip(self.inference.names, numbers, strict=True):
            writer.writerow([name, *self._term(name), *("" if isnan(x) else repr(x) for x in row)])
        return file.getvalue()

    def _term(self, name: str) -> tuple[str, str, str]:
        """The term of a coefficient, its level if it is a category, and its class if there are several."""
        label = ""
        if len(self.inference.names) > len(self.plan.coefficients):
            name, _, label = name.rpartition(" [")
        term = dict(zip(self.plan.names, self.plan.terms, strict=True)).get(name, name)
        level = name[len(term) + 1 : -1] if name.startswith(f"{term}[") else ""
        return term, level, label.removesuffix("]")

    def facts(self, summary: Summary | None = None) -> dict[str, Any]:
        """What was modelled and how well it fits, as plain data, with the notes of a summary."""
        it, modelled = self.inference, self.plan.modelled or (None, None)
        return {
            "family": self.plan.study.family, "modelled": modelled[0], "reference": modelled[1],
            "references": self.plan.references, "notes": (summary or self.summary()).all_notes(),
            "rows": {site: count.plain() for site, count in self.rows.items()},
            "fit": {name: getattr(it, name) for name in MEASURES},
        }  # fmt: skip

    def predict(self, frame: Any) -> NDArray[Any]:
        """The mean of each row of a table, or its most probable class."""
        if self.plan.classes is None:
            return family_of(self.plan.study.loss).mean(self._linear(frame)[:, 0])
        return np.asarray(np.array(self.plan.classes)[self.predict_proba(frame).argmax(axis=1)])

    def predict_interval(self, frame: Any, *, level: float = 0.95, robust: Robust = False) -> Prediction:
        """The mean of each row with its standard error and confidence interval; of two classes, P(modelled).

        The error of the linear predictor is (x'Vx)^(1/2); its interval is carried over to the mean, so that
        it stays within what a mean can be.  It is about the mean, not about one more response.
        """
        family = family_of(self.plan.study.loss)
        if family.classes in ("many", "ordered"):
            raise ConfigError(f"the {family.name} family has no interval of one mean; use predict_proba")
        if not 0 < level < 1:
            raise ConfigError(f"level must lie between 0 and 1, not {level!r}")
        X, offset = self._rows(frame)
        z = X @ self.inference.coef + (0.0 if offset is None else offset)
        V = self.inference.covariance(robust)
        withheld = np.isnan(self.inference.std_err(robust))  # too few sites inform these coefficients
        error = np.concatenate([_errors(rows, V, withheld) for _, rows in in_blocks(X)])
        _, quantile = student(self.inference.freedom(robust), (1 - level) / 2, z)
        low, high = family.mean(z - quantile * error), family.mean(z + quantile * error)
        return Prediction(family.mean(z), family.mean_slope(z) * error, low, high)

    def predict_proba(self, frame: Any) -> Matrix:
        """The probability of each class, a column each."""
        if self.plan.classes is None:
            raise ConfigError(f"the {self.plan.study.family} family has no classes; use predict")
        if family_of(self.plan.study.loss).classes == "ordered":
            n, coef = len(self.plan.names), self.inference.coef
            return class_probabilities(self._rows(frame)[0][:, :n] @ coef[:n], coef[n:])
        z = self._linear(frame)
        if z.shape[1] == 1:
            return family_of(self.plan.study.loss).of_two(z)
        p: Matrix = softmax(z, axis=1)
        return p

    def save(self, path: str | Path) -> Path:
        """Write the model as JSON."""
        content = _File(
            SCHEMA, __version__, self.plan, self.inference, self.run, self.rows, self.evaluation or UNSET,
            self.estimates,
        )  # fmt: skip
        return write_atomically(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """A model that was saved; it has no trace."""
        try:
            data = Path(path).read_bytes()
            schema = msgspec.json.decode(data).get("fedshed_model")
            if schema != SCHEMA:
                known = f"this fedshed {__version__} reads {SCHEMA}; fit again"
                raise ConfigError(f"{path} has schema {schema!r}; {known}")
            file = msgspec.json.decode(data, type=_File)
        except OSError as error:
            raise ConfigError(in_words(error)) from error
        except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not a model that fedshed wrote: {error}; save it again") from error
        model = cls(file.plan, file.inference, file.run, rows=file.rows, evaluation=file.evaluation or None)
        model.estimates = file.estimates
        return model

    def _linear(self, frame: Any) -> Matrix:
        """x'coef (+ offset), one column, or one for each of several classes."""
        X, offset = self._rows(frame)
        z: Matrix = np.asarray(X @ self.inference.coef.reshape(-1, X.shape[1]).T)
        return z if offset is None else z + offset[:, None]

    def _rows(self, frame: Any) -> tuple[Matrix | Tall, Vector | None]:
        """The design of a table with its intercept, on the scale of the coefficients, and its offset."""
        plan = msgspec.structs.replace(self.plan, centres=None, scales=None)
        X = plan.design(frame)
        if isinstance(X, Tall):
            return X.with_ones() if plan.intercept else X, plan.offset(frame)
        return np.column_stack([X, np.ones(len(X))]) if plan.intercept else X, plan.offset(frame)


def _errors(X: Matrix, V: Matrix, withheld: NDArray[np.bool_]) -> Vector:
    """(x'Vx)^(1/2) of each row; NaN of those that need an error which is withheld."""
    error: Vector = np.sqrt(np.maximum(((X @ V) * X).sum(axis=1), 0.0))
    error[(X[:, withheld] != 0).any(axis=1)] = np.nan
    return error


class Conducted(Struct, frozen=True):
    """The model of a study, the run it comes from, and the survival curves that the study declares."""

    model: Model
    result: Result
    curves: SurvivalCurves | None = None
