"""What PEN sends: a first answer in the agent's own units, then moves of the frame and innovations."""

from __future__ import annotations

from fedshed.linalg.arrays import Matrix, Packed, Vector
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Message


class Start(Message, frozen=True):
    """Cost, gradient and Hessian at theta, in the agent's own units."""

    theta: Vector


class Move(Message, frozen=True):
    """A change of frame and a step, both coded; `scale` is the Newton decrement, the unit of both."""

    t: Count
    change: bytes
    step: bytes
    scale: float
    curvature: bool  # whether the Hessian's innovation is asked for
    dither: bool = False  # whether it is rounded at random
    secant: bool = False  # whether the Hessian is corrected by the gradient's innovation instead


class Whole(Message, frozen=True):
    """The Master's frame and copy in full, for an agent that lost its own."""

    G: Matrix
    theta: Vector
    W: Packed
    g: Vector
    anchor: Vector | None = None  # the point of its Hessian, if that was dithered


class Mine(Message, frozen=True):
    """Which copy the Master holds, by a digest of all it was made of, and the agent's place among agents."""

    digest: int
    whole: Whole | None
    index: Count = 0


class First(Message, frozen=True):
    """Loss, coded gradient, logarithms of the diagonal, and the Hessian scaled by it."""

    loss: float
    gradient: bytes
    diagonal: bytes
    hessian: bytes


class Innovation(Message, frozen=True):
    """Loss, what was not predicted of the gradient, W = c W_predicted + R, and the error ||R - R_q||^2.

    R_q is the sum of an entry-coded part and a spectral one.
    """

    loss: float
    gradient: bytes
    c: float
    hessian: bytes
    error: float
    spectral: bytes = b""  # what stands out of the error


class Beyond(Message, frozen=True):
    """The numbers at the point of the move cannot be coded: it is too far away."""
