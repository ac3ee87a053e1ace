"""How the fields of a message add up over sites: as weighted means, as totals, or not, because all are alike.

A message that can be added names a rule for each of its fields (`Message.adds`).  By these rules
`fedshed.exchange.sums` makes numbers of messages, and of their sums the message of all sites together.
"""

from __future__ import annotations

from math import inf
from typing import Any, Protocol, get_args

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Vector, pack
from fedshed.linalg.totals import compensated_total


class Scaling(Struct, frozen=True):
    """What makes a site's means totals of moderate size, and means again of the totals of all sites."""

    weight: float = 1.0  # w_i of this site: its means are multiplied by it
    total: float = 1.0  # W of all sites: their means are divided by it
    columns: Vector | None = None  # powers of two c_j, near the root mean square of each coefficient's column
    slim: bool = True  # whether Hessians are bounded for each unit of weight, so that 64 bits are enough
    units: bool = False  # whether costs and gradients have a unit, so that they may be of any size
    plain: bool = False  # whether float64 numbers are added as they are, which may be of any size

    def unit(self, power: int, matrix: bool, count: int) -> Vector:
        """c_j^power for a vector, c_j c_k for a packed matrix, and the largest of them for one number."""
        if self.columns is None or power == 0:
            return np.ones(count)
        if matrix:
            return pack(np.outer(self.columns, self.columns))
        powers = self.columns**power
        return powers if count == len(powers) else np.full(count, powers.max())


class Numbers(Struct, frozen=True):
    """The numbers of a field that are added over sites, and how they travel."""

    values: Vector  # one that is not finite raises the flag of its slot
    packed: bool = False  # entries of a Hessian, for which 64 bits may do
    fine: bool = False  # numbers of any size, from 1e-30 to 1e30
    apart: bool = False  # each number has a separate slot; otherwise all share that of their message


class Rule(Protocol):
    """How one field of a message adds up."""

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """What must be the same at all sites (plain data), and what is added."""
        ...

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """The field of all sites; a total is infinite where some site raised its flag."""
        ...


class Same(Struct, frozen=True):
    """The same at all sites."""

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """The value itself."""
        return msgspec.to_builtins(getattr(message, name)), None

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """The value, as the field has it."""
        return msgspec.convert(public, kind)


class Nothing(Struct, frozen=True):
    """Left out, or empty: a field that has no place in a sum."""

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """Whether it is left out or empty."""
        value = getattr(message, name)
        if value is not None and len(value):
            raise ProtocolError(f"{name} of {type(message).__name__} cannot be added over sites")
        return value is None, None

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """As it was."""
        return None if public else np.zeros(0)


class Added(Struct, frozen=True):
    """A number or an array that is added: a mean, to be weighted, or a total.

    It is in units of c_j^power, c_j being the size of column j.
    """

    mean: bool = False
    power: int = 0
    matrix: bool = False  # packed: in units of c_j c_k
    packed: bool = False
    fine: bool = False
    apart: bool = False

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """Whether there is one, and w_i x / c."""
        value = getattr(message, name)
        if value is None:
            return False, None
        numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
        with np.errstate(over="ignore"):
            numbers = numbers * (scaling.weight if self.mean else 1.0)
            numbers = numbers / scaling.unit(self.power, self.matrix, len(numbers))
        return True, Numbers(numbers, self.packed, self.fine, self.apart)

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """c S / W of the sum S."""
        if not public:
            return None
        values = totals * scaling.unit(self.power, self.matrix, len(totals))
        values = values / (scaling.total if self.mean else 1.0)
        kinds = (kind, *get_args(kind))
        if int in kinds:
            return round(float(values[0]))
        return float(values[0]) if float in kinds else values

    def pooled(self, values: NDArray[Any], weights: Vector) -> NDArray[Any]:
        """The field of all agents from a column with a row for each: the weighted mean, or the total."""
        if not self.mean:
            return compensated_total(values)
        with np.errstate(over="ignore"):
            weighted = values * weights.reshape(-1, *[1] * (values.ndim - 1))
        return np.asarray(compensated_total(weighted) / weights.sum())


class Maybe(Struct, frozen=True):
    """A total that is None where it is at any site."""

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """The number in a separate slot, whose flag is raised where there is none."""
        value = getattr(message, name)
        return None, Numbers(np.array([inf if value is None else value]), apart=True)

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """The total, or None."""
        return float(totals[0]) if totals[0] < inf else None


SAME, NOTHING, TOTAL, MAYBE = Same(), Nothing(), Added(), Maybe()
MEAN = Added(mean=True)
GRADIENT = Added(mean=True, power=1)
HESSIAN = Added(mean=True, power=2, matrix=True, packed=True)
FINE = Added(fine=True)  # totals of any size


def flags(*said: bool) -> Numbers:
    """Whether any site says so: each a slot without a number."""
    return Numbers(np.array([inf if each else 0.0 for each in said]), apart=True)
