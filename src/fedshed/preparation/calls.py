"""Calls in a formula whose columns need numbers of all rows (means, knots): what they may be called with."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from fedshed._utils.errors import ConfigError
from fedshed.preparation.r_formulas import is_plain

SCALINGS = ("center", "scale", "standardize")
CUBIC = ("cr", "cs", "cc")
SPLINES = ("bs", *CUBIC)
TRANSFORMS = (*SCALINGS, "poly", *SPLINES)
MOST_KNOTS, LARGEST_POWER = 100, 10
_SECOND = {"poly": "degree", **dict.fromkeys(SPLINES, "df")}  # the argument that may go without its name
_COMMON = ("df", "knots", "lower_bound", "upper_bound", "extrapolation")
_NAMED = {
    **dict.fromkeys(SCALINGS, ()), "poly": ("degree",),
    "bs": (*_COMMON, "degree", "include_intercept"), **dict.fromkeys(CUBIC, (*_COMMON, "constraints")),
}  # fmt: skip
_OUTSIDE = ("raise", "clip", "na", "zero", "extend")


@dataclass(frozen=True)
class Transform:
    """One call, such as `bs(x, df=4)`: its argument, the numbers it is given, and whether it is centred.

    The columns of a cubic spline sum to one.  So in a model with an intercept they are combined such that
    each has mean zero over all rows (`constraints='center'`, as R's mgcv does).
    """

    term: str  # as the reader of a formula knows it
    key: str  # as formulaic names its state
    function: str
    argument: ast.expr
    names: Mapping[str, str]  # of the columns in the argument, where they are quoted
    given: Mapping[str, Any]
    centred: bool = False

    @property
    def cubic(self) -> bool:
        """Whether it is a spline of cardinal cubics, not of B-splines."""
        return self.function in CUBIC

    @property
    def cyclic(self) -> bool:
        """Whether the spline's ends meet."""
        return self.function == "cc"

    @property
    def degree(self) -> int:
        """Of a polynomial, or of the pieces of a B-spline."""
        return int(self.given.get("degree", 1 if self.function == "poly" else 3))

    @property
    def inner(self) -> int:
        """How many knots a spline has between its bounds."""
        if "knots" in self.given:
            return len(self.given["knots"])
        if self.cubic:
            return int(self.given["df"]) - 2 + self.centred + self.cyclic
        free = self.degree + bool(self.given.get("include_intercept"))
        return int(self.given.get("df", free)) - free

    @property
    def width(self) -> int:
        """How many columns it has."""
        if self.cubic:
            return self.inner + 2 - self.centred - self.cyclic
        if self.function == "bs":
            return self.inner + self.degree + bool(self.given.get("include_intercept"))
        return self.degree if self.function == "poly" else 1


def is_transform(node: ast.AST) -> bool:
    """Whether a node of an expression is a call of such a function."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TRANSFORMS


def transform(text: str, call: ast.Call, names: Mapping[str, str]) -> Transform:
    """The call with its numbers, if they are plain, few and small."""
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    if any(is_transform(node) for argument in call.args for node in ast.walk(argument)):
        refuse(text, f"{name} may not be made of another term that needs numbers of all rows")
    given, key = _given(text, name, call), ast.unparse(call)
    return Transform(_with_quotes(key, names), key, name, call.args[0], names, given)


def _with_quotes(key: str, names: Mapping[str, str]) -> str:
    """An expression with its columns as the formula has them."""
    return re.sub(r"\w+", lambda found: _quoted(found.group(), names), key)


def _quoted(word: str, names: Mapping[str, str]) -> str:
    column = names.get(word, word)
    return word if column == word else column if is_plain(column) else f"`{column}`"


def check_size(text: str, it: Transform) -> None:
    """Refuse a spline with too few knots, once it is known whether it is centred."""
    if it.function not in SPLINES:
        return
    least = 2 if it.cyclic else 1 if it.cubic else 0
    if it.inner >= least:
        return
    if "knots" in it.given:
        refuse(text, f"{it.function} needs at least {least} knots between its bounds")
    refuse(text, f"df must be at least {int(it.given['df']) + least - it.inner} here")


def is_number(node: ast.expr) -> bool:
    """Whether a node is a number as it stands."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
        and abs(node.value) < 1e300
    )


def refuse(text: str, why: str) -> NoReturn:
    """The error of a term that cannot be used."""
    raise ConfigError(f"term {text!r} of the formula: {why}")


def _given(text: str, name: str, call: ast.Call) -> dict[str, Any]:
    """What a call is given besides its argument."""
    known = _NAMED[name]
    positional = dict(zip((_SECOND[name],), call.args[1:], strict=False)) if name in _SECOND else {}
    if not call.args or len(call.args) > 1 + len(positional):
        refuse(text, f"{name} takes one column or expression{_words(', and', known)}")
    named = {str(keyword.arg): keyword.value for keyword in call.keywords}
    if unknown := [word for word in named if word not in known or word in positional]:
        refuse(text, f"{name} does not take {unknown[0]!r} here{_words('; it takes', known)}")
    given = {word: _value(text, word, node) for word, node in {**positional, **named}.items()}
    if name in SPLINES:
        _check_spline(text, name, given)
    elif given.get("degree") == 0:
        refuse(text, "the degree of a polynomial must be at least 1")
    return given


def _words(before: str, known: tuple[str, ...]) -> str:
    return f"{before} {', '.join(known)}" if known else ""


def _value(text: str, name: str, node: ast.expr) -> Any:
    """An argument as plain data: numbers, few and small, or a known word."""
    if not _is_allowed(name, node):
        said = {
            "df": f"df must be a whole number up to {MOST_KNOTS}",
            "degree": f"degree must be a whole number up to {LARGEST_POWER}",
            "constraints": "constraints can only be 'center'",
            "extrapolation": f"extrapolation must be one of {', '.join(_OUTSIDE)}",
        }
        refuse(text, said.get(name, f"{name} must be given as plain numbers (or left out)"))
    value = ast.literal_eval(node)
    return tuple(value) if name == "knots" else value


def _is_allowed(name: str, node: ast.expr) -> bool:
    if name == "knots":
        return (
            isinstance(node, ast.List | ast.Tuple)
            and len(node.elts) <= MOST_KNOTS
            and all(map(is_number, node.elts))
        )
    if name in ("lower_bound", "upper_bound"):
        return is_number(node)
    if not isinstance(node, ast.Constant):
        return False
    if name in ("df", "degree"):
        most = MOST_KNOTS if name == "df" else LARGEST_POWER
        return type(node.value) is int and 0 <= node.value <= most
    if name == "include_intercept":
        return isinstance(node.value, bool)
    return node.value in (("center",) if name == "constraints" else _OUTSIDE)


def _check_spline(text: str, name: str, given: Mapping[str, Any]) -> None:
    if "df" in given and "knots" in given:
        refuse(text, "give df or knots, not both")
    if name in CUBIC and not {"df", "knots"} & set(given):
        refuse(text, f"{name} needs df, the number of its columns, or knots: {name}(x, df=4)")
    if name == "cc" and not {"lower_bound", "upper_bound"} <= set(given):
        refuse(text, "give the ends of a period: cc(month, df=4, lower_bound=0, upper_bound=12)")
    ends = [given[end] for end in ("lower_bound", "upper_bound") if end in given]
    if len(ends) == 2 and not ends[0] < ends[1]:
        refuse(text, "lower_bound must be less than upper_bound")
    knots = given.get("knots", ())
    outside = any(k <= given.get("lower_bound", -float("inf")) for k in knots) or any(
        k >= given.get("upper_bound", float("inf")) for k in knots
    )
    if outside or any(a >= b for a, b in pairwise(knots)):
        refuse(text, "give the knots in increasing order, between the bounds")
