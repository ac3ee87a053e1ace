"""The plan all sites agree on: from any frame to the same design, and from its coefficients back."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError, DataError
from fedshed._utils.names import closest
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.tall import Tall
from fedshed.objectives.families import family_of, with_value
from fedshed.objectives.ordinal import threshold_names
from fedshed.preparation import design as designs
from fedshed.preparation import formulas, responses
from fedshed.preparation.blocks import all_rows, large_design
from fedshed.preparation.design import Design
from fedshed.preparation.filling import MISSING, Fill, filled, rows_kept
from fedshed.preparation.study import Study
from fedshed.preparation.transforms import State
from fedshed.protocol.codec import encode
from fedshed.tables.columns import Column, level_text
from fedshed.tables.frames import Frame, Read, complete_rows, made
from fedshed.tables.stored import Table

Label: TypeAlias = bool | int | float | str
REMEDY = "fill them in, drop them (missing = 'drop', --missing drop), or leave out the column"
_LOG = logging.getLogger("fedshed")


class DesignPlan(Struct, frozen=True):
    """What the sites agreed on, as plain data; a prediction needs nothing else.

    Attributes
    ----------
    study : Study
        The study that the plan belongs to.
    columns : tuple of str
        The predictors.
    levels : dict
        The levels of each category, the reference first.
    classes : tuple or None
        The classes of the target.
    intercept : bool
        Whether `fedshed.optimize` adds an intercept as the last coefficient.
    names, terms : tuple of str
        The columns of the design without the intercept, and the term that each belongs to.
    centres, scales : tuple of float or None
        The mean and the standard deviation of each column over all sites, if the study standardises.
    found : dict
        Means and knots over all rows, if terms of the formula need them.
    warnings : tuple of str
        Sentences about what looks wrong in the tables; they are not sent to the sites.
    parameter : float
        The parameter of the family, if it was estimated.
    fills : dict
        For each predictor, the value that stands for a missing one, if missing values are filled in.
    aliased : tuple of str
        The columns of empty cells of an interaction, which the design leaves out.
    indicators : tuple of str
        The predictors whose missing values have a coefficient.

    Examples
    --------
    >>> import fedshed
    >>> from fedshed.preparation import prepare
    >>> tables = {"north": {"sex": ["f", "m"], "ill": [0, 1]}, "south": {"sex": ["m", "f"], "ill": [1, 0]}}
    >>> prepare(tables, fedshed.Study(family="logistic", target="ill")).plan.levels
    {'sex': ('f', 'm')}
    """

    study: Study
    columns: tuple[str, ...]  # the predictors
    levels: dict[str, tuple[str, ...]]
    classes: tuple[Label, ...] | None = None
    intercept: bool = True  # added by `fedshed.optimize` as the last coefficient
    names: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    centres: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
    found: dict[str, State] | UnsetType = UNSET  # means and knots over all rows, if terms need them
    warnings: tuple[str, ...] = ()  # what looks wrong in the tables, in sentences; not sent to the sites
    parameter: float | UnsetType = UNSET  # of the family, where the Master searches for it
    fills: dict[str, Fill] | UnsetType = UNSET  # of each predictor: what stands for a missing value
    aliased: tuple[str, ...] | UnsetType = UNSET  # columns of empty cells, which the design leaves out
    indicators: tuple[str, ...] | UnsetType = UNSET  # predictors whose missing values have a coefficient

    def __post_init__(self) -> None:
        for column, levels in self.levels.items():
            if len(levels) > self.study.max_levels:
                most = f"max_levels = {self.study.max_levels}"
                raise ConfigError(
                    f"column {column!r} has {len(levels)} levels, more than {most}; group them, or raise it"
                )

    @property
    def coefficients(self) -> tuple[str, ...]:
        """The names of the coefficients of one linear predictor; those without a column are last."""
        return *self.names, *self.constants

    @property
    def constants(self) -> tuple[str, ...]:
        """The coefficients without a column: the intercept, or the thresholds between ordered classes."""
        if family_of(self.study.loss).classes == "ordered":
            return threshold_names(self.classes or ())
        return ("intercept",) if self.intercept else ()

    @property
    def digest(self) -> str:
        """The SHA-256 of what the plan does with a table, whatever the design's columns are called."""
        bare = replace(self, names=(), terms=(), warnings=(), parameter=UNSET)
        return sha256(encode(bare)).hexdigest()

    @property
    def loss(self) -> str:
        """The loss of `fedshed.optimize`, with the value of its parameter if that was estimated."""
        loss = self.study.loss
        return loss if isinstance(self.parameter, UnsetType) else with_value(loss, self.parameter)

    @property
    def transforms(self) -> dict[str, State]:
        """Means and knots over all rows for the terms of the formula that need them."""
        return {} if isinstance(self.found, UnsetType) else self.found

    def design(self, frame: Any) -> NDArray[np.float64] | Tall:
        """The design matrix X of every row of a table, on the scale of the fit.

        Parameters
        ----------
        frame : table
            A pandas, polars or Arrow table, or a dict of arrays.

        Returns
        -------
        array
            One row per row of the table, without the intercept; a table that stays in its file for a large
            Arrow table.

        Raises
        ------
        DataError
            If a value is missing or a level is unknown.
        """
        data = frame if isinstance(frame, Frame) else Frame(frame)
        read = data.columns(self.columns)
        if self.study.fills_in:
            _say_filled(self, read)
            read = filled(self, read)
        _refuse_missing(read, "fill them in, or leave out those rows (--missing empty)")
        if data.large:
            return all_rows(self, data)
        return self.scaled(np.asarray(designs.build(self, read, data.rows).X))

    def complete(self, frame: Any, unknown_is_missing: bool = False) -> NDArray[np.bool_]:
        """Which rows of a table have all values that a prediction needs, and optionally only known levels."""
        data = frame if isinstance(frame, Frame) else Frame(frame)
        read = data.columns(self._needed_to_predict)
        kept = complete_rows(read[name] for name in read) if read else np.ones(data.rows, dtype=np.bool_)
        for name, levels in self.levels.items() if unknown_is_missing else ():
            mine = data.column(name).as_category()
            known = np.array([*(level in levels for level in mine.levels), self.study.fills_in])
            kept = kept & known[mine.values]
        return kept

    def rows_used(self, frame: Frame) -> NDArray[np.bool_]:
        """Which rows of a site's frame the fit uses: all, unless those with missing values are dropped."""
        return rows_kept(self.study, frame.columns((*self.study.beside, *self.columns)))

    @property
    def _needed_to_predict(self) -> tuple[str, ...]:
        """The columns without which a row has no prediction, without those that are filled in."""
        beside = (name for name in (self.study.offset, self.study.exposure) if name)
        return (*(() if self.study.fills_in else self.columns), *beside)

    def missing_values(self, frame: Frame, to_evaluate: bool) -> dict[str, int]:
        """By column: rows that it leaves without a prediction, or without an evaluation."""
        needed = dict.fromkeys((*self._needed_to_predict, *(self.study.beside if to_evaluate else ())))
        lost = {name: int(column.missing.sum()) for name, column in frame.columns(tuple(needed)).items()}
        return {name: count for name, count in lost.items() if count}

    def offset(self, frame: Any) -> NDArray[np.float64] | None:
        """The offset of every row of a frame (log exposure), if the model has one."""
        data = frame if isinstance(frame, Frame) else Frame(frame)
        needed = self.study.offset or self.study.exposure
        return responses.offset(self.study, {c: data.column(c) for c in data.names if c == needed})

    def table(self, frame: Any) -> Table:
        """The rows of a site as the fit needs them: design, target, weights and offset, all checked."""
        return self.build(frame)[0]

    def used(self, frame: Any) -> Read:
        """The columns of the study in the rows of a site that are used, with missing predictors filled in."""
        read = self.read(frame)
        return responses.share(self.study, filled(self, read) if self.study.fills_in else read)

    def read(self, frame: Any) -> Read:
        """The columns of the study in the rows of a site that are used, as they are in the table."""
        data = frame if isinstance(frame, Frame) else Frame(frame)
        formula = None if self.study.formula is None else formulas.formula_of(self.study)
        if formula is not None and set(formula.columns) != set(self.columns):
            raise DataError("the plan's columns are not those of its formula; prepare again")
        marked = self.study.marked
        read = data.columns((*self.study.beside, *self.columns))

        def make(name: str) -> Column:
            return responses.event(self.study, read[name]) if name == marked else read[name]

        return complete(self.study, made(read, make))

    def build(self, frame: Any, *, stand_in: bool = False) -> tuple[Table, Design]:
        """The table of a site, and its design with names.

        With `stand_in`, before means and knots are known, the argument of a transform stands in its columns.
        """
        data = frame if isinstance(frame, Frame) else Frame(frame)
        read = self.used(data)
        design = self._design(data, read, stand_in)
        table = Table(
            design.X,
            responses.response(self.study, read, self.classes),
            responses.weights(self.study, read),
            responses.offset(self.study, read),
            responses.clusters(self.study, read),
        )
        return table, design

    def _design(self, frame: Frame, read: Read, stand_in: bool) -> Design:
        """The design of the rows that are used, on the scale of the fit; of a large frame tall."""
        if frame.large:
            return large_design(self, frame, stand_in)
        design = designs.build(self, read, len(read[self.study.target].values), stand_in=stand_in)
        return Design(self.scaled(np.asarray(design.X)), design.names, design.terms)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what looks wrong in the tables, and about means and knots over all rows."""
        terms = (f"{term}: {state.in_words()}." for term, state in self.transforms.items())
        return *self.warnings, *terms

    def l2(self) -> Vector:
        """The ridge of each coefficient, as `fedshed.optimize` takes it."""
        return self._penalties(self.study.l2, "l2")

    def l1(self) -> Vector | None:
        """The absolute penalty of each coefficient; None if there is none."""
        return self._penalties(self.study.l1, "l1") if self.study.selects else None

    def _penalties(self, given: float | dict[str, float], kind: str) -> Vector:
        """The penalty of each coefficient, which a study gives once or by term or coefficient."""
        if not isinstance(given, dict):
            return np.array([given] * len(self.names) + [0.0] * len(self.constants))
        unknown = sorted(set(given) - {*self.coefficients, *self.terms})
        if unknown:
            known = {*self.coefficients, *self.terms}
            raise ConfigError(
                f"{kind} names {unknown[0]!r}, which is no coefficient{closest(unknown[0], known)}"
            )
        pairs = zip(self.coefficients, (*self.terms, *self.constants), strict=False)
        return np.array([given.get(name, given.get(term, 0.0)) for name, term in pairs])

    def to_original(self) -> tuple[Matrix, tuple[str, ...]]:
        """A and names: A theta are the coefficients on the original scale, where theta are those of the fit.

        x'beta + beta_0 is the same on both scales: beta_j = b_j / s_j, beta_0 = b_0 - sum_j m_j b_j / s_j.
        With classes it applies to the coefficients of each contrast, or of each class.
        """
        A = np.eye(len(self.coefficients))
        if self.scales is not None and self.centres is not None:
            n, scales = len(self.names), np.array(self.scales)
            A[range(n), range(n)] = 1.0 / scales
            sign = 1.0 if family_of(self.study.loss).classes == "ordered" else -1.0  # a threshold is less x'b
            if self.constants:
                A[n:, :n] = sign * np.array(self.centres) / scales
        return A, self.coefficients

    @property
    def modelled(self) -> tuple[str, str] | None:
        """For two classes, the one whose probability is modelled, and the one it is compared with."""
        if self.classes is None or family_of(self.study.loss).classes != "two":
            return None
        if self.study.positive:
            return " or ".join(level_text(value) for value in self.study.positive), "any other value"
        return level_text(self.classes[1]), level_text(self.classes[0])

    @property
    def shown_classes(self) -> tuple[str, ...]:
        """The classes as text; for two classes the modelled one is last."""
        if self.modelled is not None:
            return self.modelled[1], self.modelled[0]
        return tuple(map(level_text, self.classes or ()))

    @property
    def reference_class(self) -> Label | None:
        """Of a multinomial model, the class that the others are compared with: the first, unless named."""
        if self.classes is None or family_of(self.study.loss).classes != "many":
            return None
        named = level_text(self.study.references.get(self.study.target, self.classes[0]))
        return next(label for label in self.classes if level_text(label) == named)

    @property
    def references(self) -> dict[str, str]:
        """The level of each category that the others are compared with."""
        return {column: levels[0] for column, levels in self.levels.items()}

    def about(self) -> tuple[str, ...]:
        """Sentences that say what is modelled, and what each category is compared with."""
        lines = []
        if self.modelled is not None:
            modelled, reference = self.modelled
            lines.append(f"Modelled: the probability that {self.study.target} is {modelled}, not {reference}")
        if self.classes is not None and family_of(self.study.loss).classes == "ordered":
            order = " < ".join(map(level_text, self.classes))
            lines.append(f"Modelled: the odds that {self.study.target} is above a threshold, {order}")
        if self.study.event is not None:
            apart = "".join(f" and each {name}" for name in self.study.strata)
            lines.append(f"Modelled: the hazard of {self.study.event}, with a baseline for each site{apart}")
        if self.references:
            said = ", ".join(f"{column} = {level}" for column, level in self.references.items())
            lines.append(f"Reference levels: {said}")
        return tuple(lines)

    def to_json(self) -> bytes:
        """The plan as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> DesignPlan:
        """Read a plan that was written by `to_json`."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"this is not the JSON of a plan: {error}") from error

    def scaled(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bring X to the scale of the fit, in the same memory."""
        if self.centres is not None and self.scales is not None:
            centres, scales = np.array(self.centres), np.array(self.scales)
            possible = np.isfinite(centres).all() and ((scales > 0) & np.isfinite(scales)).all()
            if not len(centres) == len(scales) == X.shape[1] or not possible:
                raise DataError("the plan's centres and scales are not those of its columns; prepare again")
            X -= centres
            X /= scales
        return X


def complete(study: Study, read: Read) -> Read:
    """The rows without a missing value, where the study drops the others; else an error if there are any."""
    if study.missing == "refuse":
        _refuse_missing(read, REMEDY)
        return read
    kept = rows_kept(study, read)
    if not kept.any():
        needed = made(read, read.__getitem__, study.beside) if study.fills_in else read
        raise DataError(
            f"no row is complete; leave out column {_most_missing(needed)!r}, or leave out the site"
        )
    return read if kept.all() else made(read, lambda name: read[name].take(kept))


def _say_filled(plan: DesignPlan, read: Read) -> None:
    """Write a note to the log about missing values of new rows and what replaces them."""
    fills = {} if isinstance(plan.fills, UnsetType) else plan.fills
    if plan.study.missing == "indicator":  # "missing" is then a level of each category
        fills = {name: MISSING if name in plan.levels else fill for name, fill in fills.items()}
    lost = {name: int(read[name].missing.sum()) for name in plan.columns}
    said = [
        f"{name} in {rows} row{'s' * (rows != 1)} ({fills[name]!r})"
        for name, rows in lost.items()
        if rows and name in fills
    ]
    if said:
        _LOG.warning("missing values were filled in as in the fit: %s", ", ".join(said))


def _refuse_missing(read: Read, remedy: str) -> None:
    for name, column in read.items():
        if lost := int(column.missing.sum()):
            raise DataError(f"column {name!r} is missing in {lost} of {len(column.values)} rows; {remedy}")


def _most_missing(read: Read) -> str:
    return max(read, key=lambda name: int(read[name].missing.sum()))
