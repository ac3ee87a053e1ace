"""A path of penalties with cross-validation: one model of all rows and one without each fold, side by side.

Each of these fits walks down the path by itself: every exchange brings loss, gradient and Hessian at the
point where it is, from which it takes the proximal Newton step (fedshed.algorithms.composite) of its penalty,
or, where its subgradient is below tol, of the next one.  The first step to a new penalty uses the
mean Hessian there, as those at the last penalties foretell it (Adams and Bashforth's weights).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, Error
from fedshed.algorithms.composite import least_subgradient, minimiser
from fedshed.linalg.arrays import Matrix, Vector, unpack
from fedshed.protocol.conversation import AgentId, Flow, Problem, answers_of, everyone
from fedshed.solve.folds import AskFolds, FoldAnswer, FoldSums

ALPHA, SMALLEST = 0.1, 2.0**-30  # of Armijo's condition, and the least step size
MOST_TRIES = 200  # points at one penalty
NEVER = 1e200  # a penalty beyond any slope: the coefficient stays 0
WEIGHTS = (1.0, 1 / 2, 5 / 12, 3 / 8)  # of backward differences (Adams and Bashforth)


class PathSettings(Struct, frozen=True):
    """Penalties lambda (l1_ratio |theta|_1 + (1 - l1_ratio) |theta|^2 / 2), times a factor a column."""

    factors: Vector  # 0: not penalised
    values: int = 100
    ratio: float = 1e-4  # of the smallest penalty and the largest
    l1_ratio: float = 1.0
    folds: int = 10  # 0: no cross-validation
    seed: int = 0
    tol: float = 1e-6
    penalties: tuple[float, ...] = ()  # in place of `values` and `ratio`

    def penalty(self, size: float) -> Penalty:
        """The penalty of size lambda."""
        return Penalty(size * self.l1_ratio * self.factors, size * (1 - self.l1_ratio) * self.factors)

    def grid(self, g: Vector) -> Vector:
        """Sizes from the smallest at which all penalised coefficients are 0, where the gradient is g."""
        if self.penalties:
            return np.array(sorted(self.penalties, reverse=True))
        penalised = self.factors > 0
        largest = float((np.abs(g[penalised]) / self.factors[penalised]).max()) / self.l1_ratio
        if not largest > 0:
            raise ConfigError(
                "no penalised column is related to the target, so there is no path; check the columns and "
                "the target"
            )
        return largest * np.geomspace(1.0, self.ratio, self.values)


class Penalty(Struct, frozen=True):
    """The penalties of each coefficient at one size."""

    l1: Vector
    l2: Vector

    def cost(self, theta: Vector) -> float:
        """l1'|theta| + theta' diag(l2) theta / 2."""
        return float(self.l1 @ np.abs(theta) + 0.5 * theta @ (self.l2 * theta))


class Place(Struct, frozen=True):
    """A point with the mean loss of the rows that stay, its derivatives, and the deviance of the others."""

    theta: Vector
    f: float
    g: Vector
    H: Matrix
    held: float
    held_weight: float


class Track(Struct, frozen=True):
    """One fit on its way down the path: where it is, which point it asks about, and what it has solved."""

    left_out: int
    trial: Vector
    at: int = 0  # the penalty it is about
    place: Place | None = None
    eta: float = 1.0
    tries: int = 0
    solved: tuple[Place, ...] = ()


class Walked(Struct, frozen=True):
    """The path: penalties, the largest first, and the places of the fit of all rows and of each fold."""

    penalties: Vector
    null: Place
    tracks: tuple[tuple[Place, ...], ...]


def walk(problem: Problem, settings: PathSettings) -> Flow[Walked]:
    """The path of all rows, and of all but each fold."""
    start = np.zeros(problem.n)
    tracks = [Track(k, start) for k in range(settings.folds + 1)]
    null = Penalty(np.where(settings.factors > 0, NEVER, 0.0), np.zeros(problem.n))
    tracks = yield from _solved(problem, settings, tracks, [null])
    first = [track.solved[0] for track in tracks]
    _check_folds(first)
    sizes = settings.grid(first[0].g)
    penalties = [settings.penalty(size) for size in sizes]
    tracks = [_next(Track(k, start, place=one), penalties, settings) for k, one in enumerate(first)]
    tracks = yield from _solved(problem, settings, tracks, penalties)
    return Walked(sizes, first[0], tuple(track.solved for track in tracks))


def _check_folds(first: Sequence[Place]) -> None:
    for k, place in enumerate(first[1:], 1):
        if place.held_weight <= 0:
            raise ConfigError(f"fold {k} of {len(first) - 1} has no rows; use fewer folds")


def _solved(
    problem: Problem, settings: PathSettings, tracks: list[Track], penalties: Sequence[Penalty]
) -> Flow[list[Track]]:
    """All fits at all penalties; those that are not there yet share each exchange."""
    while walking := [track for track in tracks if len(track.solved) < len(penalties)]:
        asked = AskFolds(
            np.array([track.trial for track in walking]), tuple(track.left_out for track in walking),
            settings.folds, settings.seed,
        )  # fmt: skip
        replies = yield from everyone([asked], problem)
        answers = answers_of(replies, FoldAnswer, AskFolds)
        for k, track in enumerate(walking):
            place = _place(track.trial, {i: answer.points[k] for i, answer in answers.items()})
            tracks[track.left_out] = _moved(track, place, penalties, settings)
    return tracks


def _place(theta: Vector, sites: Mapping[AgentId, FoldSums]) -> Place | None:
    """The means over all sites; None where one of them could not compute."""
    each = [sites[i] for i in sorted(sites)]
    W, n = sum(one.weight for one in each), len(theta)
    if not W > 0:
        raise ConfigError(
            "a fold has all rows of all sites, so none is left to fit; give more rows or more clusters"
        )
    f, g, packed = 0.0, np.zeros(n), np.zeros(n * (n + 1) // 2)
    for one in each:
        if one.loss is None:
            return None
        f, g, packed = f + one.loss / W, g + one.gradient / W, packed + one.hessian / W
    held, weight = sum(one.held for one in each), sum(one.held_weight for one in each)
    return Place(theta, f, g, unpack(packed, n), held, weight)


def _moved(track: Track, place: Place | None, penalties: Sequence[Penalty], settings: PathSettings) -> Track:
    """The track after what was said at its trial: moved there, or with a shorter step."""
    if track.tries >= MOST_TRIES:
        raise Error(_stuck(track, settings))
    track = replace(track, tries=track.tries + 1)
    old = track.place
    if place is None or (old is not None and not _lower(track, old, place, penalties[track.at])):
        if old is None or track.eta < SMALLEST:
            raise Error(_stuck(track, settings))
        half = old.theta + (track.trial - old.theta) / 2
        return replace(track, eta=track.eta / 2, trial=half)
    return _next(replace(track, place=place), penalties, settings)


def _stuck(track: Track, settings: PathSettings) -> str:
    fit = f"the fit without fold {track.left_out}" if track.left_out else "the fit of all rows"
    return (
        f"{fit} does not reach tol = {settings.tol:g} at penalty {track.at + 1} of the path; standardise the "
        "columns, raise tol, or end the path earlier (ratio)"
    )


def _lower(track: Track, old: Place, new: Place, penalty: Penalty) -> bool:
    """Armijo's condition on the penalised cost, from the last place to this one."""
    d = new.theta - old.theta
    before, after = penalty.cost(old.theta), penalty.cost(new.theta)
    full = old.theta + d / track.eta
    promised = float(old.g @ d) / track.eta + penalty.cost(full) - before
    slack = 16 * np.finfo(float).eps * max(1.0, abs(old.f) + before)
    return bool(new.f + after <= old.f + before + ALPHA * track.eta * min(promised, 0.0) + slack)


def _next(track: Track, penalties: Sequence[Penalty], settings: PathSettings) -> Track:
    """The track with its next trial: of this penalty, or of the first that is not solved at its place."""
    place = track.place
    assert place is not None
    solved, before = track.solved, len(track.solved)
    while len(solved) < len(penalties) and _off(place, penalties[len(solved)]) <= settings.tol:
        solved = (*solved, place)
    if len(solved) == len(penalties):
        return replace(track, solved=solved)
    at, penalty = len(solved), penalties[len(solved)]
    H = _foretold(solved) if len(solved) > before else place.H
    trial = minimiser(H + np.diag(penalty.l2), place.g + penalty.l2 * place.theta, place.theta, penalty.l1)
    tries = track.tries if at == track.at else 0
    return replace(track, at=at, trial=trial, eta=1.0, solved=solved, tries=tries)


def _off(place: Place, penalty: Penalty) -> float:
    """The norm of the subgradient of least norm."""
    g = place.g + penalty.l2 * place.theta
    return float(np.linalg.norm(least_subgradient(place.theta, g, penalty.l1)))


def _foretold(solved: Sequence[Place]) -> Matrix:
    """The mean Hessian on the way to the next solution, from those at the last; positive semidefinite."""
    last = [place.H for place in solved[-len(WEIGHTS) :]][::-1]
    H = np.zeros_like(last[0])
    for weight in WEIGHTS[: len(last)]:
        H, last = H + weight * last[0], [a - b for a, b in pairwise(last)]
    least = float(np.linalg.eigvalsh(H)[0])
    return H if least >= 0 else np.asarray(solved[-1].H)
