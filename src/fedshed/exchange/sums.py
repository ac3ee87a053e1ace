"""Messages as numbers that add up over sites, and the answer of all sites from the sums of these numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Gradient, Packed, Vector
from fedshed.linalg.solve import plain_name
from fedshed.objectives import family_of
from fedshed.privacy.addends import LARGEST, Addends, Totals
from fedshed.protocol.batch import MessageBatch
from fedshed.protocol.codec import encode
from fedshed.protocol.conversation import Conversation, Problem
from fedshed.protocol.messages import Costs, Message, Undefined, at_trial_point
from fedshed.protocol.sums import Added, Numbers, Rule, Scaling

__all__ = [
    "ALL",
    "Scaling",
    "blanks",
    "column_scales",
    "column_sizes",
    "join",
    "pooled",
    "scaling_of",
    "split",
]

ALL = "all"  # the agent that stands for all sites
STEP = 2.0**52  # v = hi STEP + mid + lo / STEP, hi and mid whole: each is below 2^54, as 128 sites may add


class _Shape(Struct, frozen=True, array_like=True):
    """What is public of a field: what all sites share, and how many numbers it has, of which kind."""

    public: Any
    count: int
    packed: bool
    fine: bool
    apart: bool


class _Skeleton(Struct, frozen=True, array_like=True):
    """What is public of a message: the name of its class, and its fields."""

    name: str
    fields: list[_Shape]


def split(
    parts: Sequence[Message], scaling: Scaling, blanks: Sequence[Message | None] = ()
) -> tuple[bytes, Addends]:
    """What must be the same at all sites, and the numbers to be added; their lengths are public.

    A site that cannot answer at a trial point (`Undefined`) adds the blank of that part and raises its flag.
    """
    skeletons, sheet = [], _Sheet(scaling)
    for k, part in enumerate(parts):
        undefined = isinstance(part, Undefined)
        message = blanks[k] if undefined else part
        if message is None or message.adds is None:
            raise ProtocolError(f"messages of type {type(part).__name__} cannot be added over sites")
        sheet.begin(undefined)
        fields = [sheet.add(*rule.split(message, name, scaling)) for name, rule in message.adds.items()]
        skeletons.append(_Skeleton(type(message).__name__, fields))
    return encode(skeletons), sheet.addends()


def join(public: bytes, totals: Totals, scaling: Scaling, kinds: Sequence[type[Message]]) -> list[Message]:
    """The answers of all sites together; Undefined or infinite where some site's are not defined."""
    answering: list[type[Message]] = [Costs, *kinds]
    known = {kind.__name__: kind for kind in answering if kind.adds is not None}
    rest, answers = _Rest(totals, scaling), list[Message]()
    for skeleton in msgspec.msgpack.decode(public, type=list[_Skeleton]):
        if skeleton.name not in known or len(skeleton.fields) != len(known[skeleton.name].adds or ()):
            raise ProtocolError(
                f"messages of type {skeleton.name} cannot be added over sites; run the same fedshed at all "
                "sites"
            )
        kind, defined = known[skeleton.name], not rest.flag()
        found = [(shape, rest.take(shape)) for shape in skeleton.fields]
        answers.append(_message(kind, list(_fields(kind, found, scaling))) if defined else Undefined())
    return answers


def pooled(batch: MessageBatch, weights: Vector) -> Message | None:
    """The answer of all agents of a batch together, as of one agent with all their rows.

    None where it is not made of numbers that add up, all of them finite: then each agent speaks for itself.
    """
    fields, rules = dict[str, Any](), batch.kind.adds
    for name, rule in (rules or {}).items():
        value = batch.fields[name]
        if value is None:
            fields[name] = None
        elif isinstance(rule, Added) and isinstance(value, np.ndarray):
            found = rule.pooled(value, weights)
            large = ~(np.abs(found) < LARGEST)
            if large.any() and not rule.apart:
                return None
            fields[name] = np.where(large, inf, found) if found.ndim else float(found)
        else:
            return None
    return batch.kind(**fields) if rules is not None else None


def blanks(conversation: Conversation, parts: Sequence[Message], n: int) -> list[Message | None]:
    """For each part that asks about a trial point, an answer of the right kind in which all numbers are 0."""
    return [_blank(conversation.answer_kind(part), n) if at_trial_point(part) else None for part in parts]


def column_scales(problem: Problem) -> Vector:
    """Powers of two near the root mean square of each coefficient's column."""
    return np.asarray(np.exp2(np.round(np.log2(column_sizes(problem)))))


def column_sizes(problem: Problem) -> Vector:
    """The root mean square of each coefficient's column over all sites; 1 where it is unknown or 0."""
    squares = problem.sizes[ALL].squares if ALL in problem.sizes else None
    if squares is None:
        return np.ones(problem.n)
    roots = np.sqrt(np.where(np.isfinite(squares) & (squares > 0), squares, 1.0))
    if problem.columns and plain_name(problem.columns[-1]) == "intercept":
        roots = np.append(roots, 1.0)
    if family_of(problem.loss).classes == "ordered":
        return np.append(roots, np.ones(problem.n - len(roots)))
    return np.tile(roots, problem.n // len(roots))


def scaling_of(problem: Problem, weight: float, null: bool = False) -> Scaling:
    """The scaling of a site of this weight, by what is public of a problem, or of it without its columns."""
    family = family_of(problem.loss)
    bounded = family.classified or family.grouped
    total = sum(problem.weights.values())
    columns = None if null else column_scales(problem)
    return Scaling(weight, total, columns, bounded or family.quadratic, not bounded)


def _fields(
    kind: type[Message], found: Sequence[tuple[_Shape, Vector]], scaling: Scaling
) -> Iterator[tuple[str, Any]]:
    hints = _hints(kind)
    rules: Mapping[str, Rule] = kind.adds or {}
    for (name, rule), (shape, totals) in zip(rules.items(), found, strict=True):
        yield name, rule.join(shape.public, totals, hints[name], scaling)


@cache
def _hints(kind: type[Message]) -> dict[str, Any]:
    """The types of its fields, which are slow to find."""
    return get_type_hints(kind)


def _message(kind: type[Message], fields: Sequence[tuple[str, Any]]) -> Message:
    try:
        return kind(**dict(fields))
    except ValueError as error:
        raise ProtocolError(f"the sums over all sites are impossible: {error}") from error


def _blank(kind: type[Message], n: int) -> Message:
    """A message of zeros, without what may be left out."""
    lengths = {Vector: n, Gradient: n, Packed: n * (n + 1) // 2}
    hints, fields = _hints(kind), dict[str, Any]()
    for name in kind.__struct_fields__:
        if hints[name] is float:
            fields[name] = 0.0
        else:
            fields[name] = None if type(None) in get_args(hints[name]) else np.zeros(lengths[hints[name]])
    return kind(**fields)


def _three(values: Vector) -> Vector:
    """hi, mid and lo of each number v = hi 2^52 + mid + lo 2^-52."""
    with np.errstate(invalid="ignore"):
        hi = np.rint(values / STEP)
        rest = values - hi * STEP
        mid = np.rint(rest)
        return np.concatenate([hi, mid, (rest - mid) * STEP])


class _Sheet:
    """The numbers of a site as they are written down, message by message."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._numbers: dict[bool, list[Vector]] = {True: [np.zeros(0)], False: [np.zeros(0)]}  # by slimness
        self._slots: dict[bool, list[Vector]] = {True: [np.zeros(0)], False: [np.zeros(0)]}
        self._raised, self._base = list[bool](), 0

    def begin(self, raised: bool) -> None:
        """A message: one slot for all that it holds."""
        self._base = len(self._raised)
        self._raised.append(raised)

    def add(self, public: Any, numbers: Numbers | None) -> _Shape:
        """A field of it."""
        if numbers is None:
            return _Shape(public, 0, False, False, False)
        count = len(numbers.values)
        fine = not self._scaling.plain and (numbers.fine or (self._scaling.units and not numbers.packed))
        slots = np.full(count, self._base)
        if numbers.apart:
            slots = np.arange(count) + len(self._raised)
            self._raised += [False] * count
        slim = numbers.packed and self._scaling.slim
        self._numbers[slim].append(_three(numbers.values) if fine else numbers.values)
        self._slots[slim].append(np.tile(slots, 3 if fine else 1))
        return _Shape(public, count, numbers.packed, fine, numbers.apart)

    def addends(self) -> Addends:
        """All of it."""
        wide, slim = (np.concatenate(self._numbers[kind]) for kind in (False, True))
        slots = [np.concatenate(self._slots[kind]).astype(np.intp) for kind in (False, True)]
        return Addends(wide, slots[0], slim, slots[1], np.array(self._raised, dtype=np.bool_))


class _Rest:
    """What is left of the sums as they are read, message by message."""

    def __init__(self, totals: Totals, scaling: Scaling) -> None:
        self._wide, self._slim, self._raised = totals.wide, totals.slim, totals.raised
        self._scaling = scaling

    def flag(self) -> bool:
        """Whether the next slot was raised."""
        raised, self._raised = bool(self._raised[0]), self._raised[1:]
        return raised

    def take(self, shape: _Shape) -> Vector:
        """The next numbers, infinite where the slot of one was raised."""
        if shape.packed and self._scaling.slim:
            values, self._slim = self._slim[: shape.count], self._slim[shape.count :]
        elif shape.fine:
            hi, mid, lo = np.split(self._wide[: 3 * shape.count], 3)
            values, self._wide = hi * STEP + (mid + lo / STEP), self._wide[3 * shape.count :]
        else:
            values, self._wide = self._wide[: shape.count], self._wide[shape.count :]
        if shape.apart:
            values = np.where(self._raised[: shape.count], inf, values)
            self._raised = self._raised[shape.count :]
        return values
