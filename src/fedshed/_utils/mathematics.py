"""Mathematics in figures and pages: powers of ten, and formulas between dollars in plain letters."""

from __future__ import annotations

import re
from math import floor, log10

_NUMBER = re.compile(r"(?<![\w.$^{])(\d+(?:\.\d+)?)e([+-]?\d+)(?![\w.])")
_EQUATION = re.compile(r"(?<![\w$])(l2|n) = (\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.])")
_NAMES = {"l2": r"\ell_2", "n": "n"}
_FORMULA = re.compile(r"\$(.+?)\$")
_RAISED = str.maketrans("0123456789-+n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ")
_LETTERS = {
    "mu": "μ", "rho": "ρ", "eta": "η", "theta": "θ", "lambda": "λ", "gamma": "γ", "star": "*", "times": "×",
    "ell": "ℓ", "in": "∈", "to": "→", "leq": "≤", "geq": "≥", "mathbb{R}": "R", "mathcal{S}": "S",
    "bar{a}": "ā", "hat{H}": "Ĥ", "Vert": "‖", ",": " ", " ": " ",
}  # fmt: skip


def tex(number: float) -> str:
    """A number in TeX, to two digits: 10^{-5}, 2 \\times 10^{-3}; as it is between 0.01 and 1000."""
    if number == 0 or 0.01 <= abs(number) < 1000:
        return f"{number:.2g}" if abs(number) < 1 else f"{number:g}"
    power = floor(log10(abs(number)) + 1e-9)
    factor = f"{number / 10.0**power:.2g}"
    return f"10^{{{power}}}" if factor == "1" else rf"{factor} \times 10^{{{power}}}"


def typeset(text: str) -> str:
    """A text whose `l2 = 1e-05`, `n = 64` and numbers such as 1e-05 are formulas, for figures and pages."""
    text = _EQUATION.sub(lambda found: f"${_NAMES[found[1]]} = {tex(float(found[2]))}$", text)
    return _NUMBER.sub(lambda found: f"${tex(float(found[0]))}$", text)


def plain(text: str) -> str:
    """A text with its formulas in plain letters, for terminals and file formats without mathematics."""
    return _FORMULA.sub(lambda found: _plain_formula(found[1]), text)


def _plain_formula(formula: str) -> str:
    for name, letter in _LETTERS.items():
        formula = re.sub(rf"\\{re.escape(name)}(?![a-z])", letter, formula)
    formula = re.sub(r"\^\{?(-?[0-9n]+)\}?", lambda found: found[1].translate(_RAISED), formula)
    formula = re.sub(r"\^\{?\*\}?", "*", formula)
    return re.sub(r"_\{([^{}]+)\}", lambda found: f"_{_bracketed(found[1])}", formula)


def _bracketed(index: str) -> str:
    return index if index.isalnum() else f"({index})"
