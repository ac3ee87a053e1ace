"""`Summary`: an `Inference` as text, in the style of statsmodels, or as a DataFrame."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from math import inf, isnan
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.special import chdtrc

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import printable
from fedshed._utils.notebook import preformatted
from fedshed._utils.text_table import TERMINAL, table_lines
from fedshed.inference.caveats import caveats
from fedshed.inference.influence import influence_of
from fedshed.inference.records import Promise
from fedshed.inference.result import Distribution, FewSitesWarning, Inference, Robust, by_site
from fedshed.inference.wording import plain
from fedshed.linalg.arrays import Matrix
from fedshed.objectives import family_of
from fedshed.preparation.counts import RowCount, dropped_in_words
from fedshed.preparation.counts import shown as shown_count

if TYPE_CHECKING:
    import pandas as pd

MOST_SITES = 20
WIDTH = 78


class Summary(Struct, frozen=True):
    """The summary of a fit: `str()` gives the text, `to_frame()` the coefficients as a pandas DataFrame.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}
    >>> south = {"x": [0.4, 1.2, 2.0, 3.1], "y": [1.2, 2.4, 2.9, 4.6]}
    >>> model = fedshed.fit({"north": north, "south": south}, fedshed.Study(family="linear", target="y"))
    >>> model.summary().columns
    ('coef', 'std err', 't', 'P>|t|', '[0.025', '0.975]')
    """

    inference: Inference  # the statistics that are shown
    title: str = "Federated regression results"  # the first line
    robust: Robust = False  # which standard errors are shown, as in `Inference.std_err`
    level: float = 0.95  # the confidence level of the intervals
    distribution: Distribution = "auto"  # "auto", or "normal" for no Student's t
    exp: bool = False  # whether to show exponentials of the coefficients, such as odds ratios
    converged: bool | None = None  # whether the fit converged
    exchanges: int | None = None  # all exchanges of the study
    uplink_bytes: int | None = None  # all bytes from the sites
    downlink_bytes: int | None = None  # all bytes to the sites
    notes: tuple[str, ...] = ()  # remarks that come before those of the inference
    about: tuple[str, ...] = ()  # lines below the title, such as which class is modelled
    counts: dict[str, RowCount] = {}  # the rows of each site, as far as they are known
    influence: bool = False  # whether a note names the most influential site

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table of coefficients."""
        tail = (1 - self.level) / 2
        z = "z" if self.inference.freedom(self.robust, self.distribution) == inf else "t"
        ends = f"[{tail:.3g}", f"{1 - tail:.3g}]"
        if self.exp:
            return self.inference.ratio, z, f"P>|{z}|", *ends
        return "coef", "std err", z, f"P>|{z}|", *ends

    @property
    def names(self) -> tuple[str, ...]:
        """The coefficients in the table; with `exp` without thresholds, whose exponentials are no ratios."""
        return self.inference.names[: self.inference.ratio_count if self.exp else None]

    @property
    def table(self) -> Matrix:
        """The numbers under `columns`; exponentials have no standard error, as it is not useful there."""
        table = self.inference.table(self.level, self.robust, self.distribution)[: len(self.names)]
        if not self.exp:
            return table
        with np.errstate(over="ignore"):
            return np.column_stack([np.exp(table[:, 0]), table[:, 2:4], np.exp(table[:, 4:])])

    def to_frame(self, *, exp: bool | None = None) -> pd.DataFrame:
        """The table of coefficients as a pandas DataFrame, indexed by name.

        Parameters
        ----------
        exp : bool, optional
            Whether to give exponentials of the coefficients. Default: as in the summary.

        Returns
        -------
        DataFrame
            One row per coefficient.

        Raises
        ------
        ConfigError
            If pandas is not installed.
        """
        if exp is not None and exp != self.exp:
            return replace(self, exp=exp).to_frame()
        try:
            import pandas as pd
        except ImportError as error:
            raise ConfigError("to_frame() needs pandas; run pip install 'fedshed[data]'") from error
        return pd.DataFrame(self.table, columns=list(self.columns), index=list(self.names))

    def to_rows(self) -> list[dict[str, Any]]:
        """The table of coefficients as plain data, one dict per coefficient."""
        return [
            {"name": name, **dict(zip(self.columns, row, strict=True))}
            for name, row in zip(self.names, self.table.tolist(), strict=True)
        ]

    def __str__(self) -> str:
        table = self._coefficients()
        width = max(WIDTH, *map(len, table))
        double, single = "=" * width, "-" * width
        blocks = [
            [line.center(width).rstrip() for line in (printable(self.title), *self._about(width))] + [double],
            [*self._header(width), double],
            [table[0], single, *table[1:], double],
            *([] if self.inference.promise is not None else [self._compared(double)]),
            [*wrap(self._certificate(), width, break_long_words=False), *self._notes()],
        ]
        return "\n".join(line for block in blocks for line in block)

    def _compared(self, double: str) -> list[str]:
        """The table of the sites, if they are known one by one, and the test of heterogeneity."""
        sites = [] if self.inference.protected is not None else self._sites()
        return [*sites, self._heterogeneity(), double]

    def __repr__(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewSitesWarning)  # a note says it
            return str(self)

    def _repr_html_(self) -> str:
        return preformatted(repr(self))

    def _about(self, width: int) -> list[str]:
        coding = self.inference.coding
        about = self.about if coding is None else (*self.about, coding.in_words())
        return [line for text in about for line in _balanced(printable(text), width)]

    def _header(self, width: int) -> list[str]:
        it = self.inference
        family = family_of(it.loss)
        if it.promise is not None:
            facts = [
                ("Family", family.title), ("Link", family.link), ("No. sites", it.site_count),
                ("No. rows", it.rows), ("l2", _ridge(it.l2)),
            ]  # fmt: skip
            return _two_columns(facts, [("Covariance", "model and noise"), *self._run()], width)
        left = [
            ("Family", family.title), ("Link", family.link),
            ("No. sites", it.site_count), ("No. rows", it.rows),
            *self._weights(), ("Df residuals", plain(it.df_resid)),
            ("Df model", plain(it.df_model)), ("l2", _ridge(it.l2)), *self._lasso(), *self._nuisance(),
        ]  # fmt: skip
        if family.survival:
            left = [each for each in left if each[0] != "Df residuals"]
            return _two_columns([*left, *self._events()], [*self._survival(), *self._run()], width)
        right = [
            ("Log-likelihood", plain(it.log_likelihood)), ("AIC", plain(it.aic)), ("BIC", plain(it.bic)),
            ("Deviance", plain(it.deviance)), ("Null deviance", plain(it.null_deviance)),
            ("Pearson chi2", plain(it.pearson)), ("Dispersion", plain(it.dispersion)), self._r2(),
            ("Covariance", "none" if any(it.l1) else _covariance(self.robust)),
            *self._run(),
        ]  # fmt: skip
        return _two_columns(left, right, width)

    def _lasso(self) -> Iterable[tuple[str, Any]]:
        """The absolute penalty, and how many coefficients are not 0."""
        it = self.inference
        if any(it.l1):
            yield "l1", _ridge(it.l1)
            yield "Not zero", f"{len(it.selected)} of {len(it.names)}"

    def _nuisance(self) -> Iterable[tuple[str, Any]]:
        if (own := self.inference.nuisance) is not None:
            yield own.name, f"{own.value:.6g} ({'found' if own.found else 'given'})"

    def _events(self) -> Iterable[tuple[str, Any]]:
        if self.inference.site_count > 1:
            yield "Baseline hazards", "one per site"
        if self.inference.survival is not None:
            yield "No. events", plain(self.inference.survival.events)

    def _survival(self) -> Iterable[tuple[str, Any]]:
        """Measures of fit of a survival model, which has no dispersion and no Pearson's chi2."""
        it, facts = self.inference, self.inference.survival
        yield from (("Log partial likelihood", plain(it.log_likelihood)), ("AIC", plain(it.aic)))
        if it.deviance is not None and it.null_deviance is not None and not any(it.l2) and not any(it.l1):
            chi2 = max(0.0, it.null_deviance - it.deviance)
            yield f"LR chi2({plain(it.df_model)})", plain(chi2)
            yield "P (LR test)", f"{chdtrc(it.df_model, chi2):.3g}"
        if facts is not None:
            yield "Concordance in sites", plain(facts.concordance)
            test = facts.proportional_global
            if test.p_value is not None:
                yield f"Proportional chi2({test.df})", plain(test.statistic)
                yield "P (proportional)", f"{test.p_value:.3g}"
                yield "Its scale of time", facts.transform
        yield "Covariance", _covariance(self.robust)

    def _weights(self) -> Iterable[tuple[str, Any]]:
        if self.inference.weight_type != "none":
            yield "Weights", f"{self.inference.weight_type}, sum {plain(self.inference.weight)}"

    def _r2(self) -> tuple[str, str]:
        it = self.inference
        name = family_of(it.loss).determination
        return name, plain(it.mcfadden if "McFadden" in name else it.deviance_explained)

    def _run(self) -> Iterable[tuple[str, Any]]:
        if self.converged is not None and self.inference.promise is None:
            yield "Converged", "yes" if self.converged else "NO"
        if self.exchanges is not None:
            yield "Exchanges", self.exchanges
        if self.uplink_bytes is not None and self.downlink_bytes is not None:
            yield "Bytes up, down", f"{self.uplink_bytes:,}, {self.downlink_bytes:,}"

    def _coefficients(self) -> list[str]:
        names = [printable(name) for name in self.names]
        own = [max(11, len(column) + 1) for column in self.columns]
        equal = max(12, *map(len, names)) + max(own) * len(own) <= TERMINAL
        rows = [["", *self.columns]]
        for name, values in zip(names, self.table.tolist(), strict=True):
            *estimates, z, p, low, high = values
            numbers = [*map(_number, estimates), _statistic(z), _statistic(p), _number(low), _number(high)]
            rows.append([name, *numbers])
        return table_lines(rows, 12, [max(own)] * len(own) if equal else own)

    def _sites(self) -> list[str]:
        sites = self.inference.sites
        weighted, dropped = self._beside_rows()
        beside = ["weight"] * weighted + ["dropped"] * dropped
        rows = [["site", "rows", *beside, "deviance", "score chi2", "df", "P"]]
        shown = sorted(sites, key=lambda i: (_p(sites[i].score.p_value), i))[:MOST_SITES]
        for i in sorted(shown):
            s = sites[i]
            p = "" if s.score.p_value is None else f"{s.score.p_value:.3f}"
            left_out = shown_count(self.counts[i].dropped) if i in self.counts else ""
            beside = [plain(s.weight)] * weighted + [left_out] * dropped
            score = [f"{s.score.statistic:.3f}", str(s.score.df), p] if s.score.df else [""] * 3
            rows.append([printable(i), str(s.rows), *beside, f"{s.deviance:.2f}", *score])
        sizes = [9] + [11] * weighted + [9] * dropped + [12, 12, 6, 8]
        lines = table_lines(rows, 12, sizes)
        if len(sites) > MOST_SITES:
            lines.append(f"({len(sites) - MOST_SITES} more sites; shown are those that differ most)")
        return lines

    def _beside_rows(self) -> tuple[bool, bool]:
        """Whether rows have weights, and whether some were dropped."""
        return self.inference.weight_type != "none", any(one.dropped for one in self.counts.values())

    def _heterogeneity(self) -> str:
        test = self.inference.heterogeneity
        if any(self.inference.l1):
            return "Heterogeneity of the sites: not tested, as l1 shrinks estimates"
        if test.p_value is None:
            return "Heterogeneity of the sites: nothing to test"
        return (
            f"Heterogeneity of the sites (score test): "
            f"chi2({test.df}) = {test.statistic:.3f}, P = {test.p_value:.3g}"
        )

    def _certificate(self) -> str:
        c, promise = self.inference.certificate, self.inference.promise
        if promise is not None or c is None:
            return _promised(promise)
        bound = "" if c.bound is None else f", f - f* <= {c.bound:.2g}"
        estimate = "" if c.estimate is None else f", f - f* about {c.estimate:.2g} (estimate)"
        return f"Certificate: gradient norm {c.grad_norm:.2g}{bound}{estimate}"

    def all_notes(self) -> list[str]:
        """The notes below the tables, in sentences."""
        notes = [*self.notes, *self.inference.notes, *caveats(self.inference, self.robust)]
        if said := dropped_in_words(self.counts, self._beside_rows()[0]):
            notes.insert(len(self.notes), said)
        if len(self.names) < len(self.inference.names):
            notes.append(
                "Thresholds are left out, as their exponentials are no ratios; without exp they are shown."
            )
        moved = influence_of(self.inference) if self.influence else None
        if moved is not None and (said := moved.in_words()):
            notes.append(said)
        return notes

    def _notes(self) -> list[str]:
        notes = self.all_notes()
        lines = (
            fill(f"[{k}] {printable(note)}", WIDTH, subsequent_indent="    ")
            for k, note in enumerate(notes, 1)
        )
        return [line for text in lines for line in text.splitlines()]


def _balanced(text: str, width: int) -> list[str]:
    """As few lines as possible, of similar length, so that none has the last word alone."""
    fewest = len(wrap(text, width))
    narrowest = next(each for each in range(1, width + 1) if len(wrap(text, each)) <= fewest)
    return wrap(text, narrowest)


def _promised(promise: Promise | None) -> str:
    """The privacy that is promised to each row."""
    if promise is None:
        return "Certificate: none"
    said = f"epsilon = {promise.epsilon:g}, delta = {promise.delta:g}, clip = {promise.clip:g}"
    return f"Differential privacy: {said}"


def _covariance(robust: Robust) -> str:
    return (
        "model"
        if not robust
        else "robust, by site"
        if by_site(robust)
        else f"robust, by {robust if robust == 'cluster' else f'rows ({robust})'}"
    )


def _two_columns(left: list[tuple[str, Any]], right: list[tuple[str, Any]], width: int) -> list[str]:
    half = (width - 2) // 2
    lines = []
    for k in range(max(len(left), len(right))):
        a = _pair(*left[k], half) if k < len(left) else " " * half
        b = _pair(*right[k], width - 2 - half) if k < len(right) else ""
        lines.append(f"{a}  {b}".rstrip())
    return lines


def _pair(label: str, value: Any, width: int) -> str:
    return f"{label + ':':<16}{value!s:>{max(width - max(16, len(label) + 1), 1)}}"


def _statistic(value: float) -> str:
    return "" if isnan(value) else f"{value:z.3f}"


def _number(value: float) -> str:
    """A number with four decimals, or four digits if it is very small or large; empty for NaN."""
    if isnan(value):
        return ""
    return f"{value:z.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"


def _ridge(l2: tuple[float, ...]) -> str:
    penalties = sorted({value for value in l2 if value})
    free = sum(not value for value in l2)
    if not penalties:
        return "0"
    shown = f"{penalties[0]:g}" if len(penalties) == 1 else f"{penalties[0]:g} to {penalties[-1]:g}"
    return f"{shown} ({free} free)" if free else shown


def _p(p: float | None) -> float:
    return 2.0 if p is None else p
