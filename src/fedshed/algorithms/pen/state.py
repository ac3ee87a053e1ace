"""What the Master of PEN keeps between two rounds."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fedshed.algorithms.base import State
from fedshed.algorithms.pen.frame import Change, Frame
from fedshed.algorithms.pen.innovation import Copy
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.protocol.conversation import AgentId


class PenState(
    State[Copy], frozen=True, rename={"agents_without_cache": "lost"}
):  # its name in checkpoints of 0.2
    """The Master's state: the frame, and in its coordinates the last Hessian, step, gradient and secants."""

    frame: Frame | None = None
    noise: float = 0.0  # radius of the quantisation error of the mean Hessian
    A: Matrix | None = None  # the last round's Hessian
    s: Matrix | None = None
    y: Matrix | None = None
    last: tuple[Vector, Vector] | None = None  # the last point (0 in its own coordinates) and gradient
    decrement: float = 0.0  # Newton's, at the last step
    settled: bool = False  # the Hessian has nearly stopped changing
    fast: bool = False  # the decrement falls fast enough without a new Hessian
    between: bool = False  # it is not the turn of a Hessian
    since: int = 0  # exchanges since the last one
    pending: bytes = b""  # a change of frame that goes with the next move
    agents_without_cache: tuple[AgentId, ...] = ()
    rho: float = 0.0  # how coherent the errors of the last Hessians were
    dither: bool = False  # they were once too coherent: changes are dithered from there on
    anchor: Vector | None = None  # the point of the last Hessians, if they were dithered

    def whiten_gradient(self, g: Vector) -> Vector:
        """A gradient in the coordinates of the frame."""
        assert self.frame is not None
        return np.asarray(self.frame.G @ g)

    @property
    def before(self) -> tuple[Matrix, Vector] | None:
        """The Hessian before the last step, and that step."""
        return None if self.A is None or self.last is None else (self.A, -self.last[0])


def change_coordinates(state: PenState, change: Change) -> PenState:
    """What the Master remembers, in changed coordinates; the copies follow with the move."""
    return replace(
        state,
        A=None if state.A is None else change.congruence(state.A),
        s=None if state.s is None else change.solve_transposed(state.s.T).T,
        y=None if state.y is None else change.times(state.y.T).T,
        last=None
        if state.last is None
        else (change.solve_transposed(state.last[0]), change.times(state.last[1])),
    )
