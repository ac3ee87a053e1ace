"""`MetaAnalysis`: the separate estimates of the sites, combined per coefficient, as text, CSV and figure."""

from __future__ import annotations

import csv
import io
from math import isnan, nan
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from scipy.special import ndtri

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest, printable
from fedshed._utils.notebook import preformatted
from fedshed.inference.random_effects import TITLES, Combined, Interval, Method, combine
from fedshed.inference.records import Numbers
from fedshed.inference.result import Inference
from fedshed.linalg.arrays import unpack
from fedshed.objectives import family_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 80
COLUMNS = (
    "coefficient", "kind", "name", "estimate", "standard_error", "low", "high", "weight", "tau2", "q", "df",
    "p_heterogeneity", "i2", "low_new", "high_new",
)  # fmt: skip


class SiteResult(Struct, frozen=True, omit_defaults=True):
    """The coefficients of one site with their packed covariance, or the reason why it has none."""

    estimate: Numbers = ()
    covariance: Numbers = ()
    left_out: str = ""

    def __post_init__(self) -> None:
        n = len(self.estimate)
        if len(self.covariance) != n * (n + 1) // 2 or (n == 0) != bool(self.left_out):
            raise ValueError(
                "a site must have either an estimate with its covariance, or a reason why it has none"
            )

    @property
    def variances(self) -> Numbers:
        """The variances of the coefficients."""
        n = len(self.estimate)
        return tuple(np.diag(unpack(np.array(self.covariance), n)).tolist())


class Line(Struct, frozen=True):
    """A line of a forest plot: a site, a combined estimate, or the estimate of all rows."""

    kind: str  # "site", "fixed", "dl", "pm", "reml" or "pooled"
    name: str
    estimate: float
    std_err: float
    low: float
    high: float
    weight: float = nan  # of a site, in the combined estimate with random effects


class MetaAnalysis(Struct, frozen=True):
    """A two-stage meta-analysis of the sites, next to the one-stage estimate from all rows.

    The first stage fits the model at each site alone, and the second stage combines these estimates.
    `str()` gives the text, `to_csv()` has all numbers, and `plot()` draws a forest plot.

    Attributes
    ----------
    target : str
        The column that the model explains.
    inference : Inference
        The statistics of the one-stage fit of all rows.
    estimates : dict
        The estimate of each site from its own rows, or the reason why it has none.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.9, 1.7, 2.2], "y": [1.0, 1.9, 3.2, 3.3]}
    >>> south = {"x": [0.4, 1.2, 2.0, 3.1], "y": [1.2, 2.4, 2.9, 4.6]}
    >>> study = fedshed.Study(family="linear", target="y")
    >>> found = fedshed.meta_analysis({"north": north, "south": south}, study)
    >>> round(found.combined("x", "fixed").estimate, 2)
    1.2
    """

    target: str
    inference: Inference
    estimates: dict[str, SiteResult]

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites that have an estimate, sorted."""
        return tuple(i for i in sorted(self.estimates) if not self.estimates[i].left_out)

    @property
    def left_out(self) -> dict[str, str]:
        """The sites without an estimate, and the reasons."""
        return {i: self.estimates[i].left_out for i in sorted(self.estimates) if self.estimates[i].left_out}

    @property
    def coefficients(self) -> tuple[str, ...]:
        """The names of the coefficients."""
        return self.inference.names

    def combined(
        self, coefficient: str, method: Method = "reml", interval: Interval = "hk", level: float = 0.95
    ) -> Combined:
        """Combine the estimates of one coefficient over the sites.

        Parameters
        ----------
        coefficient : str
            The name of the coefficient.
        method : "fixed", "dl", "pm" or "reml", default "reml"
            A fixed effect, or how the variance between sites is estimated for random effects: by DerSimonian
            and Laird, by Paule and Mandel, or by restricted maximum likelihood.
        interval : "hk" or "normal", default "hk"
            The interval of Hartung and Knapp for random effects, or the normal one.
        level : float, default 0.95
            The confidence level, between 0 and 1.

        Returns
        -------
        Combined
            The combined estimate with its interval and the heterogeneity of the sites.

        Raises
        ------
        ConfigError
            If the coefficient, the method, the interval or the level does not exist, or no site has an
            estimate.
        """
        _check(method, get_args(Method), "method")
        _check(interval, get_args(Interval), "interval")
        if not 0 < level < 1:
            raise ConfigError(f"level must lie between 0 and 1, not {level!r}")
        if not self.sites:
            reasons = "; ".join(f"site {i!r}: {why}" for i, why in self.left_out.items())
            raise ConfigError(f"no site has an estimate that could be combined ({reasons})")
        j = self._place(coefficient)
        y = np.array([self.estimates[i].estimate[j] for i in self.sites])
        v = np.array([self.estimates[i].variances[j] for i in self.sites])
        return combine(y, v, method, interval, level)

    def lines(
        self, coefficient: str, method: Method = "reml", interval: Interval = "hk", level: float = 0.95
    ) -> list[Line]:
        """The lines of the forest plot of one coefficient.

        Parameters
        ----------
        coefficient : str
            The name of the coefficient.
        method, interval, level
            The same as in `combined`.

        Returns
        -------
        list of Line
            The sites, the combined estimates, and the estimate from all rows.
        """
        j, z = self._place(coefficient), float(-ndtri((1 - level) / 2))
        fixed = self.combined(coefficient, "fixed", interval, level)
        random = self.combined(coefficient, method, interval, level)
        lines = []
        for i, weight in zip(self.sites, random.weights, strict=True):
            found, error = self.estimates[i].estimate[j], float(np.sqrt(self.estimates[i].variances[j]))
            lines.append(Line("site", i, found, error, found - z * error, found + z * error, weight))
        for each in (fixed,) if method == "fixed" else (fixed, random):
            title = TITLES[each.method]
            lines.append(Line(each.method, title, each.estimate, each.std_err, each.low, each.high))
        estimate, error, _, _, low, high = self.inference.table(level)[j].tolist()
        return [*lines, Line("pooled", "all rows (one stage)", estimate, error, low, high)]

    def to_csv(self, method: Method = "reml", interval: Interval = "hk", level: float = 0.95) -> str:
        """All numbers as CSV: per coefficient, one line for each site and each combined estimate.

        Parameters
        ----------
        method, interval, level
            The same as in `combined`.

        Returns
        -------
        str
            The text of the CSV file.
        """
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name in self.coefficients:
            for line in self.lines(name, method, interval, level):
                beside: list[Any] = [nan] * 7
                if line.kind in TITLES:
                    it = self.combined(name, line.kind, interval, level)
                    beside = [it.tau2, it.q, it.df, it.p_heterogeneity, it.i2, it.low_new, it.high_new]
                writer.writerow([name, *map(_cell, (*astuple(line), *beside))])
        return file.getvalue()

    def to_text(
        self, method: Method = "reml", interval: Interval = "hk", level: float = 0.95, exp: bool = False
    ) -> str:
        """The analysis as text, at most 80 columns wide.

        Parameters
        ----------
        method, interval, level
            The same as in `combined`.
        exp : bool, default False
            Whether to show exponentials, such as odds ratios.

        Returns
        -------
        str
            The text, with a table per coefficient and the notes.
        """
        family, count = family_of(self.inference.loss), len(self.sites)
        title = f"Meta-analysis of {printable(self.target)}: {family.title}, {count} of "
        lines = [f"{title}{len(self.estimates)} sites".center(WIDTH).rstrip(), "=" * WIDTH]
        for name in self.coefficients:
            lines += self._block(name, method, interval, level, exp)
        lines.append("=" * WIDTH)
        return "\n".join([*lines, *_wrapped(self.notes(method, interval))])

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"MetaAnalysis of {self.target}: {len(self.sites)} of {len(self.estimates)} sites"

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def notes(self, method: Method = "reml", interval: Interval = "hk") -> list[str]:
        """Notes on the analysis, in sentences.

        Parameters
        ----------
        method, interval
            The same as in `combined`.

        Returns
        -------
        list of str
            The sentences.
        """
        notes = [f"Site {i!r} is left out: {why}." for i, why in self.left_out.items()]
        if 1 < len(self.sites) < 5 and method != "fixed":
            notes.append(
                f"{len(self.sites)} sites tell little about the variance between them: its estimate is rough."
            )
        if interval == "hk" and method != "fixed":
            notes.append("Intervals of random effects are those of Hartung and Knapp (Student's t).")
        return [*notes, "Intervals of single sites are normal; weights are those of random effects."]

    def plot(
        self, coefficients: str | tuple[str, ...] | None = None, *, method: Method = "reml",
        interval: Interval = "hk", level: float = 0.95, exp: bool = False, path: str | Path | None = None,
    ) -> Figure:  # fmt: skip
        """Draw a forest plot.

        Parameters
        ----------
        coefficients : str or tuple of str, optional
            The coefficients that are drawn. Default: all but the intercept, at most 12.
        method, interval, level
            The same as in `combined`.
        exp : bool, default False
            Whether to show exponentials, such as odds ratios.
        path : str or Path, optional
            The file to save the figure in. Default: it is not saved.

        Returns
        -------
        Figure
            The figure of matplotlib.
        """
        from fedshed.inference.forest import draw

        named = (coefficients,) if isinstance(coefficients, str) else coefficients
        figure = draw(self, named, method, interval, level, exp)
        if path is not None:
            figure.savefig(path)
        return figure

    def _place(self, coefficient: str) -> int:
        if coefficient not in self.coefficients:
            raise ConfigError(
                f"there is no coefficient {coefficient!r}{closest(coefficient, self.coefficients)}"
            )
        return self.coefficients.index(coefficient)

    def _block(self, name: str, method: Method, interval: Interval, level: float, exp: bool) -> list[str]:
        """One coefficient: its sites, the combined estimates, and how much the sites differ."""
        tail = (1 - level) / 2
        ends = f"{f'[{tail:.3g}':>10}{f'{1 - tail:.3g}]':>10}"
        ratio = family_of(self.inference.loss).ratio if exp else "estimate"
        head = f"{printable(name)[:25]:<25}{ratio:>17}{'' if exp else 'std err':>9}{ends}{'weight':>9}"
        shown = (_text(line, exp) for line in self.lines(name, method, interval, level))
        it = self.combined(name, method, interval, level)
        new = [np.exp(x) if exp else x for x in (it.low_new, it.high_new)]
        more = f"Effect at one more site: {_number(new[0])} to {_number(new[1])} (prediction interval)"
        p = "" if isnan(it.p_heterogeneity) else f", P = {it.p_heterogeneity:.3g}"
        spread = f"  Q({it.df}) = {it.q:.4g}{p}; I2 = {it.i2:.0%}; tau2 = {it.tau2:.4g}"
        return [head, "-" * WIDTH, *shown, spread, *([] if isnan(it.low_new) else [f"  {more}"]), ""]


def _text(line: Line, exp: bool) -> str:
    numbers = [np.exp(x) if exp else x for x in (line.estimate, line.low, line.high)]
    estimate, low, high = map(_number, numbers)
    weight = "" if isnan(line.weight) else f"{line.weight:.1%}"
    error = "" if exp else _number(line.std_err)
    return f"  {printable(line.name)[:30]:<30}{estimate:>10}{error:>9}{low:>10}{high:>10}{weight:>9}"


def _check(word: str, known: tuple[str, ...], what: str) -> None:
    if word not in known:
        raise ConfigError(f"{what} must be one of {', '.join(known)}, not {word!r}")


def _number(value: float) -> str:
    if isnan(value):
        return ""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.2e}"


def _cell(value: Any) -> str:
    return "" if isinstance(value, float) and isnan(value) else str(value)


def _wrapped(notes: list[str]) -> list[str]:
    return [
        line
        for k, note in enumerate(notes, 1)
        for line in fill(f"[{k}] {printable(note)}", WIDTH, subsequent_indent="    ").splitlines()
    ]
