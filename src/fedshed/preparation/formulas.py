"""Formulas are read by formulaic, but only parts that every site can compute alike and safely are allowed.

A formula comes from another party, and formulaic evaluates the Python expressions in it.  So every factor is
checked first: columns, numbers, arithmetic, and the functions named here; nothing else is ever evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError, DataError
from fedshed.preparation.calls import TRANSFORMS, Transform, check_size
from fedshed.preparation.expressions import Used, check_factor, quoted
from fedshed.preparation.r_formulas import from_r, is_plain, refuse_target
from fedshed.preparation.study import MOST_COLUMNS, Study

# What formulaic's parser raises, besides errors of its own, for text that is no formula.
UNREADABLE = (ValueError, AttributeError, IndexError, KeyError, TypeError, RecursionError, MemoryError)
_LONGEST, _MOST_TERMS = 5000, 10_000
_CONTEXT = {"sqrt": np.sqrt, "log1p": np.log1p}  # besides formulaic's own log, exp, ...


@dataclass(frozen=True)
class Parsed:
    """A formula that may be evaluated: its right side, and the columns it is made of."""

    terms: str
    columns: tuple[str, ...]
    categories: frozenset[str]  # inside C()
    numbers: frozenset[str]  # inside arithmetic
    intercept: bool
    transforms: tuple[Transform, ...] = ()  # calls that need numbers of all rows


@lru_cache(maxsize=64)
def parse(formula: str, intercept: bool = True) -> Parsed:
    """A formula's right side, checked; `intercept=False` takes the intercept out."""
    left, tilde, right = formula.partition("~")
    refuse_target(left if tilde else "")
    right = from_r(right if tilde else formula)
    terms = right if intercept else f"{right} - 1"
    used = [check_factor(factor) for term in _terms(terms) for factor in term.factors]
    columns = tuple(dict.fromkeys(name for each in used for name in each.columns))
    categories = frozenset(name for each in used if each.category for name in each.columns)
    numbers = frozenset(name for each in used if each.arithmetic for name in each.columns)
    if both := sorted(categories & numbers):
        raise ConfigError(
            f"the formula uses {both[0]!r} both as a category and as a number; copy it to a second column"
        )
    literal = any(str(term) == "1" for term in _terms(terms))
    return Parsed(terms, columns, categories, numbers, literal, _transforms(used, columns, literal))


def _transforms(used: Iterable[Used], columns: tuple[str, ...], intercept: bool) -> tuple[Transform, ...]:
    """The transforms of all factors, cubic splines centred beside an intercept."""
    found: dict[str, Transform] = {}
    for it in (each for factor in used for each in factor.transforms):
        it = replace(it, centred=it.cubic and (intercept or "constraints" in it.given))
        check_size(it.term, it)
        alike = [alias for alias, name in it.names.items() if alias != name and alias in columns]
        if alike or found.setdefault(it.key, it).names != it.names:
            raise ConfigError(
                f"term {it.term!r} of the formula: two columns have names that differ in punctuation only; "
                "rename one"
            )
    return tuple(found.values())


def formula_of(study: Study) -> Parsed:
    """The formula of a study that has one; its terms may not be made of target, weight or offset."""
    parsed = parse(study.formula or "", study.intercept)
    if both := [name for name in parsed.columns if name in (*study.beside, study.holdout)]:
        raise ConfigError(
            f"the formula uses {both[0]!r}, which is the study's target, weight, offset or exposure; "
            "leave it out"
        )
    return parsed


def powers_to_centre(study: Study) -> tuple[str, ...]:
    """The columns of which a formula has powers as well as themselves, where a fit may centre the design.

    x and x^2 are nearly collinear with the intercept if x is far from 0, such as a year.  Without a penalty,
    the model is the same on either scale.
    """
    penalised = any(any(p.values()) if isinstance(p, dict) else p for p in (study.l2, study.l1))
    sums_only = study.protected or study.privacy is not None
    if study.formula is None or sums_only or penalised or study.firth or study.random_intercept:
        return ()
    parsed = formula_of(study)
    if not parsed.intercept or study.event is not None:
        return ()
    factors = [factor for term in _terms(parsed.terms) for factor in term.factors]
    powers = {name for each in factors if "**" in each.expr for name in check_factor(each).columns}
    plain = {name for each in factors if "**" not in each.expr for name in check_factor(each).columns}
    return tuple(sorted(powers & plain))


def evaluate(
    parsed: Parsed, numbers: Mapping[str, NDArray[np.float64]], codes: Mapping[str, Any], rows: int,
    states: Mapping[str, dict[str, Any]] | None = None,
) -> tuple[NDArray[np.float64], tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """X without the intercept, the names of its columns, and the term of each.

    `codes` has for each category the pair (codes, levels): all agreed levels, whether they occur or not.
    `states` has the numbers of each transform, as formulaic keeps them.  Without them the argument itself
    stands in every column of a transform: a design of the same size, before its numbers are known.
    """
    import pandas as pd

    check_width(_width(parsed, {name: len(levels) for name, (_, levels) in codes.items()}))
    categories = {name: pd.Categorical.from_codes(*pair) for name, pair in codes.items()}
    frame = pd.DataFrame({**numbers, **categories}, index=pd.RangeIndex(rows))
    matrix = _model_matrix(parsed, frame, states)
    spec, short = matrix.model_spec, _shortener(parsed, codes)
    kept = [
        (j, short(spec.column_names[j]), short(str(term)))
        for term, place in spec.term_slices.items()
        if str(term) != "1"
        for j in range(place.start, place.stop)
    ]
    names = tuple(name for _, name, _ in kept)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the formula has {twice!r} twice; write each term once")
    X = np.asarray(matrix, dtype=np.float64)
    X = np.ascontiguousarray(X[:, [j for j, _, _ in kept]])
    return X, names, tuple(term for _, _, term in kept)


def check_width(columns: int) -> None:
    """Refuse a design of too many columns before it is made."""
    if columns > MOST_COLUMNS:
        raise DataError(
            f"the design would have {columns} columns, of which {MOST_COLUMNS} are allowed; leave out "
            "interactions, or group levels"
        )


def _width(parsed: Parsed, levels: Mapping[str, int]) -> int:
    """At most how many columns the terms make of categories with so many levels."""
    total = 0
    for term in _terms(parsed.terms):
        used = [check_factor(factor) for factor in term.factors]
        sizes = [levels.get(name, 1) for each in used for name in each.columns]
        total += prod(sizes) * prod(it.width for each in used for it in each.transforms)
    return total


def _model_matrix(parsed: Parsed, frame: Any, states: Mapping[str, dict[str, Any]] | None) -> Any:
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    context = _CONTEXT if states is not None else {**_CONTEXT, **dict.fromkeys(TRANSFORMS, _stand_in())}
    if states is None:
        states = {it.key: {"width": it.width} for it in parsed.transforms}
    known = {key: dict(state) for key, state in states.items()}  # formulaic changes it
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused afterwards, by column
            matrix = Formula(parsed.terms).get_model_matrix(
                frame, context=context, output="numpy", na_action="ignore", transform_state=known
            )
    except (FormulaicError, ValueError, TypeError) as error:
        cause = error.__cause__ or error
        hint = (
            "a value lies outside the bounds of a spline; extrapolation='clip' would take the bound instead"
            if "bound" in str(cause)
            else type(cause).__name__
        )
        raise DataError(f"the formula {parsed.terms.strip()!r} cannot be computed here ({hint})") from error
    if extra := set(matrix.model_spec.transform_state) - set(states):
        raise DataError(
            f"term {min(extra)!r} of the formula would depend on this site's rows alone; rename its column"
        )
    return matrix


def _stand_in() -> Any:
    """What shows the argument of a transform in each of its columns."""
    from formulaic.transforms import stateful_transform

    def repeated(x: Any, *_: Any, _state: dict[str, int], **__: Any) -> Any:
        return np.column_stack([x] * _state["width"])

    return stateful_transform(repeated)


@lru_cache(maxsize=64)
def _terms(right: str) -> tuple[Any, ...]:
    """The terms of a right side; refuses what formulaic cannot read and what would become enormous."""
    if len(right) > _LONGEST:
        raise ConfigError(f"the formula has {len(right)} characters; {_LONGEST} are allowed")
    try:
        from formulaic import Formula
        from formulaic.errors import FormulaicError
        from formulaic.parser import DefaultFormulaParser
    except ImportError as error:
        raise ConfigError("a formula needs formulaic: install fedshed[data]") from error
    try:
        if _size(DefaultFormulaParser().get_ast(right)) > _MOST_TERMS:
            raise ConfigError(f"the formula has more than {_MOST_TERMS} terms; write fewer interactions")
        terms = Formula(right)
    except (FormulaicError, SyntaxError, *UNREADABLE) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the formula {right.strip()[:200]!r} cannot be read: {_reason(error)}") from error
    return tuple(terms)


def _reason(error: BaseException) -> str:
    """The first line of an error of formulaic, without the colours in which it shows the place."""
    return re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", str(error)).partition("\n")[0].strip()


def _size(node: Any) -> float:
    """At most how many terms a formula expands to."""
    if not hasattr(node, "operator"):
        return 1.0
    sizes = [_size(argument) for argument in node.args]
    if node.operator.symbol in ("**", "^"):
        if sizes[0] == 1:
            raise ConfigError("a power of one term is that term itself; the square of a column x is I(x^2)")
        return min(sizes[0], 1e6) ** _exponent(node.args[-1])
    if node.operator.symbol in (":", "*", "/", "%in%"):
        return float(np.prod([size + 1 for size in sizes]))
    return float(sum(sizes))


def _exponent(token: Any) -> int:
    text = str(getattr(token, "token", token))
    if not text.isdecimal() or len(text) > 1:
        raise ConfigError(
            f"a power of terms in a formula is a number from 1 to 9, not {text!r}; x**2 is I(x**2)"
        )
    return int(text)


def _shortener(parsed: Parsed, categories: Iterable[str]) -> Callable[[str], str]:
    """`C(region)[T.north]` as `region[north]`, the name it has without a formula."""
    wrapped = {f"C({quoted(name)})": name for name in parsed.categories}
    wrapped |= {f"{name}[T.": f"{name}[" for name in categories}
    wrapped |= {f"`{name}`": name for name in parsed.columns if is_plain(name)}

    def short(name: str) -> str:
        for long, column in wrapped.items():
            name = name.replace(long, column)
        return name

    return short
