"""Rows with the scores that a model gives them: the sums and counts by which a model is evaluated."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.objectives.ranking import bin_of, concordance, ends_beside, summed

if TYPE_CHECKING:
    from fedshed.objectives.base import LinearModel
    from fedshed.objectives.family import Family

Kind: TypeAlias = Literal["two", "many", "number"]
MOST_STEPS = 50
LARGEST = 1e6  # of a slope: beyond it the classes are separated
TINY = 1e-300


def family_for(model: LinearModel) -> Family:
    """The first family with this objective; a quasi-family has the same mean."""
    from fedshed.objectives.families import FAMILIES

    families = FAMILIES.values()
    exact = [family for family in families if family.objective is type(model)]
    return (exact or [family for family in families if isinstance(model, family.objective)])[0]


class Scored:
    """The rows of a model at one theta; no method returns a number of a single row."""

    def __init__(
        self, model: LinearModel, z: NDArray[np.float64], probabilities: Matrix | None = None
    ) -> None:
        """Rows with these margins; probabilities of several classes, where margins do not tell them."""
        self._model, self._z, self._family = model, z, family_for(model)
        self._probabilities = probabilities
        self._w = np.ones(len(model.y)) if model.weights is None else model.weights

    @property
    def kind(self) -> Kind:
        """Two classes, several, or numbers."""
        kinds: dict[str, Kind] = {"two": "two", "many": "many", "ordered": "many", "none": "number"}
        return kinds[self._family.classes]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._model.y)

    @property
    def weight(self) -> float:
        """Their weight."""
        return float(self._w.sum())

    @property
    def events(self) -> float:
        """The weight of the rows of the second of two classes."""
        return float(self._w[self._yes].sum())

    @property
    def least(self) -> int:
        """Rows that each released cell must have."""
        return self._model.least

    @cached_property
    def _mean(self) -> NDArray[np.float64]:
        """The mean of each row; of several classes their probabilities."""
        if self.kind == "many":
            given = self._probabilities
            return self._model.probabilities(self._z) if given is None else given
        return np.asarray(self._family.mean(self._z))

    @cached_property
    def _yes(self) -> NDArray[np.bool_]:
        return np.asarray(self._model.y > 0)

    @cached_property
    def _errors(self) -> Vector:
        """y - mu."""
        y = self._yes.astype(np.float64) if self.kind == "two" else self._model.y
        return np.asarray(y - self._mean)

    def _values(self) -> Matrix:
        """What is averaged over rows: loss, squared error, |error|, error and score.

        The loss of a number is half its deviance.  Of several classes: loss and Brier score.
        """
        model, z = self._model, self._z
        if self.kind == "many":
            p, rows = self._mean, np.arange(self.rows)
            brier = np.square(p).sum(axis=1) - 2 * p[rows, model.y] + 1
            return np.stack([model.losses(z), brier])
        losses = model.losses(z) if self.kind == "two" else model.excess(z)
        return np.stack([losses, np.square(self._errors), np.abs(self._errors), self._errors, z])

    def sums(self) -> tuple[Scalars, Scalars]:
        """The weighted sums of these values, and of their squares."""
        values = self._values()
        return values @ self._w, np.square(values) @ self._w

    def moments(self) -> Scalars:
        """Sums from which the model without columns follows, and that of the response, if it is a number."""
        own = self._model.null_moments()
        return np.append(own, self._model.total(self._model.y)) if self.kind == "number" else own

    def without_columns(self, levels: Vector, mean: float) -> tuple[float, float]:
        """The loss of the model without columns, and sum w (y - mean)^2, where y is a number."""
        null = self._model.null()
        z = null.margins(levels)
        if self.kind != "number":
            return null.total(null.losses(z)), 0.0
        return null.total(null.excess(z)), null.total(np.square(self._model.y - mean))

    def hits(self) -> float | None:
        """The weight of rows whose class was predicted; None if too few rows were, or were not."""
        hit = self._mean.argmax(axis=1) == self._model.y
        few = any(0 < count < self.least for count in (int(hit.sum()), int((~hit).sum())))
        return None if few else float(self._w[hit].sum())

    def confusion(self) -> Scalars | None:
        """The weight of each actual and predicted class, row after row; None if a cell has too few rows."""
        classes = self._mean.shape[1]
        cells = self._model.y * classes + self._mean.argmax(axis=1)
        counts = np.bincount(cells, minlength=classes**2)
        if ((counts > 0) & (counts < self.least)).any():
            return None
        return np.bincount(cells, self._w, minlength=classes**2).astype(np.float64)

    def pairs(self) -> tuple[float, float | None]:
        """Concordant pairs of this site's rows, exactly, and the variance of their share."""
        _, positive, negative = self.by_score()
        return concordance(positive, negative)

    def by_score(self) -> tuple[Vector, Vector, Vector]:
        """Every different score, and the weight of each class there."""
        scores, place = np.unique(self._z, return_inverse=True)
        positive, negative = (_sums(place, self._w * side, len(scores)) for side in (self._yes, ~self._yes))
        return scores, positive, negative

    def by_bin(self, edges: Vector, cut: float) -> tuple[tuple[Vector, Scalars | None], ...]:
        """The weight of each class in each bin; or in blocks of bins with enough rows, and their ends."""
        place, bins = bin_of(self._z, edges), len(edges) + 1
        at = int(np.searchsorted(edges, cut, side="left")) + 1  # bins up to and with the one that ends there
        found = list[tuple[Vector, Scalars | None]]()
        for side in (self._yes, ~self._yes):
            weights = _sums(place[side], self._w[side], bins)
            if self.least <= 1:
                found.append((weights, None))
                continue
            ends = ends_beside(np.bincount(place[side], minlength=bins), self.least, at)
            found.append((summed(weights, ends), ends.astype(np.float64)))
        return tuple(found)

    def groups(self, edges: Vector) -> tuple[Matrix, Scalars | None] | None:
        """Weight, events and sum of probabilities by group of scores; blocks of groups, where some are small.

        A block has no row of a class, or enough of them; None where even all groups together have not.
        """
        place, count = bin_of(self._z, edges), len(edges) + 1
        by = np.stack([np.ones(self.rows), self._yes, self._mean]) * self._w
        sums = np.stack([_sums(place, values, count) for values in by], axis=1)
        if self.least <= 1:
            return sums, None
        rows = np.stack([np.bincount(place[side], minlength=count) for side in (self._yes, ~self._yes)], 1)
        ends = _allowed_ends(rows, self.least)
        return (summed(sums, np.array(ends)), np.array(ends, dtype=np.float64)) if ends else None

    @cached_property
    def _log_odds(self) -> Vector:
        if self._family.link == "logit":
            return self._z
        return np.asarray(logit(np.clip(self._mean, TINY, 1 - 1e-16)))

    def recalibrated(self, line: Scalars) -> Scalars:
        """Score and information of P(y = 1) = expit(a + b s) at (a, b), s the log odds: five sums."""
        s, (_, errors, spreads) = self._log_odds, self.on_line(line)
        error, spread = self._w * errors, self._w * spreads
        return np.array([error.sum(), error @ s, spread.sum(), spread @ s, spread @ np.square(s)])

    def on_line(self, line: Scalars) -> tuple[Vector, Vector, Vector]:
        """Of each row its loss, y - p and p (1 - p) with p = expit(a + b s); for the site's own eyes."""
        z = line[0] + line[1] * self._log_odds
        p = expit(z)
        return np.logaddexp(0.0, np.where(self._yes, -z, z)), self._yes - p, p * (1 - p)

    def line(self) -> Scalars | None:
        """This site's own a and b with their covariance (Vaa, Vab, Vbb); None where there are none.

        With too few rows of a class, no event or classes that the scores separate, there is none.
        """
        fewest = min(int(self._yes.sum()), int((~self._yes).sum()))
        if fewest < max(2, self.least):
            return None
        line = np.array([0.0, 1.0])
        for _ in range(MOST_STEPS):
            sums = self.recalibrated(line)
            step = newton(sums)
            if step is None or np.abs(line + step).max() > LARGEST:
                return None
            line = line + step
            if np.abs(step).max() <= 1e-10 * max(1.0, float(np.abs(line).max())):
                covariance = covariance_of(self.recalibrated(line))
                return None if covariance is None else np.concatenate([line, covariance])
        return None


def newton(sums: Scalars) -> Vector | None:
    """The Newton step of a recalibration, at most 2 in each number; None where the scores do not vary."""
    covariance = covariance_of(sums)
    if covariance is None:
        return None
    step = np.array([[covariance[0], covariance[1]], [covariance[1], covariance[2]]]) @ sums[:2]
    largest = float(np.abs(step).max())
    return step * (2.0 / largest) if largest > 2.0 else step


def covariance_of(sums: Scalars) -> Scalars | None:
    """The inverse of the information of a recalibration."""
    _, _, a, b, c = sums.tolist()
    determinant = a * c - b * b
    if not determinant > 1e-12 * a * c:
        return None
    return np.array([c / determinant, -b / determinant, a / determinant])


def _sums(place: NDArray[np.intp], values: Vector, count: int) -> Vector:
    """The sum of values at each place."""
    return np.bincount(place, values, count).astype(np.float64)


def _allowed_ends(rows: NDArray[np.intp], least: int) -> list[int]:
    """Where blocks of groups end, each with no row of a class or enough; empty where there is none."""

    def allowed(start: int, end: int) -> bool:
        counts = rows[start:end].sum(axis=0)
        return bool(counts.sum() >= least and ((counts == 0) | (counts >= least)).all())

    ends, start = list[int](), 0
    for k in range(1, len(rows) + 1):
        if allowed(start, k):
            ends.append(k)
            start = k
    while ends and ends[-1] < len(rows):  # what is left joins the last block, and that the one before
        first = ends[-2] if len(ends) > 1 else 0
        ends = [*ends[:-1], len(rows)] if allowed(first, len(rows)) else ends[:-1]
    if not ends and allowed(0, len(rows)):
        return [len(rows)]
    return ends
