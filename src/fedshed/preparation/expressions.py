"""Which Python expressions a formula may hold; everything else is refused before it is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest

FUNCTIONS = ("log", "log10", "log2", "log1p", "exp", "exp2", "sqrt", "I")
SPLINES = ("bs", "cs", "cr", "cc")
ROW_DEPENDENT = ("center", "scale", "standardize", "poly", "lag", "hashed")
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_MOST_KNOTS, _LARGEST_POWER = 100, 10


@dataclass(frozen=True)
class Used:
    """The columns of a factor, and whether it makes them categories or computes with them."""

    columns: tuple[str, ...] = ()
    category: bool = False
    arithmetic: bool = False


def check_factor(factor: Any) -> Used:
    """What one of formulaic's factors uses, if it may be evaluated at all."""
    method, text = factor.eval_method.value, factor.expr
    if method == "lookup":
        return Used((text,))
    if method == "literal":
        if text not in ("0", "1"):
            _refuse(text, "a number alone is no term; only 0 and 1 stand for the intercept")
        return Used()
    return check_expression(text)


def check_expression(text: str) -> Used:
    """What a Python expression uses, if it is made of columns, numbers, arithmetic and known functions."""
    code, names = _unquoted(text)
    try:
        return _used(text, ast.parse(code, mode="eval").body, names)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ConfigError(f"term {text[:100]!r} of the formula is not an expression: {error}") from error


def _used(text: str, tree: ast.expr, names: Mapping[str, str]) -> Used:
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "C":
        return Used((_category(text, tree, names),), category=True)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in SPLINES:
        return Used(_spline(text, tree, names), arithmetic=True)
    return Used(_numeric(text, tree, names), arithmetic=True)


def quoted(name: str) -> str:
    """A column as a formula names it."""
    return name if name.isidentifier() else f"`{name}`"


def _unquoted(text: str) -> tuple[str, Mapping[str, str]]:
    """The expression with identifiers in place of quoted columns, and what each stands for."""
    from formulaic.utils.code import sanitize_variable_names

    names: dict[str, str] = {}
    return sanitize_variable_names(text, {}, names), names


def _numeric(text: str, node: ast.expr, names: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of an expression that gives a number for each row."""
    if isinstance(node, ast.Name):
        return (names.get(node.id, node.id),)
    if _is_number(node):
        return ()
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _numeric(text, node.operand, names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        columns = _numeric(text, node.left, names) + _numeric(text, node.right, names)
        if isinstance(node.op, ast.Pow):
            _check_power(text, node, names)
        return columns
    if isinstance(node, ast.Call):
        return _numeric(text, _argument(text, node), names)
    what = (
        "use ** for powers" if isinstance(node, ast.BinOp) else "allowed are columns, numbers and arithmetic"
    )
    _refuse(text, f"{type(node).__name__} is not allowed in a formula: {what}")


def _argument(text: str, call: ast.Call) -> ast.expr:
    """The argument of a known function of one variable."""
    if not isinstance(call.func, ast.Name):
        _refuse(text, "only plain functions may be called: no attributes, no methods")
    name = call.func.id
    if name in ROW_DEPENDENT:
        _refuse(
            text,
            f"{name} depends on all rows, so each site would compute another; use standardize = true, or "
            "give the numbers: I((x - 50) / 10)",
        )
    if name in (*SPLINES, "C"):
        _refuse(text, f"{name} must stand alone, as a term of its own")
    if name not in FUNCTIONS:
        _refuse(text, f"unknown function {name!r}{closest(name, (*FUNCTIONS, *SPLINES, 'C'))}")
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        _refuse(text, f"{name} takes one argument")
    return call.args[0]


def _check_power(text: str, node: ast.BinOp, names: Mapping[str, str]) -> None:
    """A power of a column by a small number: one of numbers alone could take for ever."""
    small = _is_number(node.right) and abs(ast.literal_eval(node.right)) <= _LARGEST_POWER
    if not small or not _numeric(text, node.left, names):
        _refuse(text, f"a power is that of a column by a number from -{_LARGEST_POWER} to {_LARGEST_POWER}")


def _category(text: str, call: ast.Call, names: Mapping[str, str]) -> str:
    if len(call.args) != 1 or call.keywords or not isinstance(call.args[0], ast.Name):
        _refuse(text, "C takes a column and nothing else; choose the reference level under references")
    name = call.args[0].id
    return names.get(name, name)


def _spline(text: str, call: ast.Call, names: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a spline whose basis is given by numbers, so that every site has the same."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    fixed = {"knots", "lower_bound", "upper_bound"}
    if len(call.args) != 1 or not fixed <= set(given):
        _refuse(
            text,
            "its knots would come from each site's own rows; give them all: "
            "bs(x, knots=[30, 50], lower_bound=0, upper_bound=100)",
        )
    for name, value in given.items():
        if not _is_constant(name, value):
            _refuse(text, f"{name} must be given as plain numbers (or left out)")
    return _numeric(text, call.args[0], names)


def _is_constant(name: str | None, node: ast.expr) -> bool:
    if name == "knots":
        return (
            isinstance(node, ast.List | ast.Tuple)
            and len(node.elts) <= _MOST_KNOTS
            and all(map(_is_number, node.elts))
        )
    if name in ("lower_bound", "upper_bound"):
        return _is_number(node)
    if name == "degree":
        return isinstance(node, ast.Constant) and node.value in range(11)
    if name == "include_intercept":
        return isinstance(node, ast.Constant) and isinstance(node.value, bool)
    return name == "extrapolation" and isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _refuse(text: str, why: str) -> NoReturn:
    raise ConfigError(f"term {text!r} of the formula: {why}")
