"""A fitted model: estimates with their standard errors, and predictions for new rows."""

from __future__ import annotations

import csv
import io
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import printable
from fedshed._utils.notebook import html_table
from fedshed._utils.version import __version__
from fedshed.exchange.contacts import Contact
from fedshed.fitting.model_file import SCHEMA, ModelFile, read_model, write_model
from fedshed.fitting.model_file import Run as Run
from fedshed.fitting.predictions import Prediction, intervals, means, probabilities
from fedshed.fitting.term_tests import Tests, wald
from fedshed.inference import Inference, Summary
from fedshed.inference.classes import coded_as
from fedshed.inference.combinations import Estimate, contrast
from fedshed.inference.evaluation import Evaluation
from fedshed.inference.influence import Influence, influence_of
from fedshed.inference.meta import MetaAnalysis, SiteResult
from fedshed.inference.result import Distribution, Robust
from fedshed.inference.survival_result import SurvivalCurves
from fedshed.linalg.arrays import Matrix
from fedshed.preparation import DesignPlan
from fedshed.preparation.counts import RowCount, filled_in_words
from fedshed.preparation.filling import MISSING
from fedshed.solve.certificate import Certificate
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


class Model:
    """A fitted model, as `fedshed.fit` returns it.

    Attributes
    ----------
    plan : DesignPlan
        The description of how a table becomes a design: the study, the columns, their levels and scales.
    inference : Inference
        The estimates, covariances and tests, on the scale of the tables.
    run : Run
        The algorithm, the exchanges and the bytes of the fit, and why it ended.
    trace : Trace or None
        One row for each iteration; None if the model was loaded from a file.
    rows : dict
        For each site, the number of rows that were used and dropped, and the columns responsible.
    evaluation : Evaluation or None
        The evaluation on the rows that the study held out, if there are any.
    estimates : dict
        Each site's own estimate, if the study asks for them.

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
        self.evaluation = evaluation
        self.rows = rows or {}
        self.estimates: dict[str, SiteResult] = {}
        # Like the trace, these belong to a model that was just fitted; they are not saved.
        self.certificate: Certificate | None = None  # of the last iterate of the trace
        self.contacts: dict[str, Contact] = {}  # the bytes to and from each site
        self.deviations: dict[str, float] = {}  # standard deviations of design columns, if known

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
        """Whether the fit converged, so that the estimates are those of the pooled rows."""
        return self.run.converged

    @property
    def coefficients(self) -> dict[str, float]:
        """The estimates by name."""
        return dict(zip(self.inference.names, self.inference.coefficients, strict=True))

    def summary(
        self, *, robust: Robust = False, level: float = 0.95, exp: bool = False,
        distribution: Distribution = "auto", influence: bool = False, reference_class: Any = None,
        sum_to_zero: bool = False,
    ) -> Summary:  # fmt: skip
        """The coefficients with their standard errors, the measures of fit, and the table of sites.

        Parameters
        ----------
        robust : bool or str, default False
            Which standard errors: False for those of the model, True or "site" for those clustered by site,
            "HC0" to "HC3" or "cluster" if the fit computed them.
        level : float, default 0.95
            The level of the confidence intervals.
        exp : bool, default False
            Whether to show exponentials of the coefficients, such as odds ratios.
        distribution : "auto" or "normal", default "auto"
            The reference distribution: "auto" is Student's t if the dispersion is estimated, otherwise the
            normal distribution; "normal" is always the normal distribution.
        influence : bool, default False
            Whether to add a note on the site that changes the estimate most.
        reference_class : class, optional
            The class of a multinomial model with which the coefficients compare the others. Default: that of
            the fit, which is the first class unless the study's `references` name another.
        sum_to_zero : bool, default False
            Whether the coefficients of a multinomial model sum to 0 over the classes.

        Returns
        -------
        Summary
            The summary; `print` shows it as text, and a notebook as a table.
        """
        ended = () if self.converged else (f"NOT CONVERGED: {self.run.reason}",)
        return Summary(
            coded_as(self.inference, reference_class, sum_to_zero),
            title=f"Federated regression of {self.plan.study.target}", robust=robust, level=level, exp=exp,
            distribution=distribution, converged=self.converged,
            exchanges=self.run.exchanges, uplink_bytes=self.run.uplink_bytes,
            downlink_bytes=self.run.downlink_bytes, about=self.plan.about(),
            notes=(*ended, *self.plan.notes, *self._filled()), counts=self.rows, influence=influence,
        )  # fmt: skip

    def _filled(self) -> tuple[str, ...]:
        """Sentences that say which values replaced missing ones."""
        fills = {} if isinstance(self.plan.fills, UnsetType) else self.plan.fills
        marked = () if isinstance(self.plan.indicators, UnsetType) else self.plan.indicators
        return filled_in_words(self.rows, {**fills, **{c: MISSING for c in marked if c in self.plan.levels}})

    def contrast(self, combination: str, *, level: float = 0.95, robust: Robust = False) -> Estimate:
        """Estimate a linear combination of coefficients, such as `model.contrast("arm[b] - arm[a]")`.

        Parameters
        ----------
        combination : str
            The combination, written with names of coefficients, numbers, +, - and *.
        level : float, default 0.95
            The level of the confidence intervals.
        robust : bool or str, default False
            Which standard errors: False for those of the model, True or "site" for those clustered by site,
            "HC0" to "HC3" or "cluster" if the fit computed them.

        Returns
        -------
        Estimate
            The estimate with its standard error, test and confidence interval.
        """
        return contrast(self.inference, combination, level, robust)

    def anova(self, *, robust: Robust = False) -> Tests:
        """Wald tests of all terms; `fedshed.drop_one` gives likelihood-ratio tests by one more fit per term.

        Parameters
        ----------
        robust : bool or str, default False
            Which standard errors: False for those of the model, True or "site" for those clustered by site,
            "HC0" to "HC3" or "cluster" if the fit computed them.

        Returns
        -------
        Tests
            One test for each term.
        """
        return wald(self.plan, self.inference, robust)

    def influence(self) -> Influence:
        """The influence of each site on the estimate, approximated by one Newton step without the site.

        `fedshed.influence` gives the exact influence by fitting the model again without each site.

        Returns
        -------
        Influence
            The change of every coefficient by each site.

        Raises
        ------
        ConfigError
            If the study is protected, or the answers of single sites do not suffice.
        """
        it = self.inference
        if it.protected is not None:
            raise ConfigError(
                "a protected study discloses only sums over all sites, so that no site's influence is known"
            )
        found = influence_of(it)
        if found is None:
            raise ConfigError(
                "the influence of sites was not computed: there is only one site, there are too many sites, "
                "there are no standard errors, or the fit has an l1 penalty or Firth's penalty; use "
                "fedshed.influence, which fits the model again without each site"
            )
        return found

    def meta(self) -> MetaAnalysis:
        """A meta-analysis of the sites' own estimates, if the study asked for them (`site_estimates`).

        Returns
        -------
        MetaAnalysis
            Fixed and random effects, heterogeneity and a forest plot.

        Raises
        ------
        ConfigError
            If the study did not ask the sites for their own estimates.
        """
        if not self.estimates:
            raise ConfigError(
                "the sites were not asked for their own estimates; set site_estimates = true in the study, "
                "or use fedshed.meta_analysis"
            )
        return MetaAnalysis(self.plan.study.target, self.inference, self.estimates)

    def to_csv(
        self, level: float = 0.95, robust: Robust = False, *, reference_class: Any = None,
        sum_to_zero: bool = False,
    ) -> str:  # fmt: skip
        """The coefficients as CSV; values that were not computed are empty fields.

        Parameters
        ----------
        level : float, default 0.95
            The level of the confidence intervals.
        robust : bool or str, default False
            Which standard errors: False for those of the model, True or "site" for those clustered by site,
            "HC0" to "HC3" or "cluster" if the fit computed them.
        reference_class, sum_to_zero
            The same as in `summary`.

        Returns
        -------
        str
            One line for each coefficient, below a line of column names.
        """
        it = coded_as(self.inference, reference_class, sum_to_zero)
        table = it.table(level, robust)
        with np.errstate(over="ignore"):
            numbers = np.hstack([table, np.exp(table[:, [0, 4, 5]])]).tolist()
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, row in zip(it.names, numbers, strict=True):
            writer.writerow([name, *self._term(name), *("" if isnan(x) else repr(x) for x in row)])
        return file.getvalue()

    def _term(self, name: str) -> tuple[str, str, str]:
        """The term of a coefficient, its level if it is a category, and its class if there are several."""
        label = ""
        if self.inference.coding is not None:
            name, _, label = name.rpartition(" [")
        term = dict(zip(self.plan.names, self.plan.terms, strict=True)).get(name, name)
        level = name[len(term) + 1 : -1] if name.startswith(f"{term}[") else ""
        return term, level, label.removesuffix("]")

    def facts(self, summary: Summary | None = None) -> dict[str, Any]:
        """The model, its measures of fit and the notes of a summary, as plain data.

        Parameters
        ----------
        summary : Summary, optional
            The summary whose notes are added. Default: `summary()`.

        Returns
        -------
        dict
            The family, the modelled class, reference levels, notes, rows per site and measures of fit.
        """
        it = self.inference
        modelled: tuple[str | None, str | None] = self.plan.modelled or (None, None)
        shown = summary or self.summary()
        if (coding := shown.inference.coding) is not None:
            modelled = None, None if coding.reference is None else str(coding.classes[coding.reference])
        return {
            "family": self.plan.study.family, "modelled": modelled[0], "reference": modelled[1],
            "references": self.plan.references, "notes": shown.all_notes(),
            "rows": {site: count.plain() for site, count in self.rows.items()},
            "fit": {name: getattr(it, name) for name in MEASURES},
        }  # fmt: skip

    def predict(self, frame: Any) -> NDArray[Any]:
        """Predict the mean of each row of a table, or its most probable class.

        Parameters
        ----------
        frame : DataFrame, Arrow table or dict of arrays
            The columns that the model needs.

        Returns
        -------
        array
            One prediction for each row.
        """
        return means(self.plan, self.inference, frame)

    def predict_interval(self, frame: Any, *, level: float = 0.95, robust: Robust = False) -> Prediction:
        """Predict the mean of each row with its standard error and confidence interval.

        For two classes the mean is the probability of the modelled class. The standard error of the linear
        predictor is (x'Vx)^(1/2); its interval is transformed to the scale of the mean, so that it contains
        possible means only. The interval is for the mean, not for a new response.
        With a random intercept in a linear model it uses the smallest degrees of freedom of all coefficients;
        if these are 0, there are no intervals (NaN), and a warning says so.

        Parameters
        ----------
        frame : DataFrame, Arrow table or dict of arrays
            The columns that the model needs.
        level : float, default 0.95
            The level of the confidence intervals.
        robust : bool or str, default False
            Which standard errors: False for those of the model, True or "site" for those clustered by site,
            "HC0" to "HC3" or "cluster" if the fit computed them.

        Returns
        -------
        Prediction
            The means, their standard errors, and the lower and upper ends of their intervals.
        """
        return intervals(self.plan, self.inference, frame, level, robust)

    def predict_proba(self, frame: Any) -> Matrix:
        """Predict the probability of each class.

        Parameters
        ----------
        frame : DataFrame, Arrow table or dict of arrays
            The columns that the model needs.

        Returns
        -------
        array
            One row for each row of the table, and one column for each class.
        """
        return probabilities(self.plan, self.inference, frame)

    def save(self, path: str | Path) -> Path:
        """Write the model as JSON.

        Parameters
        ----------
        path : path
            The file; an existing file is replaced.

        Returns
        -------
        Path
            The file that was written.
        """
        content = ModelFile(
            SCHEMA, __version__, self.plan, self.inference, self.run, self.rows, self.evaluation or UNSET,
            self.estimates,
        )  # fmt: skip
        return write_model(path, content)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Load a model that was saved; it has no trace.

        Parameters
        ----------
        path : path
            The file that `save` or `fedshed fit` wrote.

        Returns
        -------
        Model
            The model.
        """
        file = read_model(path)
        model = cls(file.plan, file.inference, file.run, rows=file.rows, evaluation=file.evaluation or None)
        model.estimates = file.estimates
        return model


class Conducted(Struct, frozen=True):
    """The model of a study, the run it comes from, and the survival curves that the study declares."""

    model: Model
    result: Result
    curves: SurvivalCurves | None = None
