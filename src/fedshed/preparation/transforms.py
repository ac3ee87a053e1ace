"""The numbers of a term that come from all rows: what a site sums up for them, and how they are kept.

Sums are over rows, each counting once whatever its weight, as formulaic and R compute them.
"""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.preparation.calls import SCALINGS, Transform
from fedshed.preparation.quantiles import quantiles

Numbers: TypeAlias = NDArray[np.float64]
_SAME = 1e-14  # of the mean: a smaller spread is that of rounding
_VANISHING = 1e-24  # of the square that a polynomial usually has: it is zero in all rows, but for rounding


class Scaling(Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """x - centre, divided by `scale` unless the term is only centred."""

    centre: float | None = None
    scale: float | None = None

    def complete(self, it: Transform) -> bool:
        """Whether no number is missing."""
        return self.centre is not None and (self.scale is not None or it.function == "center")

    def count(self, it: Transform) -> int:
        """How many sums are asked for next."""
        return 1 if self.centre is None else 2

    def sums(self, it: Transform, x: Numbers) -> Numbers:
        """Sum of x, then those of x - m and (x - m)^2."""
        if self.centre is None:
            return np.array([x.sum()])
        centred = x - self.centre
        return np.array([centred.sum(), centred @ centred])

    def with_sums(self, it: Transform, total: Numbers, rows: int) -> Scaling:
        """The state after the sums of all sites; `scale` divides by N - 1, `standardize` by N."""
        if self.centre is None:
            return Scaling(float(total[0] / rows))
        squares = max(total[1] - total[0] ** 2 / rows, 0.0)
        if squares <= (_SAME * self.centre) ** 2 * rows:
            raise DataError(f"term {it.term!r}: its values are all the same; leave it out")
        return replace(self, scale=float(np.sqrt(squares / (rows - (it.function == "scale")))))

    def fits(self, it: Transform) -> bool:
        """Whether these can be the numbers of a term."""
        return it.function in SCALINGS and (
            self.scale is None or (self.scale > 0 and it.function != "center" and self.centre is not None)
        )

    def to_formulaic(self, it: Transform) -> dict[str, Any]:
        """The state as formulaic keeps it."""
        return {"ddof": int(it.function != "standardize"), "center": self.centre, "scale": self.scale}

    def in_words(self) -> str:
        """The numbers, to be read."""
        return f"mean {self.centre:.6g}" + ("" if self.scale is None else f", divided by {self.scale:.6g}")


class Polynomial(Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """P_k, orthogonal over all rows: P_{k+1} = (x - alpha_k) P_k - (norms2_k / norms2_{k-1}) P_{k-1}."""

    alpha: tuple[float, ...] = ()
    norms2: tuple[float, ...] = ()  # sum of P_k^2

    def complete(self, it: Transform) -> bool:
        """Whether no number is missing."""
        return len(self.norms2) == it.degree + 1

    def count(self, it: Transform) -> int:
        """How many sums are asked for next."""
        return 2

    def sums(self, it: Transform, x: Numbers) -> Numbers:
        """Sums of P_k^2 and (x - alpha_0) P_k^2, k being the first polynomial whose norm is not known."""
        before, P = np.zeros_like(x), np.ones_like(x)
        for k, alpha in enumerate(self.alpha):
            beta = self.norms2[k] / self.norms2[k - 1] if k else 0.0
            before, P = P, (x - alpha) * P - beta * before
        about = x - self.alpha[0] if self.alpha else x
        return np.array([P @ P, (about * P) @ P])

    def with_sums(self, it: Transform, total: Numbers, rows: int) -> Polynomial:
        """The state with one more polynomial."""
        k, norm2 = len(self.norms2), float(total[0])
        least = (
            0.0 if k == 0
            else (_SAME * self.alpha[0]) ** 2 if k == 1
            else _VANISHING * (self.norms2[1] / rows) ** k
        )  # fmt: skip
        if norm2 <= least * rows:
            raise DataError(
                f"term {it.term!r} needs more than {k} different values over all sites; lower the degree"
            )
        alpha = float(total[1] / norm2) + (self.alpha[0] if self.alpha else 0.0)
        last = k == it.degree
        return Polynomial(self.alpha if last else (*self.alpha, alpha), (*self.norms2, norm2))

    def fits(self, it: Transform) -> bool:
        """Whether these can be the numbers of a term."""
        short = len(self.norms2) <= it.degree + 1 and len(self.alpha) == min(len(self.norms2), it.degree)
        return it.function == "poly" and short and all(norm2 > 0 for norm2 in self.norms2)

    def to_formulaic(self, it: Transform) -> dict[str, Any]:
        """The state as formulaic keeps it."""
        return {"alpha": dict(enumerate(self.alpha)), "norms2": dict(enumerate(self.norms2))}

    def in_words(self) -> str:
        """The numbers, to be read."""
        return f"orthogonal over all rows, alpha {_list(self.alpha)}, squared norms {_list(self.norms2)}"


class Spline(Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """The bounds of a spline and the knots between them; of one that is centred, the means of its columns."""

    lower: float | None = None
    upper: float | None = None
    knots: tuple[float, ...] | None = None
    rank_error: float | None = None  # of the knots, where they are quantiles: a share of all rows
    means: tuple[float, ...] | None = None  # of the columns before they are centred

    @property
    def placed(self) -> bool:
        """Whether knots and bounds are known."""
        return None not in (self.lower, self.upper, self.knots)

    def complete(self, it: Transform) -> bool:
        """Whether no number is missing."""
        return self.placed and (self.means is not None or not it.centred)

    def count(self, it: Transform) -> int:
        """How many sums are asked for next."""
        return it.width + 1

    def sums(self, it: Transform, x: Numbers) -> Numbers:
        """The sums of the columns before they are centred."""
        from formulaic.transforms import TRANSFORMS

        outside = "clip" if it.given.get("extrapolation") == "clip" else "extend"
        state = replace(self, means=None).to_formulaic(it)
        columns = TRANSFORMS[it.function](x, knots=self.knots, extrapolation=outside, _state=state)
        return np.array([np.sum(column) for column in columns.values()])

    def with_sums(self, it: Transform, total: Numbers, rows: int) -> Spline:
        """The state with the means over all rows."""
        return replace(self, means=tuple((total / rows).tolist()))

    def with_blocks(self, it: Transform, found: Numbers) -> Spline:
        """The state with knots and bounds, from the histograms of all sites."""
        lower = found[:, 0].min() if self.lower is None else self.lower
        upper = found[:, 1].max() if self.upper is None else self.upper
        knots, error = self.knots, None
        if knots is None:
            shares = np.linspace(0.0, 1.0, it.inner + 2)[1:-1]
            q, error = quantiles(found, shares, lower, upper)
            knots = tuple(q.tolist())
        if any(a >= b for a, b in pairwise((lower, *knots, upper))):
            raise DataError(
                f"term {it.term!r}: its knots {_list(knots)} between {lower:.6g} and {upper:.6g} are not all "
                "different, in increasing order; give knots, lower_bound and upper_bound, or a smaller df"
            )
        return Spline(float(lower), float(upper), knots, error if knots else None)

    def fits(self, it: Transform) -> bool:
        """Whether these can be the numbers of a term."""
        given = begun(it)
        if not isinstance(given, Spline):
            return False
        pairs = ((given.lower, self.lower), (given.upper, self.upper), (given.knots, self.knots))
        if not all(said in (None, here) for said, here in pairs):
            return False
        if self.lower is None or self.upper is None or self.knots is None:
            return self.means is None
        sized = self.means is None or (it.centred and len(self.means) == self.count(it))
        ordered = all(a < b for a, b in pairwise((self.lower, *self.knots, self.upper)))
        return sized and ordered and len(self.knots) == it.inner

    def to_formulaic(self, it: Transform) -> dict[str, Any]:
        """The state as formulaic keeps it."""
        knots = [self.lower, *(self.knots or ()), self.upper]
        bounds = {"lower_bound": self.lower, "upper_bound": self.upper}
        if not it.cubic:
            ends = it.degree
            return {**bounds, "knots": [self.lower] * ends + knots + [self.upper] * ends}
        constraints = None if self.means is None else np.array([self.means])
        return {**bounds, "knots": knots, "constraints": constraints, "cyclic": it.cyclic}

    def in_words(self) -> str:
        """The numbers, to be read."""
        ends = f"bounds {self.lower:.6g} and {self.upper:.6g}"
        if not self.knots:
            return f"no knots, {ends}"
        error = "" if self.rank_error is None else f" (quantiles to within {self.rank_error:.1%} of the rows)"
        return f"knots {_list(self.knots)}{error}, {ends}"


State: TypeAlias = Scaling | Polynomial | Spline


def begun(it: Transform) -> State:
    """The state of a transform before any site was asked: what the formula itself gives."""
    if it.function in SCALINGS:
        return Scaling()
    if it.function == "poly":
        return Polynomial()
    lower, upper = it.given.get("lower_bound"), it.given.get("upper_bound")
    knots = it.given.get("knots") if it.inner else ()
    return Spline(_float(lower), _float(upper), None if knots is None else tuple(map(float, knots)))


def known(it: Transform, states: dict[str, State]) -> State:
    """The state of a transform as far as it is known; one that cannot be its own is refused."""
    state = states.get(it.term, begun(it))
    if not (all(map(isfinite, _numbers(state))) and state.fits(it)):
        raise DataError(f"the plan's numbers of term {it.term!r} are not those of such a term; prepare again")
    return state


def completed(transforms: tuple[Transform, ...], states: dict[str, State]) -> dict[str, dict[str, Any]]:
    """The states of all transforms as formulaic keeps them; an error if one is not complete."""
    found = [(it, known(it, states)) for it in transforms]
    if lacks := [it.term for it, state in found if not state.complete(it)]:
        raise DataError(f"the plan lacks the numbers of term {lacks[0]!r}; prepare or fit again")
    return {it.key: state.to_formulaic(it) for it, state in found}


def _numbers(state: State) -> list[float]:
    fields = (getattr(state, name) for name in state.__struct_fields__)
    several = (each if isinstance(each, tuple) else (each,) for each in fields if each is not None)
    return [value for values in several for value in values]


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _list(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
