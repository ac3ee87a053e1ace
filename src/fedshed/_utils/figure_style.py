"""One look for each algorithm, in every figure: a colour-blind safe colour, a marker, its fill, and a line.

Figures are drawn twice as wide as a column of 9 cm, with letters twice as large as they are read there.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.names import name_key

# Okabe and Ito, "Color Universal Design" (2008), without the yellow that is lost on white.
BLACK, GREY = "#000000", "#777777"
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE = "#D55E00", "#CC79A7"
PALETTE = (ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, GREY)

WIDTH = 7.1  # inches: two columns of 9 cm
STYLE: Any = {
    "font.size": 14, "axes.titlesize": 14, "axes.labelsize": 14, "legend.fontsize": 13,
    "xtick.labelsize": 13, "ytick.labelsize": 13, "legend.title_fontsize": 14, "figure.titlesize": 15,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


class Look(Struct, frozen=True):
    """How an algorithm is drawn."""

    color: str
    marker: str
    line: str = "-"
    hollow: bool = False

    def line_options(self) -> dict[str, Any]:
        """The keyword arguments of matplotlib's `plot`."""
        return {
            "color": self.color, "linestyle": self.line, "marker": self.marker,
            "markerfacecolor": "white" if self.hollow else self.color,
        }  # fmt: skip


LOOKS: dict[str, Look] = {
    "fib-shed": Look(BLUE, "o"),
    "gn-shed": Look(VERMILLION, "s"),
    "shed-periodic": Look(GREEN, "^"),
    "shed-ls": Look(SKY, "<"),
    "shed-ls-periodic": Look(ORANGE, ">"),
    "q-shed": Look(VERMILLION, "p", "--"),
    "q-shed-equal": Look(GREY, "p", "--"),
    "qn-shed": Look(ORANGE, "p"),
    "pen": Look(GREEN, "*"),
    "auto": Look(GREY, "*"),
    "shed-aggregate": Look(SKY, "h"),
    "mont-dec": Look(PURPLE, "v"),
    "newton": Look(BLACK, "D"),
    "newton-seldom": Look(PURPLE, "D", "--"),
    "giant": Look(ORANGE, "X", "-."),
    "giant-det": Look(VERMILLION, "P", "-."),
    "done": Look(GREEN, "d", "-."),
    "disco": Look(GREEN, "X", ":"),
    "fedns": Look(VERMILLION, "v", ":"),
    "fednl": Look(SKY, "H", "-."),
    "fednl-top-k": Look(BLUE, "H", "-."),
    "fednl-natural": Look(GREY, "H", "-."),
    "agd": Look(GREY, "+", ":"),
    "heavy-ball": Look(PURPLE, "x", ":"),
    "lbfgs": Look(BLACK, "^", ":"),
    "dane": Look(BLUE, "P", "-."),
    "scaffold": Look(SKY, "2", ":"),
    "fedavg": Look(PURPLE, "3", ":"),
    "fedprox": Look(ORANGE, "4", ":"),
    "lbfgs-coded": Look(BLUE, "^", ":"),
}


def look(name: str) -> Look:
    """The look of an algorithm, the same in every figure.

    A name that ends with `+` has the look of the name without it, with dashed lines and hollow markers.
    An unknown name gets a colour that depends on the name alone.
    """
    if name.endswith("+"):
        return replace(look(name.removesuffix("+")), line="--", hollow=True)
    return LOOKS.get(name) or Look(PALETTE[name_key(name) % len(PALETTE)], "8", "-.")


def variant(name: str) -> Look:
    """An algorithm with another parameter beside itself: its colour, marker and fill, with another line."""
    return replace(look(name), line=":" if look(name).line != ":" else "-.")
