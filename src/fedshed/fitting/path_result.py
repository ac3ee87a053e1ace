"""`Path`: the fits along a path of penalties, and the one that cross-validation chooses."""

from __future__ import annotations

import csv
import io
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import printable
from fedshed._utils.notebook import html_table
from fedshed.exchange.wire import Traffic
from fedshed.fitting.model import Model
from fedshed.linalg.arrays import Matrix
from fedshed.preparation import Study
from fedshed.solve.path import PathSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rule: TypeAlias = Literal["min", "1se"]
WIDTH = 88
COLUMNS = ("penalty", "l1", "l2", "nonzero", "deviance_explained", "cv_mean", "cv_error")


class Step(Struct, frozen=True):
    """One penalty of a path, the number of coefficients that are not 0, and the deviance.

    `cv_mean` is the mean deviance of rows that were left out of the fit, and `cv_error` its standard error.
    """

    penalty: float
    l1: float
    l2: float
    nonzero: int
    deviance_explained: float
    cv_mean: float | None
    cv_error: float | None


class Path:
    """The fits along a path of penalties, the largest first, and the choice of cross-validation.

    Attributes
    ----------
    steps : tuple of Step
        One for each penalty; `to_rows()`, `to_csv()` and `to_pandas()` give them as a table.
    names : tuple of str
        The names of the coefficients.
    coefficients : array
        The coefficients on the scale of the tables, one row for each penalty.
    scaled : array
        The coefficients on the scale of the fit, on which they can be compared with each other.
    minimum, one_se : int or None
        The index of the step with the smallest cross-validated deviance, and of the step with the largest
        penalty within one standard error of it; None without folds.
    chosen : Step
        The step that `rule` chooses.
    model : Model or None
        The fit at the chosen penalty, if `fedshed.select` made it.
    traffic : Traffic
        The exchanges and the bytes up and down.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 3))
    >>> y = X[:, 0] + rng.normal(size=90)
    >>> rows = {"north": slice(0, 20), "south": slice(20, 90)}
    >>> tables = {i: {"a": X[r, 0], "b": X[r, 1], "c": X[r, 2], "y": y[r]} for i, r in rows.items()}
    >>> study = fedshed.Study(family="linear", target="y", standardize=True)
    >>> path = fedshed.path(tables, study, values=20, folds=5)
    >>> path.steps[0].nonzero, path.steps[-1].nonzero
    (0, 3)
    """

    def __init__(
        self, study: Study, names: tuple[str, ...], steps: tuple[Step, ...], coefficients: Matrix,
        scaled: Matrix, settings: PathSettings, traffic: Traffic, rule: Rule, rows: int,
    ) -> None:  # fmt: skip
        self.study, self.names, self.steps, self.rule = study, names, steps, rule
        self.coefficients, self.scaled, self.traffic, self.rows = coefficients, scaled, traffic, rows
        self.l1_ratio, self.folds, self.seed = settings.l1_ratio, settings.folds, settings.seed
        self.model: Model | None = None

    @property
    def minimum(self) -> int | None:
        """The index of the step with the smallest cross-validated deviance; the largest penalty if tied."""
        means = [step.cv_mean for step in self.steps]
        return None if means[0] is None else int(np.argmin(np.array(means, dtype=float)))

    @property
    def one_se(self) -> int | None:
        """The index of the largest penalty whose deviance is within one standard error of the smallest."""
        if self.minimum is None:
            return None
        best = self.steps[self.minimum]
        most = (best.cv_mean or 0.0) + (best.cv_error or 0.0)
        return next(k for k, step in enumerate(self.steps) if (step.cv_mean or 0.0) <= most)

    @property
    def choice(self) -> int:
        """The index of the chosen step."""
        chosen = self.minimum if self.rule == "min" else self.one_se
        if chosen is None:
            raise ConfigError("a path without folds has no chosen penalty; set folds, for example to 5 or 10")
        return chosen

    @property
    def chosen(self) -> Step:
        """The chosen step."""
        return self.steps[self.choice]

    @property
    def selected(self) -> tuple[str, ...]:
        """The coefficients that are not 0 at the chosen step, without the intercept."""
        pairs = zip(self.names, self.coefficients[self.choice], strict=True)
        return tuple(name for name, value in pairs if value != 0 and name != "intercept")

    def to_rows(self) -> list[dict[str, Any]]:
        """One dictionary for each penalty, with the coefficients by name."""
        found = zip(self.steps, self.coefficients.tolist(), strict=True)
        return [
            {name: getattr(step, name) for name in COLUMNS} | dict(zip(self.names, row, strict=True))
            for step, row in found
        ]

    def to_csv(self) -> str:
        """The table as CSV; values that were not computed are empty."""
        file = io.StringIO()
        writer = csv.DictWriter(file, (*COLUMNS, *self.names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.to_rows())
        return file.getvalue()

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame (needs `pip install fedshed[data]`)."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def plot(self) -> Figure:
        """Plot the coefficients against the penalty, and the cross-validated deviance with both choices."""
        from fedshed.fitting.path_plot import draw

        return draw(self)

    def __repr__(self) -> str:
        return "\n".join([self._head(), *self._choices(), self._cost()])

    def _repr_html_(self) -> str:
        return html_table([{n: getattr(s, n) for n in COLUMNS} for s in self.steps], self._head(), most=100)

    def _head(self) -> str:
        study, (first, last) = self.study, (self.steps[0], self.steps[-1])
        return (
            f"Path of {printable(study.target)}: {study.family}, {self.rows:,} rows, "
            f"l1_ratio {self.l1_ratio:g}, {len(self.steps)} penalties "
            f"from {first.penalty:.4g} to {last.penalty:.4g}"
        )

    def _choices(self) -> list[str]:
        if self.minimum is None or self.one_se is None:
            return ["No cross-validation: nothing is chosen."]
        lines = [f"{'choice':<24}{'penalty':>12}{'not 0':>8}{'deviance of a new row':>24}{'std err':>10}"]
        for name, k in (("smallest deviance", self.minimum), ("one standard error", self.one_se)):
            step, mark = self.steps[k], " *" * (k == self.choice)
            lines.append(
                f"{name + mark:<24}{step.penalty:>12.4g}{step.nonzero:>8}"
                f"{step.cv_mean:>24.4f}{step.cv_error:>10.4f}"
            )
        named = ", ".join(map(printable, self.selected)) or "nothing"
        return [*lines, fill(f"Selected: {named}", WIDTH, subsequent_indent="  ", break_long_words=False)]

    def _cost(self) -> str:
        folds = f"{self.folds} folds (seed {self.seed})" if self.folds else "no folds"
        t = self.traffic
        return f"{t.exchanges} exchanges, {t.uplink_bytes:,} bytes up, {t.downlink_bytes:,} down; {folds}"
