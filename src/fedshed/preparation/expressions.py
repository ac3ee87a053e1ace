"""Which Python expressions a formula may hold; everything else is refused before it is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.preparation.calls import (
    LARGEST_POWER,
    SCALINGS,
    TRANSFORMS,
    Transform,
    is_number,
    is_transform,
    refuse,
    transform,
)

FUNCTIONS: dict[str, Any] = {
    "log": np.log, "log10": np.log10, "log2": np.log2, "log1p": np.log1p, "exp": np.exp, "exp2": np.exp2,
    "sqrt": np.sqrt, "I": np.asarray,
}  # fmt: skip
ORDER_DEPENDENT = ("lag", "hashed")
_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.Lt: np.less, ast.LtE: np.less_equal,
    ast.Eq: np.equal, ast.NotEq: np.not_equal,
}  # fmt: skip


@dataclass(frozen=True)
class Used:
    """The columns of a factor, whether it makes them categories or computes with them, and its transforms."""

    columns: tuple[str, ...] = ()
    category: bool = False
    arithmetic: bool = False
    transforms: tuple[Transform, ...] = ()


def check_factor(factor: Any) -> Used:
    """What one of formulaic's factors uses, if it may be evaluated at all."""
    method, text = factor.eval_method.value, factor.expr
    if method == "lookup":
        return Used((text,))
    if method == "literal":
        if text not in ("0", "1"):
            refuse(text, "a number alone is no term; only 0 and 1 stand for the intercept")
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
    calls = [node for node in ast.walk(tree) if is_transform(node)]
    found = tuple(transform(text, call, names) for call in calls if isinstance(call, ast.Call))
    whole = found and calls[0] is tree  # only as a whole may a term have several columns
    columns = _numeric(text, found[0].argument if whole else tree, names)
    if found and not columns:
        refuse(text, f"{found[0].function} needs a column")
    return Used(columns, arithmetic=True, transforms=found)


def values(node: ast.expr, names: Mapping[str, str], columns: Mapping[str, Any]) -> NDArray[np.float64]:
    """An expression that `check_expression` allows, and that holds no transform, in every row."""
    if isinstance(node, ast.Name):
        return np.asarray(columns[names.get(node.id, node.id)], dtype=np.float64)
    if isinstance(node, ast.UnaryOp) and not is_number(node):
        operand = values(node.operand, names, columns)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        left, right = (values(side, names, columns) for side in (node.left, node.right))
        return np.asarray(_ARITHMETIC[type(node.op)](left, right))
    if isinstance(node, ast.Compare):
        left, right = (values(side, names, columns) for side in (node.left, node.comparators[0]))
        return np.asarray(_COMPARISONS[type(node.ops[0])](left, right), dtype=np.float64)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return np.asarray(FUNCTIONS[node.func.id](values(node.args[0], names, columns)))
    return np.asarray(ast.literal_eval(node), dtype=np.float64)


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
    if is_number(node):
        return ()
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _numeric(text, node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        columns = _numeric(text, node.left, names) + _numeric(text, node.right, names)
        if isinstance(node.op, ast.Pow):
            _check_power(text, node, names)
        return columns
    if isinstance(node, ast.Compare):
        if len(node.ops) > 1 or type(node.ops[0]) not in _COMPARISONS:
            refuse(text, "a comparison is one of two numbers, such as I(x > 25)")
        return _numeric(text, node.left, names) + _numeric(text, node.comparators[0], names)
    if isinstance(node, ast.Call):
        return _numeric(text, _argument(text, node), names)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        refuse(text, "text is not allowed beside numbers; a column g of levels is written g or C(g)")
    if isinstance(node, ast.BinOp):
        refuse(text, "this operator is not allowed in a formula: use ** for powers")
    refuse(text, "this is not allowed in a formula: only columns, numbers, arithmetic and comparisons are")


def _argument(text: str, call: ast.Call) -> ast.expr:
    """The argument of a known function of one variable."""
    if not isinstance(call.func, ast.Name):
        refuse(text, "only plain functions may be called: no attributes, no methods")
    name = call.func.id
    if name in ORDER_DEPENDENT:
        refuse(text, f"{name} depends on the order or the values of a site's rows; compute it beforehand")
    if name not in SCALINGS and name in (*TRANSFORMS, "C"):
        refuse(text, f"{name} must be a separate term, not a part of an expression")
    if name not in (*FUNCTIONS, *SCALINGS):
        refuse(text, f"unknown function {name!r}{closest(name, (*FUNCTIONS, *TRANSFORMS, 'C'))}")
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        refuse(text, f"{name} takes one argument")
    return call.args[0]


def _check_power(text: str, node: ast.BinOp, names: Mapping[str, str]) -> None:
    """Refuse all powers except those of a column by a small number, which are quick to compute."""
    small = is_number(node.right) and abs(ast.literal_eval(node.right)) <= LARGEST_POWER
    if not small or not _numeric(text, node.left, names):
        refuse(text, f"a power is that of a column by a number from -{LARGEST_POWER} to {LARGEST_POWER}")


def _category(text: str, call: ast.Call, names: Mapping[str, str]) -> str:
    if len(call.args) != 1 or call.keywords or not isinstance(call.args[0], ast.Name):
        refuse(text, "C takes a column and nothing else; choose the reference level under references")
    name = call.args[0].id
    return names.get(name, name)
