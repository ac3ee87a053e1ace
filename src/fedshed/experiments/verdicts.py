"""When a claim holds: the ratio that each of its words means, for the paper's claims and for our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed.experiments.repeats import Amount, middle

LITTLE, MUCH, ALIKE = 1.25, 1.5, 2.0  # fixed before the runs that they judge
MET, UNMET, OPEN = "✓", "✗", "?"


class Threshold(Struct, frozen=True):
    """The words of a claim, and between which bounds a ratio has to be for them to hold."""

    words: str
    means: str
    least: float = 0.0
    most: float = np.inf
    strict: bool = False  # more than the least, not as much
    every_seed: bool = False  # else the medians over the seeds decide

    def met(self, of: Sequence[Amount], over: Sequence[Amount]) -> bool | None:
        """Whether the ratio is within the bounds; None if what is not known of it decides."""
        pairs = zip(of, over, strict=True) if self.every_seed else [(middle(of), middle(over))]
        found = [self._holds(a.over(b)) for a, b in pairs]
        if False in found:
            return False
        return None if None in found else True

    def _holds(self, ratio: Amount) -> bool | None:
        if self._enough(ratio.least) and ratio.most <= self.most:
            return True
        return None if self._enough(ratio.most) and ratio.least <= self.most else False

    def _enough(self, ratio: float) -> bool:
        return ratio > self.least if self.strict else ratio >= self.least


NAMED = {
    "similar": Threshold("similar, the same", "within a factor of 2", 1 / ALIKE, ALIKE),
    "slightly": Threshold("slightly", "better, by at most 25 %", 1.0, LITTLE, strict=True),
    "hardly": Threshold("keeps its speed, is not impacted, does not grow", "at most 25 % more", most=LITTLE),
    "not much": Threshold("not much, not notable", "at most 1.5 times", most=MUCH),
    "more": Threshold(
        "more, behind, faster, better", "more, by any amount, with every seed", 1.0, strict=True,
        every_seed=True,
    ),
    "no less": Threshold("does not help, bounds, between", "no less, with every seed", 1.0, every_seed=True),
    "goal": Threshold("keeps a goal", "at most as much, the median", most=1.0),
    "much": Threshold(
        "much, large, largely, major, significant", "at least 1.5 times, with every seed", MUCH,
        every_seed=True,
    ),
}  # fmt: skip
_NUMBERS: dict[str, Callable[[float], Threshold]] = {
    "about": lambda n: Threshold("about N times", "at most 25 % more or less than N", n / LITTLE, n * LITTLE),
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
    def met(self) -> bool | None:
        """Whether the words of the claim hold for it; None if a run was stopped too early to tell."""
        return threshold(self.by).met(self.of, self.over)

    @property
    def mark(self) -> str:
        """The answer in one sign."""
        return {True: MET, False: UNMET, None: OPEN}[self.met]

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


class Tally(Struct, frozen=True):
    """In how many of its cases a claim holds, in how many not, and in how many a capped run left it open."""

    met: int
    unmet: int
    open: int

    @property
    def verdict(self) -> str:
        """Undecided where the open cases could still change the verdict."""
        if self.met and self.unmet:
            return "holds partly"
        if self.open:
            return "undecided"
        return "does not hold" if self.unmet else "holds"

    def __str__(self) -> str:
        cases = self.met + self.unmet + self.open
        few = self.verdict in ("holds", "does not hold") or cases == 1
        return f"**{self.verdict}**" if few else f"**{self.verdict}** ({self.met} of {cases})"


def tally(cases: Sequence[Case]) -> Tally:
    """The answers of all cases, counted."""
    answers = [case.met for case in cases]
    return Tally(answers.count(True), answers.count(False), answers.count(None))


def verdict(cases: Sequence[Case]) -> str:
    """Whether a claim holds, and in how many of its cases."""
    return str(tally(cases))


def decided_by(cases: Sequence[Case]) -> str:
    """The thresholds that decided, in words."""
    return "; ".join(dict.fromkeys(_stated(case.by) for case in cases))


def _stated(text: str) -> str:
    means = threshold(text).means
    if text in NAMED:
        return means if means.startswith(text) else f"{text}: {means}"
    return f"{text} times: {means.replace(' than N', '')}"


def table(*but: str) -> str:
    """All thresholds but some, as Markdown."""
    numbered = [make(1.0) for make in _NUMBERS.values()]
    named = [one for name, one in NAMED.items() if name not in but]
    rows = [f"| {one.words} | {one.means} |" for one in (*named, *numbered)]
    return "\n".join(("| a claim says | and holds if the ratio is |", "|---|---|", *rows))
