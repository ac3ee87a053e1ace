"""One look for each algorithm, in every figure: a colour-blind safe colour, a marker and a line style."""

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
    "disco": Look(GREEN, "2", ":"),
    "fedns": Look(VERMILLION, "3", ":"),
    "fednl": Look(SKY, "H", "-."),
    "fednl-top-k": Look(BLUE, "H", "-."),
    "fednl-natural": Look(GREY, "H", "-."),
    "agd": Look(GREY, "+", ":"),
    "heavy-ball": Look(PURPLE, "x", ":"),
    "lbfgs": Look(BLACK, "1", ":"),
    "dane": Look(BLUE, "P", "-."),
    "scaffold": Look(SKY, "2", ":"),
    "fedavg": Look(PURPLE, "3", ":"),
    "fedprox": Look(ORANGE, "4", ":"),
    "lbfgs-coded": Look(BLUE, "1", ":"),
}


def look(name: str) -> Look:
    """The look of an algorithm; `+` is the same dashed and hollow, an unknown name always gets the same."""
    if name.endswith("+"):
        return replace(look(name.removesuffix("+")), line="--", hollow=True)
    return LOOKS.get(name) or Look(PALETTE[name_key(name) % len(PALETTE)], "8", "-.")
