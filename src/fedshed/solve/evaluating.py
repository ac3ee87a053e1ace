"""The conversation in which a model is evaluated on rows that stay at their sites.

First sums over rows (losses, errors, scores); from these a grid of scores follows, on which the rows of two
classes are counted, and the model without columns; at last a few Newton steps for the line a + b s that
recalibrates the log odds s over all sites, and for a alone with b = 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta, Struct

from fedshed._utils.errors import ProtocolError
from fedshed.exchange.wire import SilenceError
from fedshed.linalg.arrays import Scalars, Vector
from fedshed.objectives import family_of
from fedshed.objectives.ranking import edges_of
from fedshed.objectives.scored import LARGEST, Scored, covariance_of, newton
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, answers_of, everyone
from fedshed.protocol.limits import MOST_LINES, MOST_STEPS, Count
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import FINE, MAYBE, NOTHING, TOTAL, Rule
from fedshed.solve.evaluation_checks import impossible_line_sums, impossible_sums, other_rows

BINS = 1000  # of the scores
GROUPS = 10  # of a calibration curve
MOST_BINS = 4096
POINTS = 2 + MOST_LINES  # that an evaluation may ask about: theta, a grid of scores, and the lines
ROWS_A_BIN = 10  # on average, where bins cannot be merged at the sites


class Evaluate(Message, frozen=True):
    """Asks for sums over rows at theta; with `alone`, for each site's own line of recalibration too."""

    theta: Vector
    alone: bool = True


class Evaluated(Message, frozen=True):
    """Rows and sums of a site (`objectives.scored`)."""

    rows: Count
    weight: float
    sums: Scalars
    squares: Scalars
    moments: Scalars
    confusion: Scalars | None = None  # of several classes
    line: Scalars | None = None  # a, b, Vaa, Vab and Vbb of this site
    hits: float | None = None  # of several classes: the weight of rows whose class was predicted

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "rows": TOTAL, "weight": FINE, "sums": FINE, "squares": FINE, "moments": FINE, "confusion": FINE,
        "line": NOTHING, "hits": MAYBE,
    }  # fmt: skip


class Tabulate(Message, frozen=True):
    """Asks for counts of rows on a grid of scores, and for the model without columns.

    `grid` is centre, scale and the score that tells two classes apart; without it, nothing is counted.  With
    0 `bins` each score is a bin, which only a site without a policy answers.  `levels` are the intercepts of
    the model without columns, `mean` that of all responses.
    """

    theta: Vector
    grid: Scalars | None
    bins: Annotated[int, Meta(ge=0, le=MOST_BINS)]
    levels: Scalars
    mean: float
    alone: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid is not None and (len(self.grid) != 3 or self.grid[1] < 0):
            raise ValueError("a grid is a centre, a scale and a cut")


class Tabulated(Message, frozen=True):
    """Counts on the grid: the weight of each class by bin, or by block of bins, with the ends of blocks.

    `pairs` are the concordant pairs within the site and `variance` that of their share; `groups` has weight,
    events and sum of probabilities of each group of a calibration curve, row after row.
    """

    loss: float  # of the model without columns
    squares: float  # sum w (y - mean)^2
    pairs: float = 0.0
    products: float = 0.0  # all pairs within the site
    positive: Scalars | None = None
    negative: Scalars | None = None
    groups: Scalars | None = None
    variance: Scalars | None = None  # one number, if it is known
    positive_ends: Scalars | None = None  # or the scores, where each is a bin
    negative_ends: Scalars | None = None
    group_ends: Scalars | None = None

    adds: ClassVar[Mapping[str, Rule] | None] = {
        **dict.fromkeys(("loss", "squares", "pairs", "products", "positive", "negative", "groups"), FINE),
        **dict.fromkeys(("variance", "positive_ends", "negative_ends", "group_ends"), NOTHING),
    }


class Recalibrate(Message, frozen=True):
    """Asks for score and information of the recalibration by a + b s."""

    theta: Vector
    line: Scalars


class Recalibrated(Message, frozen=True):
    """Five sums over rows."""

    sums: Scalars

    adds: ClassVar[Mapping[str, Rule] | None] = {"sums": FINE}


class Told(Struct, frozen=True):
    """What all sites said in an evaluation."""

    sums: dict[AgentId, Evaluated]
    tables: dict[AgentId, Tabulated]
    grid: tuple[float, float, float] | None
    bins: int
    line: tuple[float, ...] | None  # a, b, Vaa, Vab and Vbb over all sites
    level: tuple[float, float] | None = None  # a with b = 1, and its variance


class Evaluating(Conversation, frozen=True, tag=True):
    """Two exchanges, and of two classes a few more for the recalibration."""

    messages: ClassVar[tuple[type[Message], ...]] = (
        Evaluate, Evaluated, Tabulate, Tabulated, Recalibrate, Recalibrated
    )  # fmt: skip
    requests = ((Evaluate, None), (Tabulate, None), (Recalibrate, None))

    def flow(
        self, problem: Problem, theta: Vector, bins: int = BINS, cut: float = 0.0, alone: bool = True
    ) -> Flow[Told]:
        """Everything at theta; `alone` is False where answers are sums over all sites."""
        replies = yield from everyone([Evaluate(theta, alone)], problem)
        sums = answers_of(replies, Evaluated, Evaluate)
        two = family_of(problem.loss).classes == "two"
        usual = _usual_length(sums)
        for site, answer in sums.items():
            other = "sums of another length" if len(answer.moments) != usual else None
            _believe(site, other or impossible_sums(answer, family_of(problem.loss)))
        if not alone:
            bins = min(bins, max(2 * GROUPS, sum(one.rows for one in sums.values()) // ROWS_A_BIN))
        asked = _tabulate(problem, theta, sums, bins, cut, alone)
        replies = yield from everyone([asked], problem)
        tables = answers_of(replies, Tabulated, Tabulate)
        for site, table in tables.items():
            _believe(site, other_rows(table, sums[site], two, alone))
        weights = {site: answer.weight for site, answer in sums.items()}
        line, level = None, None
        if two:
            line, level = yield from self._recalibration(problem, theta, weights, alone)
        grid = None if asked.grid is None else (float(asked.grid[0]), float(asked.grid[1]), cut)
        return Told(sums, tables, grid, bins, line, level)

    def _recalibration(
        self, problem: Problem, theta: Vector, weights: Mapping[AgentId, float], alone: bool
    ) -> Flow[tuple[tuple[float, ...] | None, tuple[float, float] | None]]:
        """a and b, then a alone with b = 1, None if a site refuses it; both start at a = 0 and b = 1."""
        ask = partial(self._line_sums, problem, theta, weights)
        first = yield from ask(np.array([0.0, 1.0]))
        line = yield from _line(ask, first)
        try:
            level = yield from _level(ask, first)
        except SilenceError:
            if not alone:  # sums over all sites end with the first that is missing
                raise
            level = None
        return line, level

    def _line_sums(
        self, problem: Problem, theta: Vector, weights: Mapping[AgentId, float], line: Vector
    ) -> Flow[Scalars]:
        """Score and information of the recalibration at a line, over all sites."""
        replies = yield from everyone([Recalibrate(theta, line)], problem)
        answers = answers_of(replies, Recalibrated, Recalibrate)
        for site, answer in answers.items():
            _believe(site, impossible_line_sums(answer.sums, weights[site]))
        return np.asarray(np.sum([answers[site].sums for site in sorted(answers)], axis=0))

    def respond(self, agent: Agent, cache: None, part: Any, own_part: Any) -> tuple[None, Message]:
        """This site's sums, counts, or score of the recalibration."""
        rows = agent.objective.scored(part.theta)
        if isinstance(part, Evaluate):
            return None, _evaluated(rows, part.alone)
        if isinstance(part, Tabulate):
            return None, _tabulated(rows, part)
        return None, Recalibrated(rows.recalibrated(part.line))

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """Counts that do not fit the grid, or that no rows have."""
        if isinstance(answer, Recalibrated):
            return None if len(answer.sums) == 5 else "a recalibration has five sums"
        if not isinstance(answer, Tabulated) or not isinstance(part, Tabulate) or part.grid is None:
            return None
        return _impossible(part, part.grid, answer)


def _line(ask: Callable[[Vector], Flow[Scalars]], sums: Scalars) -> Flow[tuple[float, ...] | None]:
    """The line that recalibrates the scores of all sites, by Newton's steps on sums."""
    line = np.array([0.0, 1.0])
    for count in range(MOST_STEPS):
        sums = (yield from ask(line)) if count else sums
        step, covariance = newton(sums), covariance_of(sums)
        if step is None or covariance is None or np.abs(line + step).max() > LARGEST:
            return None
        line = line + step
        if np.abs(step).max() <= 1e-8 * max(1.0, float(np.abs(line).max())):
            return *line.tolist(), *covariance.tolist()
    return None


def _level(ask: Callable[[Vector], Flow[Scalars]], sums: Scalars) -> Flow[tuple[float, float] | None]:
    """The a of P(y = 1) = expit(a + s) with its variance, by Newton's steps on the same sums."""
    a = 0.0
    for count in range(MOST_STEPS):
        sums = (yield from ask(np.array([a, 1.0]))) if count else sums
        step = float(np.clip(sums[0] / sums[2], -2.0, 2.0)) if sums[2] > 0 else np.inf
        if abs(a + step) > LARGEST:
            return None
        a += step
        if abs(step) <= 1e-8 * max(1.0, abs(a)):
            return a, float(1.0 / sums[2])
    return None


def _believe(site: AgentId, why: str | None) -> None:
    """Refuse a site's answer that no rows have."""
    if why is not None:
        raise ProtocolError(f"site {site!r} sent {why} in an evaluation; check its table and its software")


def _usual_length(sums: Mapping[AgentId, Evaluated]) -> int:
    """The length of most sites' moments."""
    return Counter(len(sums[site].moments) for site in sorted(sums)).most_common(1)[0][0]


def _tabulate(
    problem: Problem, theta: Vector, sums: Mapping[AgentId, Evaluated], bins: int, cut: float, alone: bool
) -> Tabulate:
    """What is asked next: the grid around the mean score of all rows, and the model without columns."""
    family, agents = family_of(problem.loss), sorted(sums)
    weight = sum(sums[i].weight for i in agents)
    moments = np.sum([sums[i].moments for i in agents], axis=0)
    number = family.classes == "none"
    levels = family.objective.null_levels(moments[:-1] if number else moments)
    mean = float(moments[-1]) / weight if number else 0.0
    if family.classes != "two":
        return Tabulate(theta, None, 0, levels, mean, alone)
    centre = sum(float(sums[i].sums[-1]) for i in agents) / weight
    second = sum(float(sums[i].squares[-1]) for i in agents) / weight
    scale = float(np.sqrt(max(0.0, second - centre * centre)))
    return Tabulate(theta, np.array([centre, scale, cut]), bins, levels, mean, alone)


def _evaluated(rows: Scored, alone: bool) -> Evaluated:
    sums, squares = rows.sums()
    if rows.kind == "many":
        cells = rows.confusion()
        return Evaluated(rows.rows, rows.weight, sums, squares, rows.moments(), cells, None, rows.hits())
    line = rows.line() if alone and rows.kind == "two" else None
    return Evaluated(rows.rows, rows.weight, sums, squares, rows.moments(), None, line)


def _tabulated(rows: Scored, asked: Tabulate) -> Tabulated:
    loss, squares = rows.without_columns(asked.levels, asked.mean)
    if asked.grid is None or rows.kind != "two":
        return Tabulated(loss, squares)
    centre, scale, cut = asked.grid.tolist()
    pairs, variance = rows.pairs()
    ups = rows.events
    known = None if variance is None or not asked.alone else np.array([variance])
    groups = rows.groups(edges_of(centre, scale, GROUPS))
    within = loss, squares, pairs, ups * (rows.weight - ups)
    shown = None if groups is None else groups[0].ravel()
    group_ends = None if groups is None else groups[1]
    if asked.bins == 0:
        if rows.least > 1:
            raise ValueError("the policy of this site releases no single score; ask for bins (bins, --bins)")
        scores, positive, negative = rows.by_score()
        return Tabulated(*within, positive, negative, shown, known, scores, scores, group_ends)
    (positive, ends), (negative, other) = rows.by_bin(edges_of(centre, scale, asked.bins, cut), cut)
    return Tabulated(*within, positive, negative, shown, known, ends, other, group_ends)


def _impossible(asked: Tabulate, grid: Scalars, answer: Tabulated) -> str | None:
    """Why no site can have these counts, if none can."""
    centre, scale, cut = grid.tolist()
    bins = len(edges_of(centre, scale, asked.bins, cut)) + 1 if asked.bins else None
    for counts, ends in (
        (answer.positive, answer.positive_ends), (answer.negative, answer.negative_ends)
    ):  # fmt: skip
        if counts is None or counts.min(initial=0.0) < 0:
            return "counts of an evaluation are missing or negative"
        if bins is None:
            if ends is None or len(ends) != len(counts) or (np.diff(ends) <= 0).any():
                return "scores do not increase, or are not as many as their counts"
        elif ends is None and len(counts) != bins:
            return f"{len(counts)} counts for {bins} bins"
        elif ends is not None and not _are_ends(ends, len(counts), bins):
            return "the ends of blocks are not those of a grid"
    if answer.variance is not None and (len(answer.variance) != 1 or answer.variance[0] < 0):
        return "a variance is one number of at least 0"
    if not 0 <= answer.pairs <= answer.products * (1 + 1e-9):
        return "more concordant pairs than pairs"
    if answer.groups is None:
        return None
    count = len(edges_of(centre, scale, GROUPS)) + 1
    groups = len(answer.groups) // 3
    if answer.group_ends is None:
        return None if len(answer.groups) == 3 * count else "groups of another number"
    return (
        None if _are_ends(answer.group_ends, groups, count) else "the ends of groups are not those asked for"
    )


def _are_ends(ends: Scalars, count: int, bins: int) -> bool:
    """Whether these are increasing whole numbers, one for each of `count` blocks, up to the last bin."""
    if not len(ends) == count > 0 or not np.array_equal(ends, np.round(ends)):
        return False
    return bool(ends[0] >= 1 and ends[-1] == bins and (np.diff(ends) > 0).all())
