"""What a site lets out: a policy of plain rules, and a site that keeps to it (docs/privacy.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.algorithm import AgentId, Algorithm
from fedshed.audit import Audit
from fedshed.errors import ConfigError, DisclosureError
from fedshed.messages import Message
from fedshed.objectives import LinearModel
from fedshed.objectives.base import Rows
from fedshed.site import Site


class Objection(Struct, frozen=True):
    """A rule that a table or an answer breaks; the detail is for the site's own eyes."""

    rule: str
    detail: str


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one site; what breaks one of them is not answered at all."""

    min_rows: int = 10
    min_rows_per_class: int = 5
    min_rows_per_level: int = 5  # of a column with two levels
    max_parameters_per_row: float = 0.2
    max_scalars: int = 1_000_000  # numbers released in one study

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not 0 < value < np.inf:
                raise ConfigError(f"the disclosure policy's {name} must be a number above 0, not {value!r}")

    def objections(
        self, X: Rows, y: NDArray[Any], labelled: bool, parameters: int, columns: Sequence[str] = ()
    ) -> list[Objection]:
        """Every rule that a table breaks: its rows, the rows of a class, of a level, parameters per row."""
        rows = X.shape[0]
        found = []
        if rows < self.min_rows:
            found.append(Objection(f"at least {self.min_rows} rows (min_rows)", f"there are {rows}"))
        if parameters > self.max_parameters_per_row * rows:
            most = f"at most {self.max_parameters_per_row:g} parameters a row (max_parameters_per_row)"
            found.append(Objection(most, f"{parameters} parameters for {rows} rows"))
        if labelled and (fewest := _fewest(y)) < self.min_rows_per_class:
            least = f"at least {self.min_rows_per_class} rows of each class (min_rows_per_class)"
            found.append(Objection(least, f"one class has {fewest}"))
        least = (
            f"at least {self.min_rows_per_level} rows at each of a column's two levels (min_rows_per_level)"
        )
        for j, fewest in _two_levels(X):
            if fewest < self.min_rows_per_level:
                name = columns[j] if j < len(columns) else f"column {j}"
                found.append(Objection(least, f"{name} has {fewest} rows at one level"))
        return found

    def exceeded(self, released: int, more: int) -> list[Objection]:
        """The ceiling, where `more` scalars would go beyond it."""
        if released + more <= self.max_scalars:
            return []
        most = f"at most {self.max_scalars} numbers released in a study (max_scalars)"
        return [Objection(most, f"{released} are released, and {more} more were asked for")]


class GuardedSite(Site):
    """A site that keeps to its policy: an answer leaves if no rule forbids it, and once it is on record."""

    def __init__(
        self, name: AgentId, objective: LinearModel, algorithm: Algorithm[Any], policy: Policy, audit: Audit,
        study: str, columns: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(name, objective, algorithm)
        self._policy, self._audit, self._study = policy, audit, study
        self._objections = policy.objections(
            objective.X, objective.y, objective.labelled, objective.dim, columns
        )

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply, if the policy allows it; DisclosureError names the rule if not."""
        what = "+".join(type(part).__name__ for part in self._codec.decode_request(payload).parts)
        self._refuse_if(self._objections, what, b"", 0)
        reply = super().handle(payload)
        parts = self._codec.decode_reply(reply).parts
        what += " -> " + "+".join(type(part).__name__ for part in parts)
        count = sum(map(scalars, parts))
        self._refuse_if(self._policy.exceeded(self._audit.released(self._study), count), what, reply, count)
        self._audit.append(self._study, what, reply, count)
        return reply

    def _refuse_if(self, objections: Sequence[Objection], what: str, reply: bytes, count: int) -> None:
        if objections:
            rules = "; ".join(dict.fromkeys(one.rule for one in objections))
            details = "; ".join(one.detail for one in objections)
            self._audit.append(self._study, what, reply, count, rules, details)
            raise DisclosureError(f"site {self.name!r}: its disclosure policy demands {rules}")


def scalars(message: Message) -> int:
    """How many numbers a message gives away: entries of arrays, floats, and each byte of coded parts."""
    total = 0
    for value in (getattr(message, name) for name in message.__struct_fields__):
        if isinstance(value, Message):
            total += scalars(value)
        elif isinstance(value, np.ndarray):
            total += value.size
        else:
            total += len(value) if isinstance(value, bytes) else isinstance(value, float)
    return total


def _fewest(values: NDArray[Any]) -> int:
    """Rows of the rarest value."""
    return int(np.unique(values, return_counts=True)[1].min(initial=len(values)))


def _two_levels(X: Rows) -> Iterator[tuple[int, int]]:
    """The columns with exactly two values, and how many rows have the rarer one."""
    by_column: Any = X if isinstance(X, np.ndarray) else X.tocsc()
    for j in range(X.shape[1]):
        column = by_column[:, [j]] if isinstance(X, np.ndarray) else by_column[:, [j]].toarray()
        counts = np.unique(column, return_counts=True)[1]
        if len(counts) == 2:
            yield j, int(counts.min())
