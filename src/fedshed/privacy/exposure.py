"""What a Master that follows the protocol could learn about a site's single rows, from a measured table.

`python -m benchmarks attacks --exposure` measures MEASURED again: honest logistic fits of three simulated
sites with standard normal columns, l2 = 1e-3, inspection at the estimate included.  A number is the share of
the variance of the most exposed row that is explained by all that its site told, each number known to 1e-8
(the Gauss-Newton information), as the median over three seeds; 1 means that the row is known.  Rows with
unusual values are more exposed than normal ones, and columns with few values more than those with many.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Level: TypeAlias = Literal["high", "moderate", "low"]
Family: TypeAlias = Literal["whole Hessians", "eigenpairs", "gradients"]

# By rows and columns of the design, the intercept included.
MEASURED: dict[Family, dict[int, dict[int, float]]] = {
    "whole Hessians": {
        30: {6: 0.99},
        110: {6: 0.98, 12: 0.98},
        300: {6: 0.54, 12: 0.84, 30: 0.97},
        1000: {6: 0.73, 12: 0.65, 30: 0.84},
    },
    "eigenpairs": {
        30: {6: 0.92},
        110: {6: 0.78, 12: 0.66},
        300: {6: 0.38, 12: 0.41, 30: 0.35},
        1000: {6: 0.32, 12: 0.20, 30: 0.15},
    },
    "gradients": {
        30: {6: 0.82},
        110: {6: 0.61, 12: 0.41},
        300: {6: 0.29, 12: 0.30, 30: 0.21},
        1000: {6: 0.28, 12: 0.12, 30: 0.08},
    },
}
# Rows that were reconstructed to a relative error of 1e-4 from an honest Newton fit, and of how many: with
# 10 rows and 5 columns, and with 30 rows and 6 columns with heavy tails (`python -m benchmarks attacks`).
RECONSTRUCTED = {(10, 5): 10, (30, 6): 30}
HIGH, MODERATE = 0.9, 0.3  # the least shares of these levels

_EIGENPAIRS = ("shed-ls", "shed-ls-periodic", "shed-periodic", "fib-shed", "gn-shed", "shed-aggregate")
_LEARNT = ("fednl", "fednl-top-k", "fednl-natural", "fedns", "pen")
_HESSIANS = ("newton", "newton-seldom", *_LEARNT, "auto")  # or what amounts to them
_FIRST_ORDER = ("agd", "heavy-ball", "dane", "fedavg", "fedprox", "scaffold")
_GRADIENTS = ("lbfgs", "lbfgs-coded", "giant", "giant-det", "done", "disco", *_FIRST_ORDER)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys((*_EIGENPAIRS, "mont-dec", "q-shed", "q-shed-equal", "qn-shed"), "eigenpairs"),
    **dict.fromkeys(_GRADIENTS, "gradients"),
    **dict.fromkeys(_HESSIANS, "whole Hessians"),
}


class Exposure(Struct, frozen=True):
    """How exposed the rows of a site are in a fit, in plain words.

    Attributes
    ----------
    level : str
        "high", "moderate" or "low".
    sentence : str
        What a curious Master could learn.
    recommendation : str
        What the site can do about it.
    """

    level: Level
    sentence: str
    recommendation: str


def exposure(rows: int, columns: int, algorithm: str, held: int = 0) -> Exposure:
    """How exposed the rows of a site are to a Master that follows the protocol but is curious.

    Parameters
    ----------
    rows : int
        Rows of the site.
    columns : int
        Columns of the design, the intercept included.
    algorithm : str
        The name of the algorithm; one that is not known counts as one that sends whole Hessians.
    held : int
        Rows that are held out and evaluated.

    Returns
    -------
    Exposure
        Its level, and sentences for whoever decides.

    Examples
    --------
    >>> from fedshed.privacy.exposure import exposure
    >>> exposure(30, 6, "newton").level, exposure(1000, 12, "lbfgs").level
    ('high', 'low')
    """
    family = FAMILIES.get(algorithm.removesuffix("+"), "whole Hessians")
    share = explained(rows, columns, family)
    level = _level(share)
    where = f"At {rows} rows and {columns} columns a Master that follows the protocol but is curious"
    sentence = (
        f"{where} {_LEARNS[level]} a fit by {algorithm}: {_measured(share)}{_reconstructed(rows, family)}"
    )
    sentence += _evaluated(held)
    return Exposure(level, sentence, _recommendation(rows, columns, family, level))


def _evaluated(held: int) -> str:
    """What an evaluation tells of the rows held out."""
    if not held:
        return ""
    return (
        f" Of the {held} rows held out only sums over all of them leave, and counts by score and class that "
        "the policy's least number of rows has; no gradient of them leaves."
    )


def explained(rows: int, columns: int, family: Family) -> float:
    """The measured share at the next smaller number of rows; of two numbers of columns, the larger share."""
    table = MEASURED[family]
    cells = table[max((size for size in table if size <= rows), default=min(table))]
    below = max((n for n in cells if n <= columns), default=min(cells))
    above = min((n for n in cells if n >= columns), default=max(cells))
    return max(cells[below], cells[above])


def _level(share: float) -> Level:
    return "high" if share >= HIGH else "moderate" if share >= MODERATE else "low"


_LEARNS: dict[Level, str] = {
    "high": "could reconstruct single rows from",
    "moderate": "could narrow down the values of unusual rows from",
    "low": "could learn little about single rows from",
}


def _measured(share: float) -> str:
    return (
        f"in simulations of about this size, what a site tells explains {share:.0%} of the variance of its "
        "most exposed row (rows with unusual values are more exposed)."
    )


def _reconstructed(rows: int, family: Family) -> str:
    """Where whole sites of this size were reconstructed, that they were."""
    fitting = [size for size in RECONSTRUCTED if size[0] >= rows]
    if family != "whole Hessians" or not fitting:
        return ""
    size, columns = min(fitting)
    found = RECONSTRUCTED[size, columns]
    return f" At {size} rows and {columns} columns {found} of {size} rows were reconstructed to four digits."


def _recommendation(rows: int, columns: int, family: Family, level: Level) -> str:
    """What lowers the exposure, as far as plain mode can."""
    if level == "low":
        return "The algorithm can stay as it is."
    other = _level(explained(rows, columns, "gradients"))
    if family != "gradients" and explained(rows, columns, "gradients") < explained(rows, columns, family):
        return f'Recommended: ask for algorithm = "lbfgs" ({other} at this size), or do not take part.'
    return (
        "Recommended: take part only if you trust the Master with single rows; more rows lower the exposure."
    )
