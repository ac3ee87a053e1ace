"""The design of a large frame: its rows are made block by block when they are read, and never all at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.tall import BLOCK, Tall
from fedshed.objectives.families import family_of
from fedshed.preparation import design as designs
from fedshed.preparation.design import Design
from fedshed.preparation.filling import filled, settled
from fedshed.tables import lazy
from fedshed.tables.frames import Frame

if TYPE_CHECKING:
    from fedshed.preparation.plan import DesignPlan

log = logging.getLogger("fedshed")


class DesignRows(lazy.ReadRows):
    """What a plan makes of the rows of a frame, in which missing values are filled in or do not occur."""

    window = BLOCK

    def __init__(self, plan: DesignPlan, frame: Frame, stand_in: bool) -> None:
        self._plan, self._frame, self._stand_in = plan, frame, stand_in
        first = self._made(0, 1)
        self.names, self.terms, self.shape = first.names, first.terms, (frame.rows, first.X.shape[1])

    def _read(self, start: int, stop: int) -> NDArray[np.float64]:
        return self._plan.scaled(np.asarray(self._made(start, stop).X))

    def _made(self, start: int, stop: int) -> Design:
        """The design of a few rows, by the same rules as that of all rows."""
        read = self._frame.block(start, stop).columns(self._plan.columns)
        read = filled(self._plan, read) if self._plan.study.fills_in else read
        return designs.of_rows(self._plan, read, stop - start, self._stand_in, order="F")


def all_rows(plan: DesignPlan, frame: Frame) -> Tall:
    """The design of every row of a large frame, on the scale of the plan."""
    rows = DesignRows(plan, frame, stand_in=False)
    designs.check_finite(Design(Tall(rows), rows.names, rows.terms))
    return Tall(rows)


def large_design(plan: DesignPlan, frame: Frame, stand_in: bool) -> Design:
    """The design of a large frame, tall; in memory where it is small, or where the model needs it there."""
    kept = plan.rows_used(frame)
    used = frame if kept.all() else frame.take(kept)
    rows = DesignRows(settled(plan, used.columns(plan.columns)), used, stand_in)
    design = Design(Tall(rows), rows.names, rows.terms)
    designs.check_finite(design)
    return Design(np.asarray(design.X), rows.names, rows.terms) if _copied(plan, rows.shape) else design


def _copied(plan: DesignPlan, shape: tuple[int, int]) -> bool:
    """Whether a design is to be in memory all the same."""
    size = 8 * shape[0] * shape[1]
    needed = family_of(plan.study.loss).survival or plan.study.privacy is not None
    if needed and size > lazy.COPIED:
        log.warning("a %s model has its design in memory: %d MB", plan.study.family, size // 10**6)
    return needed or size <= lazy.COPIED
