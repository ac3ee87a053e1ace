"""Many objectives at one point: costs, gradients and Hessians of all, a stack at a time.

Each number is the one that the objective alone gives, bit for bit (objectives/stack.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Scalars, Vector, pack
from fedshed.linalg.rows import diagonal, gram, with_units
from fedshed.objectives.objective import Objective
from fedshed.objectives.stack import Joint, Stack, StackSlot


class Evaluated(Protocol):
    """What has an objective, such as an agent."""

    @property
    def objective(self) -> Objective:
        """Its local cost."""
        ...


class Seats(Struct, frozen=True):
    """Where some of the objectives sit in a stack."""

    stack: Stack
    rows: list[int]  # which objectives these are
    places: list[int]  # and their places in the stack


class Crowd(list[Any]):
    """Agents that are asked together, again and again: where their objectives sit is found once."""

    @cached_property
    def objectives(self) -> list[Objective]:
        """The local cost of each."""
        return [agent.objective for agent in self]

    @cached_property
    def seats(self) -> list[Seats]:
        """The stacks of those objectives that are in one."""
        found: dict[int, Seats] = {}
        for row, slot in enumerate(self._slots):
            if slot is not None:
                seats = found.setdefault(id(slot.stack), Seats(slot.stack, [], []))
                seats.rows.append(row)
                seats.places.append(slot.place)
        return list(found.values())

    @cached_property
    def alone(self) -> list[int]:
        """The objectives that are in no stack."""
        return [row for row, slot in enumerate(self._slots) if slot is None]

    @cached_property
    def _slots(self) -> list[StackSlot | None]:
        return [getattr(objective, "slot", None) for objective in self.objectives]


def at_together(agents: Sequence[Evaluated], theta: Vector) -> Points | None:
    """The objectives of all agents at a point; None where they are not evaluated together."""
    crowd = agents if isinstance(agents, Crowd) else Crowd(agents)
    return None if crowd.alone else Points(crowd, theta)


def at_each(agents: Sequence[Evaluated], theta: Vector) -> Points:
    """The objectives of all agents at a point, together as far as that goes."""
    return Points(agents if isinstance(agents, Crowd) else Crowd(agents), theta)


def along_each(
    agents: Sequence[Evaluated], theta: Vector, direction: Vector, etas: Scalars, slopes: bool
) -> tuple[Matrix, Matrix | None]:
    """The costs of all along a direction, and their slopes if wanted."""
    crowd = agents if isinstance(agents, Crowd) else Crowd(agents)
    along = theta, direction, etas
    costs = [s.stack.costs_along.found(*along) for s in crowd.seats]
    values = _gathered(crowd, costs, lambda row: crowd.objectives[row].along(*along))
    if not slopes:
        return values, None
    found = [s.stack.slopes_along.found(*along) for s in crowd.seats]
    return values, _gathered(crowd, found, lambda row: crowd.objectives[row].slopes_along(*along))


class Points:
    """Objectives at a point; a Hessian that is looked at counts for each of them."""

    def __init__(self, crowd: Crowd, theta: Vector) -> None:
        self._crowd, self._theta, self._new = crowd, theta, True
        self._joints: list[Joint] = [s.stack.at.found(theta) for s in crowd.seats]
        self._alone = {row: crowd.objectives[row].at(theta) for row in crowd.alone}

    def __len__(self) -> int:
        """How many objectives there are."""
        return len(self._crowd)

    @property
    def values(self) -> Vector:
        """The cost of each."""
        found = [joint.values for joint in self._joints]
        return _gathered(self._crowd, found, lambda row: self._alone[row].value)

    @property
    def gradients(self) -> Matrix:
        """The gradient of each, a row."""
        found = [joint.gradients for joint in self._joints]
        return _gathered(self._crowd, found, lambda row: self._alone[row].gradient)

    @property
    def hessians(self) -> Matrix:
        """The packed Hessian of each, a row."""
        self._count()
        found = [joint.hessians(s.places) for s, joint in self._each()]
        return _gathered(self._crowd, found, lambda row: pack(gram(self._factor(row))), chosen=True)

    @property
    def diagonals(self) -> Matrix:
        """The diagonal of the Hessian of each, a row."""
        self._count()
        found = [joint.diagonals(s.places) for s, joint in self._each()]
        return _gathered(self._crowd, found, lambda row: diagonal(self._factor(row)), chosen=True)

    def dense_factors(
        self, chosen: Sequence[int], units: Vector | None = None
    ) -> Iterator[tuple[list[int], NDArray[np.float64]]]:
        """F diag(1/units) of those chosen with dense tables here, all of whose columns matter.

        Each batch is small enough to stay in a core's cache.
        """
        wanted = set(chosen)
        for s, joint in self._each():
            each = [(row, place) for row, place in zip(s.rows, s.places, strict=True) if row in wanted]
            whole = [one for one in each if s.stack.whole(one[1], units)]
            for start in range(0, len(whole), s.stack.at_a_time):
                rows, places = zip(*whole[start : start + s.stack.at_a_time], strict=True)
                F = s.stack.factors_of(joint.roots, list(places))
                yield list(rows), F if units is None else with_units(F, 1 / units)

    def count(self, row: int) -> None:
        """A Hessian of one of them was computed."""
        if (count := getattr(self._crowd.objectives[row], "count", None)) is not None:
            count(self._theta)

    def _factor(self, row: int) -> Any:
        """F of an objective outside the stacks, which nobody keeps: it is as large as the table."""
        return self._crowd.objectives[row].at(self._theta).factor

    def _each(self) -> Iterator[tuple[Seats, Joint]]:
        return zip(self._crowd.seats, self._joints, strict=True)

    def _count(self) -> None:
        """One Hessian of each in a stack, however often it is looked at; others count for themselves."""
        seated = (row for seats in self._crowd.seats for row in seats.rows) if self._new else ()
        self._new = False
        for row in seated:
            self.count(row)


def _gathered(
    crowd: Crowd, arrays: Sequence[NDArray[Any]], alone: Callable[[int], Any], chosen: bool = False
) -> NDArray[Any]:
    """What was computed for whole stacks, or for those chosen of them, a row for each objective."""
    others = {row: alone(row) for row in crowd.alone}
    shape = arrays[0].shape[1:] if arrays else np.shape(next(iter(others.values())))
    gathered = np.empty((len(crowd), *shape))
    for s, array in zip(crowd.seats, arrays, strict=True):
        gathered[s.rows] = array if chosen else array[s.places]
    for row, one in others.items():
        gathered[row] = one
    return gathered
