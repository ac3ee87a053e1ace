"""`Summary`: an `Inference` to be read, as text in the manner of statsmodels' or as a DataFrame."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from textwrap import fill
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.notebook import preformatted
from fedshed.inference.result import FEW_SITES, FewSitesWarning, Inference, few_sites
from fedshed.objectives import family_of

if TYPE_CHECKING:
    import pandas as pd

MOST_SITES = 20
WIDTH = 78
OVERDISPERSED = 1.5
ENOUGH = 5


class Summary(Struct, frozen=True):
    """What a fit found; `str()` shows it, `to_frame()` gives the coefficients as a pandas DataFrame."""

    inference: Inference
    title: str = "Federated regression results"
    robust: bool = False
    level: float = 0.95
    converged: bool | None = None
    exchanges: int | None = None  # all that crossed the wire
    uplink_bytes: int | None = None
    downlink_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table of coefficients."""
        tail = (1 - self.level) / 2
        return "coef", "std err", "z", "P>|z|", f"[{tail:.3g}", f"{1 - tail:.3g}]"

    def to_frame(self) -> pd.DataFrame:
        """The table of coefficients, indexed by name."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ConfigError("to_frame() needs pandas: install fedshed[data]") from error
        table = self.inference.table(self.level, self.robust)
        return pd.DataFrame(table, columns=list(self.columns), index=list(self.inference.names))

    def to_rows(self) -> list[dict[str, Any]]:
        """The table of coefficients as plain data, one dict a coefficient."""
        table = self.inference.table(self.level, self.robust).tolist()
        return [
            {"name": name, **dict(zip(self.columns, row, strict=True))}
            for name, row in zip(self.inference.names, table, strict=True)
        ]

    def __str__(self) -> str:
        table = self._coefficients()
        width = max(WIDTH, *map(len, table))
        double, single = "=" * width, "-" * width
        blocks = [
            [self.title.center(width).rstrip(), double],
            [*self._header(width), double],
            [table[0], single, *table[1:], double],
            [*self._sites(), self._heterogeneity(), double],
            [self._certificate(), *self._notes()],
        ]
        return "\n".join(line for block in blocks for line in block)

    def __repr__(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewSitesWarning)  # a note says it
            return str(self)

    def _repr_html_(self) -> str:
        return preformatted(repr(self))

    def _header(self, width: int) -> list[str]:
        it = self.inference
        family = family_of(it.loss)
        left = [
            ("Family", family.title), ("Link", family.link),
            ("No. sites", len(it.sites)), ("No. rows", it.rows),
            ("Weight", _plain(it.weight)), ("Df residuals", _plain(it.df_resid)),
            ("Df model", _plain(it.df_model)), ("l2", _ridge(it.l2)),
        ]  # fmt: skip
        right = [
            ("Log-likelihood", _plain(it.log_likelihood)), ("AIC", _plain(it.aic)),
            ("Deviance", _plain(it.deviance)), ("Null deviance", _plain(it.null_deviance)),
            ("Pearson chi2", _plain(it.pearson)), ("Dispersion", _plain(it.dispersion)), self._r2(),
            ("Covariance", "robust, by site" if self.robust else "model"),
            *self._run(),
        ]  # fmt: skip
        return _two_columns(left, right, width)

    def _r2(self) -> tuple[str, str]:
        it = self.inference
        name = family_of(it.loss).determination
        return name, _plain(it.mcfadden if "McFadden" in name else it.deviance_explained)

    def _run(self) -> Iterable[tuple[str, Any]]:
        if self.converged is not None:
            yield "Converged", "yes" if self.converged else "NO"
        if self.exchanges is not None:
            yield "Exchanges", self.exchanges
        if self.uplink_bytes is not None and self.downlink_bytes is not None:
            yield "Bytes up, down", f"{self.uplink_bytes:,}, {self.downlink_bytes:,}"

    def _coefficients(self) -> list[str]:
        wide = max(12, *map(len, self.inference.names))
        lines = [" " * wide + "".join(f"{column:>11}" for column in self.columns)]
        table = self.inference.table(self.level, self.robust).tolist()
        for name, (coef, error, z, p, low, high) in zip(self.inference.names, table, strict=True):
            cells = (_number(coef), _number(error), f"{z:.3f}", f"{p:.3f}", _number(low), _number(high))
            lines.append(f"{name:<{wide}}" + "".join(f"{cell:>11}" for cell in cells))
        return lines

    def _sites(self) -> list[str]:
        sites = self.inference.sites
        wide = max(12, *(len(name) for name in sites))
        lines = [
            f"{'site':<{wide}}{'rows':>9}{'weight':>11}{'deviance':>12}{'score chi2':>12}{'df':>6}{'P':>8}"
        ]
        shown = sorted(sites, key=lambda i: (_p(sites[i].score.p_value), i))[:MOST_SITES]
        for i in sorted(shown):
            s = sites[i]
            p = "" if s.score.p_value is None else f"{s.score.p_value:.3f}"
            lines.append(
                f"{i:<{wide}}{s.rows:>9}{_plain(s.weight):>11}{s.deviance:>12.2f}"
                f"{s.score.statistic:>12.3f}{s.score.df:>6}{p:>8}"
            )
        if len(sites) > MOST_SITES:
            lines.append(f"({len(sites) - MOST_SITES} more sites; shown are those that differ most)")
        return lines

    def _heterogeneity(self) -> str:
        test = self.inference.heterogeneity
        if test.p_value is None:
            return "Heterogeneity of the sites: nothing to test"
        return (
            f"Heterogeneity of the sites (score test): "
            f"chi2({test.df}) = {test.statistic:.3f}, P = {test.p_value:.3g}"
        )

    def _certificate(self) -> str:
        c = self.inference.certificate
        bound = "" if c.bound is None else f", f - f* <= {c.bound:.2g}"
        estimate = "" if c.estimate is None else f", f - f* about {c.estimate:.2g} (estimate)"
        return f"Certificate: gradient norm {c.grad_norm:.2g}{bound}{estimate}"

    def _notes(self) -> list[str]:
        notes = [*self.notes, *self.inference.notes, *caveats(self.inference, self.robust)]
        lines = (fill(f"[{k}] {note}", WIDTH, subsequent_indent="    ") for k, note in enumerate(notes, 1))
        return [line for text in lines for line in text.splitlines()]


def _overdispersed(it: Inference) -> bool:
    looked_at = family_of(it.loss).unit_dispersion and it.pearson is not None
    return looked_at and it.df_resid > 0 and (it.pearson or 0.0) > OVERDISPERSED * it.df_resid


def caveats(it: Inference, robust: bool) -> Iterable[str]:
    """What a careful reader should know about these figures."""
    if any(it.l2):
        yield "The ridge shrinks: errors are of the penalised estimate about its mean, not about the truth."
    if robust and len(it.sites) < FEW_SITES:
        yield few_sites(len(it.sites))
    if family_of(it.loss).dispersed and it.dispersion is not None:
        yield "The dispersion is Pearson chi2 / Df residuals."
    if _overdispersed(it):
        yield (
            f"Pearson chi2 / Df residuals is {(it.pearson or 0.0) / it.df_resid:.3g}, and a "
            f"{family_of(it.loss).title}'s is 1: "
            "errors from the model are too small; compare robust ones (robust=True, --robust)."
        )
    few = sum(site.score.df > 0 and site.weight < ENOUGH * site.score.df for site in it.sites.values())
    if few:
        yield f"The score test is asymptotic: {few} sites have under {ENOUGH} rows a degree of freedom."


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


def _plain(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.8g}" if abs(value) >= 100 else f"{value:.5g}"


def _number(value: float) -> str:
    """Four decimals where they say something, else four digits."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"


def _ridge(l2: tuple[float, ...]) -> str:
    penalties = sorted({value for value in l2 if value})
    free = sum(not value for value in l2)
    if not penalties:
        return "0"
    shown = f"{penalties[0]:g}" if len(penalties) == 1 else f"{penalties[0]:g} to {penalties[-1]:g}"
    return f"{shown} ({free} free)" if free else shown


def _p(p: float | None) -> float:
    return 2.0 if p is None else p
