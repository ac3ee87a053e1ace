"""When a claim holds: the ratio that each of its words means, for the paper's claims and for our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed.experiments.repeats import Amount, middle

SHARE = 1.25  # what counts as little
MUCH = 2.0


class Threshold(Struct, frozen=True):
    """The words of a claim, and between which bounds a ratio has to be for them to hold."""

    words: str
    means: str
    least: float = 0.0
    most: float = np.inf
    strict: bool = False  # more than the least, not as much
    every_seed: bool = False  # else the medians over the seeds decide

    def met(self, of: Sequence[Amount], over: Sequence[Amount]) -> bool:
        """Whether the ratio is within the bounds, whatever of it is not known."""
        pairs = zip(of, over, strict=True) if self.every_seed else [(middle(of), middle(over))]
        return all(self._holds(a.over(b)) for a, b in pairs)

    def _holds(self, ratio: Amount) -> bool:
        enough = ratio.least > self.least if self.strict else ratio.least >= self.least
        return enough and ratio.most <= self.most


NAMED = {
    "similar": Threshold("similar", "at most 25 % more or fewer", 1 / SHARE, SHARE),
    "slightly": Threshold("slightly", "better, by at most 25 %", 1.0, SHARE, strict=True),
    "hardly": Threshold("hardly hurt, keeps its speed, does not grow", "at most 25 % more", most=SHARE),
    "more": Threshold(
        "more, behind, beats", "more, by any amount, with every seed", 1.0, strict=True, every_seed=True
    ),
    "no less": Threshold("does not help, bounds, between", "no less, with every seed", 1.0, every_seed=True),
    "goal": Threshold("keeps a goal", "at most as much, the median", most=1.0),
    "much": Threshold(
        "much, large, largely, far, significantly", "at least 2 times, with every seed", MUCH, every_seed=True
    ),
}
_NUMBERS: dict[str, Callable[[float], Threshold]] = {
    "about": lambda n: Threshold("about N times", "at most 25 % more or less than N", n / SHARE, n * SHARE),
    "at least": lambda n: Threshold("at least N times", _LITERALLY, n, every_seed=True),
    "more than": lambda n: Threshold("more than N times", _LITERALLY, n, strict=True, every_seed=True),
    "at most": lambda n: Threshold("at most N times", _LITERALLY, most=n, every_seed=True),
}  # what is said with a number
_LITERALLY = "literally, with every seed"


def threshold(text: str) -> Threshold:
    """A threshold by its name; `about 2.5` and the like have a number."""
    if text in NAMED:
        return NAMED[text]
    word, _, number = text.rpartition(" ")
    if word not in _NUMBERS:
        raise ConfigError(f"unknown threshold {text!r}; known: {', '.join((*NAMED, *_NUMBERS))}")
    return _NUMBERS[word](float(number))


class Case(Struct, frozen=True):
    """One comparison that a claim is about: what was measured with each seed, and against what."""

    place: str
    count: str  # of what
    name: str
    of: tuple[Amount, ...]
    over: tuple[Amount, ...]
    by: str  # the threshold

    @property
    def met(self) -> bool:
        """Whether the words of the claim hold for it."""
        return threshold(self.by).met(self.of, self.over)

    @property
    def ratio(self) -> str:
        """The ratio of the medians, as far as it is known."""
        return ratio_in_words(middle(self.of).over(middle(self.over)))


def ratio_in_words(ratio: Amount) -> str:
    """A ratio to three digits, or what is known of it."""
    if ratio.known:
        return _short(ratio.least)
    if np.isinf(ratio.most):
        return f"more than {_short(ratio.least)}" if ratio.least else "not known"
    return f"less than {_short(ratio.most)}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def verdict(cases: Sequence[Case]) -> str:
    """In how many of its cases a claim holds."""
    met = sum(case.met for case in cases)
    if met == len(cases):
        return "**holds**"
    return f"**holds in {met} of {len(cases)}**" if met else "**does not hold**"


def decided_by(cases: Sequence[Case]) -> str:
    """The thresholds that decided, in words."""
    return "; ".join(dict.fromkeys(_stated(case.by) for case in cases))


def _stated(text: str) -> str:
    means = threshold(text).means
    if text in NAMED:
        return means if means.startswith(text) else f"{text}: {means}"
    return f"{text} times: {means.replace(' than N', '')}"


def table() -> str:
    """All thresholds, as Markdown."""
    numbered = [make(1.0) for make in _NUMBERS.values()]
    rows = [f"| {one.words} | {one.means} |" for one in (*NAMED.values(), *numbered)]
    return "\n".join(("| a claim says | and holds if the ratio is |", "|---|---|", *rows))
