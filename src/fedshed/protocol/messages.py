"""Every typed message that crosses the wire; a message's size is the size of its encoding (codec.py).

A request is a list of *parts* common to all agents and one part for the agent alone; a reply answers
part by part.  So an exchange can carry a line search and the next update together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import inf, isfinite
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from fedshed.linalg.arrays import Extended, Gradient, Matrix, Packed, Scalars, Vector
from fedshed.protocol.limits import MOST_STEP_SIZES, Count
from fedshed.protocol.sums import GRADIENT, HESSIAN, MEAN, NOTHING, Added, Rule

TOO_LARGE = "too large to compute with"  # how a site says that numbers overflow


class Message(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True, eq=False, gc=False):
    """Base of all messages: immutable, finite, encoded as an array after the name of its class.

    It holds numbers and other messages, never itself, so the garbage collector need not look for cycles
    (`gc`).
    """

    adds: ClassVar[Mapping[str, Rule] | None] = None  # how each field adds up over sites, if it is an answer
    refuses: ClassVar[str] = ""  # the field with the reason, of a message that takes an answer's place

    def __post_init__(self) -> None:
        for name in _floats(type(self)):
            value = getattr(self, name)
            if value is not None and not isfinite(value):
                raise ValueError(f"{name} of {type(self).__name__} is {value}, {TOO_LARGE}")


@cache
def numeric_fields(message: type[Message]) -> tuple[str, ...]:
    """The fields that hold real numbers, arrays or other messages."""
    hints = get_type_hints(message)
    return tuple(
        f for f in message.__struct_fields__ if not {hints[f], *get_args(hints[f])} & {int, bool, str}
    )


def too_large(message: Message) -> str | None:
    """The first field whose squares overflow, if one does.

    At a trial point, which is then rejected, an honest site may have such numbers.
    """
    for name in numeric_fields(type(message)):
        value = getattr(message, name)
        if isinstance(value, Message):
            if found := too_large(value):
                return found
        elif _overflows(value):
            return name
    return None


def _overflows(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not isfinite(np.vdot(value, value))
    return isinstance(value, float) and not isfinite(value * value)


@cache
def _floats(message: type[Message]) -> tuple[str, ...]:
    hints = get_type_hints(message)
    return tuple(f for f in message.__struct_fields__ if float in (hints[f], *get_args(hints[f])))


# --- asked of all agents -------------------------------------------------------------------------


class Search(Message, frozen=True):
    """The costs at theta + eta * direction, for each eta (federated Armijo, Algorithm 2)."""

    theta: Vector
    direction: Vector
    etas: Scalars
    slopes: bool = False  # the slopes there too: near the optimum differences of costs drown in rounding

    def __post_init__(self) -> None:
        if len(self.etas) > MOST_STEP_SIZES:
            raise ValueError(f"a search has at most {MOST_STEP_SIZES} step sizes, not {len(self.etas)}")


class Update(Message, frozen=True):
    """Asks for U_t at theta^t; theta is left out where it is the full step of the Search before it."""

    t: Count
    theta: Vector | None
    accuracy: float = 0.0  # of each entry of the gradient, where the algorithm's precision allows one


def at_trial_point(part: Any) -> bool:
    """Whether a part asks about the full step of the search before it: it carries no theta."""
    return getattr(part, "theta", part) is None


def with_trial_points(parts: Sequence[Any]) -> list[Any]:
    """The parts of a request, with the trial point of the search before it for one without theta."""
    trial: Vector | None = None
    found = []
    for part in parts:
        if isinstance(part, Search):
            with np.errstate(over="ignore"):  # a point too far away is for the search to reject
                trial = part.theta + part.direction
            trial.flags.writeable = False
        missing = trial is not None and at_trial_point(part)
        found.append(replace(part, theta=trial) if missing else part)
    return found


# --- asked of one agent --------------------------------------------------------------------------


class Share(Message, frozen=True):
    """Asks one agent for the eigenpairs of its Hessian of iteration k that follow the first `have`.

    `anchor` is theta^k for an agent that lost it; `more` is false if the Master needs none in this iteration.
    """

    k: Count
    have: Count
    more: bool
    anchor: Vector | None

    def __post_init__(self) -> None:
        if self.k < 1 or self.have < 0:
            raise ValueError(f"no Hessian has k={self.k} and {self.have} eigenpairs")


# --- answered by an agent ------------------------------------------------------------------------


class Costs(Message, frozen=True):
    """f^(i) at each candidate of a Search, without the ridge; infinite where it overflows."""

    values: Extended
    slopes: Extended | None = None

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "values": Added(mean=True, apart=True),
        # near the optimum slopes are far below 2^-64, and their sign decides
        "slopes": Added(mean=True, apart=True, fine=True),
    }


class Undefined(Message, frozen=True):
    """No answer: cost, gradient or curvature overflow at a trial point, which the search will reject."""


class Declined(Message, frozen=True):
    """The site will not or cannot answer this request, and says why."""

    why: Annotated[str, Meta(max_length=2000)]

    refuses: ClassVar[str] = "why"


class Eigenpairs(Message, frozen=True):
    """The eigenpairs that follow the first `start` of the Hessian of iteration k, and rho (Algorithm 4)."""

    k: Count
    start: Count
    values: Scalars
    vectors: Matrix
    rho: float
    last: bool  # no pairs follow: q = n - 1, or the data rank

    def __post_init__(self) -> None:
        (count, n), start, rho, chain = self.vectors.shape, self.start, self.rho, self.values.tolist()
        if self.k < 1 or start < 0 or len(chain) != count:
            have = f"{len(chain)} values for {count} vectors"
            raise ValueError(f"eigenpairs of k={self.k} from start={start}: {have}")
        if start + count > max(n - 1, 0):
            raise ValueError(f"{start + count} eigenpairs are more than n - 1 = {n - 1}")
        chain.append(rho)
        if not 0 <= rho < inf or (chain != sorted(chain, reverse=True) and _rises(chain)):
            raise ValueError("eigenvalues must decrease and end with a finite rho of at least 0")


def _rises(chain: list[float]) -> bool:
    """Whether a number is larger than the one before by more than rounding explains."""
    return any(low - high > 1e-9 * chain[-1] for high, low in pairwise(chain))


class Local(Message, frozen=True):
    """f^(i) and g^(i) at theta^t, and the curvature that comes with them, if any (Algorithm 4, U_t)."""

    loss: float
    gradient: Gradient
    pairs: Eigenpairs | None

    adds: ClassVar[Mapping[str, Rule] | None] = {"loss": MEAN, "gradient": GRADIENT, "pairs": NOTHING}


class LocalHessian(Message, frozen=True):
    """f^(i), g^(i) and the whole Hessian of the data term at theta^t, packed."""

    loss: float
    gradient: Gradient
    hessian: Packed

    adds: ClassVar[Mapping[str, Rule] | None] = {"loss": MEAN, "gradient": GRADIENT, "hessian": HESSIAN}


class LocalWhole(Message, frozen=True):
    """f^(i), g^(i) and the whole Hessian of iteration k, packed: n(n + 1)/2 numbers, not n - 1 pairs."""

    loss: float
    gradient: Gradient
    k: int
    hessian: Packed
