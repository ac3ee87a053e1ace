"""A site in the preparation: bytes in, bytes out, and its table at the end."""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fedshed._utils.errors import DataError, Error, ProtocolError, QuotingError
from fedshed.linalg.tall import in_blocks
from fedshed.preparation import filling, formulas, scaling, tallies, units
from fedshed.preparation.approved import schema_of
from fedshed.preparation.derived import check_plan
from fedshed.preparation.design import Design, numbers
from fedshed.preparation.holdout import fitted_rows, held_rows, weighed_rows
from fedshed.preparation.messages import (
    CODEC,
    Build,
    Constants,
    Describe,
    Ready,
    Refused,
    Spread,
    Tallies,
    Tally,
    Values,
)
from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.study import Study
from fedshed.privacy.policy import Policy
from fedshed.protocol.messages import Message
from fedshed.protocol.replies import Reply
from fedshed.tables.frames import Frame
from fedshed.tables.stored import Table

log = logging.getLogger("fedshed")
ASKED = (Describe, Build, Spread, Constants, Tally)
CONTRADICTED = (KeyError, IndexError, ValueError)  # what a plan that contradicts itself or the table raises
LEAST = Policy().min_rows_per_level


def asked_study(payload: bytes) -> Study:
    """The study that an encoded request is about."""
    parts = CODEC.decode_request(payload).parts
    if not parts or not isinstance(parts[0], ASKED):
        raise ProtocolError("a request of the preparation must begin with what is asked for; prepare again")
    return _study(parts[0])


def _study(part: Any) -> Study:
    study: Study = part.study if isinstance(part, Describe) else part.plan.study
    return study


def held_table(plan: DesignPlan, frame: Any, site: str) -> Table:
    """The rows of a site that a study holds out, but for those with a level that no fitted row has."""
    rows = held_rows(plan.study, frame if isinstance(frame, Frame) else Frame(frame), site)
    known = plan.complete(rows, unknown_is_missing=True) | ~plan.complete(rows)
    if not known.any():
        raise DataError("every row held out has a level that no fitted row has; hold out other rows")
    return plan.table(rows if known.all() else rows.take(known))


class Preparer:
    """The answers of one site in the preparation.

    An answer depends on the site's table and the request alone, so a repeated request gets the same answer. A
    site that was given the study beforehand answers no other study.

    Parameters
    ----------
    name : str
        The name of the site.
    frame : table
        Its table: pandas, polars, Arrow, or a dict of arrays.
    study : Study, optional
        The only study that the site answers. Default: any.
    key : bytes, optional
        A secret with which the site marks its rows: two models of the same rows can be recognised, but nobody
        can guess the rows.

    Examples
    --------
    >>> from fedshed.preparation import Preparer
    >>> Preparer("north", {"age": [40, 50], "ill": [0, 1]}).name
    'north'
    """

    def __init__(
        self, name: str, frame: Any, study: Study | None = None, least: int = LEAST, key: bytes = b""
    ) -> None:
        self.name, self._whole, self._study, self._key = name, Frame(frame), study, key
        self.frame = self._whole  # but for rows that the study that is asked about holds out or weighs by 0
        self._selected: tuple[Any, ...] = ()
        self._weighed = np.ones(0, dtype=np.bool_)  # which of the rows that are not held out
        self.least = least  # rows in a block of a histogram
        self.named = 1  # rows that have a value which is named; a gate may demand more
        self._built: tuple[DesignPlan, Table, Design] | None = None

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request."""
        request = CODEC.decode_request(payload)
        answers: list[Any] = [self._answer(part) for part in request.parts]
        self.frame.forget()
        return CODEC.encode_reply(Reply(request.run, request.number, 0, answers))

    def table(self, plan: DesignPlan) -> Table:
        """The rows of this site as the plan needs them."""
        return self.built(plan)[0]

    def held(self, plan: DesignPlan) -> Table:
        """The rows of this site that the study holds out."""
        return held_table(plan, self._whole, self.name)

    def select(self, study: Study) -> None:
        """Set aside the rows that a study holds out or that have weight 0; the preparation ignores them."""
        held_by = (study.holdout_seed, study.cluster) if study.holdout is not None else ()
        by = (study.weight, study.holdout, *held_by)
        if by != self._selected:
            self.frame = fitted_rows(study, self._whole, self.name)
            self._weighed = weighed_rows(study, self._whole, self.name)
            self._selected, self._built = by, None

    def tally(self, plan: DesignPlan) -> Tallies:
        """Sums and histograms over the rows that are used, before a design can be built."""
        self.select(plan.study)
        if filling.pending(plan):
            sums = filling.tally(plan, plan.read(self.frame))
            return Tallies(sums, np.zeros(0), ())
        read = plan.used(self.frame)
        computed = formulas.formula_of(plan.study).numbers if plan.study.formula is not None else ()
        return tallies.tally(plan, {name: numbers(name, read[name]) for name in computed}, self.least)

    def stand_in(self, plan: DesignPlan) -> tuple[Table, Design]:
        """The rows of this site before means and knots are known, for their number and their sums."""
        self.select(plan.study)
        return plan.build(self.frame, stand_in=True)

    def forget(self) -> None:
        """Lose what was built, as a restarted process would."""
        self._built = None

    def built(self, plan: DesignPlan) -> tuple[Table, Design]:
        """The rows of this site as the plan needs them, and the design with its names."""
        self.select(plan.study)
        # Names and notes come after the design, and do not change it.
        unnamed = replace(plan, names=(), terms=(), warnings=())
        if self._built is None or self._built[0] != unnamed:
            self._built = unnamed, *plan.build(self.frame)
        return self._built[1:]

    def _answer(self, part: Any) -> Message:
        try:
            return self._reply(part)
        except QuotingError as error:
            log.error("site %r: %s", self.name, error)
            return Refused(error.told)
        except Error as error:
            return Refused(str(error))
        except CONTRADICTED:
            log.exception("site %r: a plan fits neither its study nor this table", self.name)
            return Refused("was sent a plan that fits neither its study nor its table; prepare again")

    def _reply(self, part: Any) -> Message:
        if not isinstance(part, ASKED):
            raise DataError(f"does not know how to answer {type(part).__name__}")
        if self._study is not None and _study(part) != self._study:
            raise DataError("was asked for another study than the one it was given; give all the same study")
        self.select(_study(part))
        if isinstance(part, Describe):
            return schema_of(part.study, self.frame, self.named)
        if self._study is not None:
            check_plan(self._study, self.frame, part.plan)
        if isinstance(part, Tally):
            return self.tally(part.plan)
        if isinstance(part, Build):
            return self.ready(part.plan)
        if isinstance(part, Spread):
            return scaling.deviations(self.table(part.plan), part.means)
        if part.plan.study.protected:
            raise DataError("was asked for values of its columns, which a protected study does not need")
        return self._values(part)

    def ready(self, plan: DesignPlan) -> Ready:
        """The answer after the design is built, with what the Master needs; for a protected study, sums."""
        self._check_aliased(plan)
        table, design = self.built(plan)
        rows, protected, first = len(table.y), plan.study.protected, plan.scales is None
        dropped = self.frame.rows - rows + self._weightless
        measured = units.moments(plan, self.frame, table.weights) if first and not protected else ()
        return Ready(
            rows,
            dropped,
            float(rows if table.weights is None else np.sum(table.weights)),
            design.names,
            design.terms,
            () if protected else scaling.constant(table),
            scaling.sums(table)
            if first and (plan.study.needs_moments or formulas.powers_to_centre(plan.study))
            else None,
            self._missing(plan) if protected or plan.study.fills_in or dropped else (),
            "" if protected else self._digest(plan, table),
            *measured,
        )

    def _check_aliased(self, plan: DesignPlan) -> None:
        """Refuse a plan that leaves out a column which is not 0 in all rows here."""
        if isinstance(plan.aliased, UnsetType):
            return
        _, design = replace(plan, aliased=UNSET, names=(), terms=(), centres=None, scales=None).build(
            self.frame
        )
        places = [j for j, name in enumerate(design.names) if name in plan.aliased]
        if len(places) < len(plan.aliased) or any(X[:, places].any() for _, X in in_blocks(design.X)):
            raise ProtocolError(
                "the plan leaves out columns that are not those of empty cells; prepare again"
            )

    def _digest(self, plan: DesignPlan, table: Table) -> str:
        """The mark of the rows that are used, by their places, target, weight and offset."""
        mark = blake2b(np.packbits(plan.rows_used(self.frame)).tobytes(), digest_size=16, key=self._key)
        mark.update(np.packbits(self._weighed).tobytes() if self._weightless else b"")
        for values in (table.y, table.weights, table.offset):
            mark.update(b"" if values is None else np.ascontiguousarray(values).tobytes())
        return mark.hexdigest()

    @property
    def _weightless(self) -> int:
        """The rows that are left aside for their weight."""
        return int((~self._weighed).sum())

    def _missing(self, plan: DesignPlan) -> tuple[tuple[str, int], ...]:
        """In how many rows each column is missing, where it is in some; all columns of a protected study.

        A weight of 0 counts as one that is missing.
        """
        read = self.frame.columns((*plan.study.beside, *plan.columns))
        found = {name: int(column.missing.sum()) for name, column in read.items()}
        if plan.study.weight is not None:
            found[plan.study.weight] += self._weightless
        if plan.study.fills_in:  # of predictors those that are filled in, in rows that are used
            found |= filling.counts_of(plan.study, plan.columns, read)
        counts = list(found.items())
        return tuple((column, count) for column, count in counts if count or plan.study.protected)

    def _values(self, part: Constants) -> Values:
        """The values of columns that do not vary here, and of no others: they would be a row's."""
        table = self.table(part.plan)
        if not set(part.columns) <= set(scaling.constant(table)):
            raise DataError("was asked for the value of a column that varies; prepare again")
        return Values(table.X[:1][0, list(part.columns)])
