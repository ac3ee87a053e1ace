"""A procedure that is replayed: it runs in a separate thread and stops at each of its requests.

So a site computes from the sums what the Master must ask next, with the Master's own code, and answers
nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import Error, ProtocolError
from fedshed.linalg.arrays import Vector
from fedshed.linalg.threads import HELD
from fedshed.protocol.conversation import LEAD
from fedshed.protocol.messages import Message

Exchange: TypeAlias = Callable[[int, bytes], bytes]  # conversation and request: the reply of all
Procedure: TypeAlias = Callable[[Exchange], Any]
Units: TypeAlias = Vector | float  # the size of each coefficient's column
NEAR = 1e-9  # times max(1, |theta|), in units of the columns: as far as another processor's rounding goes


class Asked(Struct, frozen=True):
    """A request that a procedure waits for: the conversation it belongs to, and its bytes."""

    label: int
    payload: bytes


class _Closed(BaseException):  # no error of the procedure's own, so that nothing in it takes it for one
    """Ends a procedure that nobody follows any more."""


class Follower:
    """A procedure at its next request; `answer` lets it go on to the one after that.

    On another processor a replay differs in its last bits, and these would grow.  So it takes over the bits
    of the Master's request once that was found to be the same (`asked`), and where a step size is accepted or
    not by rounding alone, the Master's choice, which the points of its `following` request show.
    """

    def __init__(self, procedure: Procedure) -> None:
        self._procedure = procedure
        self._asked, self._following = list[Message](), list[Vector]()
        self._requests: SimpleQueue[Asked | None] = SimpleQueue()
        self._replies: SimpleQueue[bytes | None] = SimpleQueue()
        self.result: Any = None
        self.failed: BaseException | None = None  # why the procedure ended, if it did not come to its end
        self._thread = threading.Thread(target=self._run, name="fedshed-follower", daemon=True)
        self._thread.start()
        self.asked: Asked | None = self._requests.get()

    def answer(self, reply: bytes, asked: Sequence[Message] = (), following: Sequence[Vector] = ()) -> None:
        """Give the reply of all to the request that is waited for."""
        if self.asked is None:
            raise ProtocolError("the study has ended; the site answers nothing more")
        self._asked, self._following = list(asked), list(following)
        self._replies.put(reply)
        self.asked = self._requests.get()

    def close(self) -> None:
        """End the procedure where it is."""
        if self.asked is not None:
            self.asked = None
            self._replies.put(None)
            self._thread.join()

    def _run(self) -> None:
        HELD.set(True)  # by whoever asks, who waits meanwhile
        LEAD.set(self)
        try:
            self.result = self._procedure(self._exchange)
        except _Closed:
            return
        except BaseException as error:  # whatever it is, whoever waits for the next request must hear of it
            self.failed = error
        self._requests.put(None)

    def _exchange(self, label: int, payload: bytes) -> bytes:
        self._requests.put(Asked(label, payload))
        reply = self._replies.get()
        if reply is None:
            raise _Closed
        return reply

    def adopt(self, parts: Sequence[Message]) -> None:
        """Overwrite the arrays of the site's own request with the bits of the Master's."""
        for own, other in zip(parts, self._asked, strict=False):
            for name in own.__struct_fields__:
                mine, theirs = getattr(own, name), getattr(other, name)
                if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
                    _overwrite(mine, theirs)

    def agrees(self, theta: Vector) -> bool:
        """Whether the Master's next request is about this very point."""
        return any(np.array_equal(theta, point) for point in self._following)


def same_point(own: Vector, other: Vector, units: Units = 1.0) -> bool:
    """Whether two points differ by no more than rounding on another processor explains.

    In units of the columns: a coefficient of a column of size 10^9 moves its rows by 10^9 times as much.
    """
    if own.shape != other.shape:
        return False
    scale = units if own.shape == np.shape(units) else 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        size = max(1.0, float(np.abs(scale * own).max(initial=0.0)))
        return bool(np.abs(scale * (own - other)).max(initial=0.0) <= NEAR * size < np.inf)


def _overwrite(array: Vector, other: Vector) -> None:
    """Write into an array whose owner has closed it against mistakes."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    frozen = not owner.flags.writeable
    owner.flags.writeable = array.flags.writeable = True
    array[...] = other
    owner.flags.writeable = array.flags.writeable = not frozen


def ended(follower: Follower) -> Error:
    """Why nothing more can follow, as an error."""
    if isinstance(follower.failed, Error):
        return follower.failed
    return ProtocolError("the study has ended; the site answers nothing more")
