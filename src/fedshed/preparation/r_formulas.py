"""Formulas as R writes them: names with dots, `^` in a call, `factor()`, and `y ~ .`."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from fedshed._utils.errors import ConfigError

_NAME = r"(?:[^\W\d]|\.(?!\d))[\w.]*"
_PLAIN = re.compile(_NAME)
_TOKEN = re.compile(
    r"(?P<quoted>`[^`]*`)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    rf"|(?P<call>{_NAME})(?=\s*\()|(?P<name>{_NAME})|(?P<space>\s+)|(?P<sign>.)",
    re.DOTALL,
)
_ALL = re.compile(rf"\s*\.((?:\s*-\s*(?:`[^`]+`|{_NAME}|1))*)\s*")
_DOT = "a dot alone stands for all other columns, as in 'y ~ .' or 'y ~ . - x'; name the columns"
_CALLS = {"factor": "C", "as.factor": "C"}
_SPLINE = "write cr(x, df=4), a natural cubic spline"
_CONVERT = "convert the column in the tables"
_INSTEAD = {
    "offset": "name its column beside the formula: offset = 'x' (--offset x), or exposure = 'x' (--exposure "
    "x) in place of offset(log(x))",
    "ns": "write cr(x, df=4) in place of ns(x, df=4); with the same knots the fit is the same",
    "cut": "make the groups in every table, with the same limits, or write I(x > 25) for a single limit",
    "s": _SPLINE, "te": _SPLINE, "rcs": _SPLINE,
    "relevel": "write the column alone, and choose its reference level (references, --reference x=level)",
    "interaction": "write a:b", "ifelse": "write I(x > 25) for 1 where it holds, 0 elsewhere",
    "strata": "name its column beside the formula (strata, --strata)",
    "cluster": "name its column beside the formula (cluster, --cluster)",
    "ordered": "write C(x)", "as.ordered": "write C(x)", "as.numeric": _CONVERT, "as.integer": _CONVERT,
    "as.character": "write C(x)", "as.logical": _CONVERT,
}  # fmt: skip


class AllColumns(NamedTuple):
    """What `. - x - 1` says: the columns it leaves out, and whether there is an intercept."""

    without: tuple[str, ...]
    intercept: bool


def all_columns(right: str) -> AllColumns | None:
    """The meaning of a right side that is a dot, perhaps less some columns; None for any other."""
    if (match := _ALL.fullmatch(right)) is None:
        return None
    parts = [part.strip("`") for part in re.findall(rf"-\s*(`[^`]+`|{_NAME}|1)", match[1])]
    return AllColumns(tuple(part for part in parts if part != "1"), "1" not in parts)


def is_plain(name: str) -> bool:
    """Whether a column needs no backquotes: its name is made of letters, digits, dots and underscores."""
    return _PLAIN.fullmatch(name) is not None


def from_r(right: str) -> str:
    """A right side in the words of formulaic: columns with dots in backquotes, `**` for `^` within calls."""
    written: list[str] = []
    within: list[bool] = []  # for each open bracket, whether it is one of a call
    before = ""
    for found in _TOKEN.finditer(right):
        kind, text = str(found.lastgroup), found.group()
        if kind == "sign":
            if text in "([{":
                within.append(text == "{" or before == "call" or any(within[-1:]))
            elif text in ")]}" and within:
                within.pop()
            elif text in "|~":
                raise ConfigError(
                    "a formula has one target and one right side; leave out the second ~ and any |, and ask "
                    "for a random intercept of each site beside it (random_intercept, --random-intercept)"
                )
            elif text == "^" and any(within[-1:]):
                text = "**"
        elif kind == "call" and text in _INSTEAD:
            _refuse(text, _INSTEAD[text])
        elif kind == "call":
            text = _CALLS.get(text, text)
        elif kind == "name" and text == ".":
            _refuse(text, _DOT)
        elif kind == "name" and "." in text and _is_column(text, before):
            text = f"`{text}`"
        written.append(text)
        before = before if kind == "space" else text if text in ")]}" else kind
    return "".join(written)


def _is_column(text: str, before: str) -> bool:
    """Whether a name with dots is a column as R names them, not an attribute as Python has them."""
    follows = text.startswith(".") and before in (*")]}", "quoted", "text", "name", "number")
    return not follows and "__" not in text


def _refuse(word: str, instead: str) -> NoReturn:
    called = f"{word}()" if word != "." else repr(word)
    raise ConfigError(f"{called} cannot be used in a formula here; {instead}")


def refuse_target(left: str) -> None:
    """Refuse a left side that is no column, with what to do."""
    name = left.strip()
    quoted = name.startswith("`") and name.endswith("`") and name.count("`") == 2
    if not name or quoted or is_plain(name):
        return
    if name.startswith("cbind("):
        remedy = "name the column of successes here, and that of the trials in trials (--trials)"
    else:
        remedy = (
            "transform it beforehand, in a new column of every table, or put a name with blanks in backquotes"
        )
    raise ConfigError(f"the target {name!r} of the formula is not a column; {remedy}")
