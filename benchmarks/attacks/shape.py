"""The shape that all attacks share: a function of the mode and of the site's rows, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

Mode: TypeAlias = Literal["rule off", "rule on", "protected"]
MODES: tuple[Mode, ...] = ("rule off", "rule on", "protected")

PLAIN: tuple[Mode, ...] = MODES[:2]  # of lies and bombs, which are not after rows: masks change nothing there


class Outcome(Struct, frozen=True):
    """What an attack recovered from a site, and for how many requests and numbers."""

    attack: str
    mode: str
    rows: int
    recovered: int
    requests: int
    numbers: int


class Found(Struct, frozen=True):
    """What an attack function returns: the rows of the site, and what was recovered at what cost."""

    rows: int
    recovered: int
    requests: int
    numbers: int


class Attack(Struct, frozen=True):
    """An attack, the rules that stop it (names of `target.SWITCHES`), and the sizes at which it is run.

    `rows` is the size of the tests; `sizes` are those of the benchmark.  One that no rule stops at a large
    site (`bounded`) fails at the size of the tests and is reported with what it recovers at the others.  It
    is run in these `modes`.
    """

    name: str
    rules: tuple[str, ...]
    rows: int
    sizes: tuple[int, ...]
    bounded: bool
    modes: tuple[Mode, ...]
    run: Callable[[Mode, int], Found]

    def __call__(self, mode: Mode, rows: int | None = None) -> Outcome:
        """The outcome of one run."""
        found = self.run(mode, rows or self.rows)
        return Outcome(self.name, mode, found.rows, found.recovered, found.requests, found.numbers)


ATTACKS: dict[str, Attack] = {}


def attack(
    name: str,
    *rules: str,
    rows: int,
    sizes: tuple[int, ...] = (),
    bounded: bool = False,
    modes: tuple[Mode, ...] = MODES,
) -> Callable[[Callable[[Mode, int], Found]], Attack]:
    """Register a function as an attack that these rules stop."""

    def registered(run: Callable[[Mode, int], Found]) -> Attack:
        ATTACKS[name] = Attack(name, rules, rows, (rows, *sizes), bounded, modes, run)
        return ATTACKS[name]

    return registered
