"""Many objectives at one point: costs, gradients and Hessians of all, a stack at a time.

Each number is the one that the objective alone gives, bit for bit (objectives/stack.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.objectives.objective import Objective
from fedshed.objectives.stack import Joint, Stack


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
    def seats(self) -> list[Seats] | None:
        """The stacks of all objectives; None where one is in none."""
        found: dict[int, Seats] = {}
        for row, objective in enumerate(self.objectives):
            slot = getattr(objective, "slot", None)
            if slot is None:
                return None
            seats = found.setdefault(id(slot.stack), Seats(slot.stack, [], []))
            seats.rows.append(row)
            seats.places.append(slot.place)
        return list(found.values())


def at_together(agents: Sequence[Evaluated], theta: Vector) -> Points | None:
    """The objectives of all agents at a point; None where they are not evaluated together."""
    crowd = agents if isinstance(agents, Crowd) else Crowd(agents)
    return None if crowd.seats is None else Points(crowd.objectives, theta, crowd.seats)


def along_together(
    agents: Sequence[Evaluated], theta: Vector, direction: Vector, etas: Scalars, slopes: bool
) -> tuple[Matrix, Matrix | None] | None:
    """The costs of all along a direction, and their slopes if wanted; None where not together."""
    crowd = agents if isinstance(agents, Crowd) else Crowd(agents)
    if (seats := crowd.seats) is None:
        return None
    along = theta, direction, etas
    costs = _gathered(seats, [s.stack.costs_along.found(*along) for s in seats])
    return costs, _gathered(seats, [s.stack.slopes_along.found(*along) for s in seats]) if slopes else None


class Points:
    """Objectives at a point; a Hessian that is looked at counts for each of them."""

    def __init__(self, objectives: Sequence[Objective], theta: Vector, seats: Sequence[Seats]) -> None:
        self._objectives, self._theta, self._seats = objectives, theta, seats
        self._new = True
        self._joints: list[Joint] = [s.stack.at.found(theta) for s in seats]

    def __len__(self) -> int:
        """How many objectives there are."""
        return len(self._objectives)

    @property
    def values(self) -> Vector:
        """The cost of each."""
        return _gathered(self._seats, [joint.values for joint in self._joints])

    @property
    def gradients(self) -> Matrix:
        """The gradient of each, a row."""
        return _gathered(self._seats, [joint.gradients for joint in self._joints])

    @property
    def hessians(self) -> Matrix:
        """The packed Hessian of each, a row."""
        self._count()
        return _gathered(self._seats, [joint.hessians(s.places) for s, joint in self._each()], chosen=True)

    @property
    def diagonals(self) -> Matrix:
        """The diagonal of the Hessian of each, a row."""
        self._count()
        return _gathered(self._seats, [joint.diagonals(s.places) for s, joint in self._each()], chosen=True)

    def _each(self) -> Iterator[tuple[Seats, Joint]]:
        return zip(self._seats, self._joints, strict=True)

    def _count(self) -> None:
        """One Hessian of each, however often it is looked at."""
        counted, self._new = [] if not self._new else self._objectives, False
        for objective in counted:
            if (count := getattr(objective, "count", None)) is not None:
                count(self._theta)


def _gathered(seats: Sequence[Seats], arrays: Sequence[NDArray[Any]], chosen: bool = False) -> NDArray[Any]:
    """What was computed for whole stacks, or for those chosen of them, a row for each objective."""
    gathered = np.empty((sum(len(s.rows) for s in seats), *arrays[0].shape[1:]))
    for s, array in zip(seats, arrays, strict=True):
        gathered[s.rows] = array if chosen else array[s.places]
    return gathered
