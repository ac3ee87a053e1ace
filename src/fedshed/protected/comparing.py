"""Whether the Master's request is the one that a site's own replay came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Vector
from fedshed.protected.follow import Units, same_point
from fedshed.protocol.messages import Search, with_trial_points
from fedshed.protocol.replies import Request

POINTS = ("theta", "direction", "excess")  # fields that are parameters, or differences of parameters
MATRICES = ("inverse",)  # an inverse, which rounding touches more: a site answers with its own
LOOSE = 1e-6  # of the largest entry of one; and of a step size
DIGITS = 1e-9  # of any other number: scales and means follow from the sums without any library


def check_request(own: Request, other: Request, units: Units = 1.0) -> None:
    """Refuse a request that differs from one's own by more than rounding on another processor explains."""
    if len(own.parts) != len(other.parts) or other.mine != own.mine:
        raise ProtocolError("the Master asks for something else than follows from the sums")
    for mine, theirs in zip(own.parts, other.parts, strict=True):
        if why := _difference(mine, theirs, units):
            raise ProtocolError(f"the Master's {type(theirs).__name__} does not follow from the sums: {why}")


def with_own_matrices(own: Request, other: Request) -> Request:
    """The Master's request with the matrices that a site computed itself.

    What rounding explains of an inverse is too much to leave to the Master: where units differ, or columns
    are almost collinear, it could choose the leverage of each row.
    """
    parts = []
    for mine, theirs in zip(own.parts, other.parts, strict=True):
        found = {name: getattr(mine, name) for name in MATRICES if hasattr(mine, name)}
        parts.append(replace(theirs, **found) if found else theirs)
    return replace(other, parts=parts)


def points_of(request: Request) -> list[Vector]:
    """The points that a request is about."""
    found = list[Vector]()
    for part in with_trial_points(request.parts):
        theta = getattr(part, "theta", None)
        found += [] if theta is None else [theta]
    return found


def _difference(own: Any, other: Any, units: Units) -> str | None:
    """What differs between two parts of a request, if anything does."""
    if type(own) is not type(other):
        return f"a {type(own).__name__} does"
    if isinstance(own, Search):
        return _searches(own, other, units)
    if isinstance(own, Struct):
        for name in own.__struct_fields__:
            if not _same(name, getattr(own, name), getattr(other, name), units):
                return f"another {name} does"
        return None
    return None if _same("", own, other, units) else "another value does"


def _searches(own: Search, other: Search, units: Units) -> str | None:
    """All points of a search are compared, and its step sizes, by which Armijo's test is weighed.

    The full step is one of them whatever the step sizes are: an Update without theta is asked for there.
    """
    shapes = [(one.direction.shape, one.etas.shape, one.slopes) for one in (own, other)]
    if shapes[0] != shapes[1]:
        return "another search does"
    if not (np.abs(own.etas - other.etas) <= LOOSE * np.abs(own.etas)).all():
        return "another step size does"
    if not same_point(own.theta, other.theta, units):
        return "another theta does"
    for mine, theirs in zip((1.0, *own.etas), (1.0, *other.etas), strict=True):
        ends = own.theta + mine * own.direction, other.theta + theirs * other.direction
        if not same_point(*ends, units):
            return "another direction does"
    return None


def _same(name: str, own: Any, other: Any, units: Units) -> bool:
    """Equality, of numbers up to rounding, in whatever they are held."""
    if type(own) is not type(other):
        return False
    if isinstance(own, np.ndarray):
        return _same_array(name, own, other, units)
    if isinstance(own, float):
        return bool(own == other or abs(own - other) <= DIGITS * abs(own))
    if isinstance(own, Struct):
        return all(_same(f, getattr(own, f), getattr(other, f), units) for f in own.__struct_fields__)
    if isinstance(own, Mapping):
        return list(own) == list(other) and all(_same(name, own[key], other[key], units) for key in own)
    if isinstance(own, tuple | list):
        return len(own) == len(other) and all(
            _same(name, a, b, units) for a, b in zip(own, other, strict=True)
        )
    return bool(own == other)


def _same_array(name: str, own: Vector, other: Vector, units: Units) -> bool:
    if own.shape != other.shape or name in POINTS:
        return same_point(own, other, units)
    with np.errstate(over="ignore", invalid="ignore"):
        size = LOOSE * np.abs(own).max(initial=0.0) if name in MATRICES else DIGITS * np.abs(own)
        return bool((np.abs(own - other) <= size).all())
