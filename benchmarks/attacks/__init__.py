"""Attacks on our own sites, each with its rules switched off and on: `python -m benchmarks attacks`.

`--json` prints a list of {attack, mode, rows, recovered, requests, numbers}; `--small` runs only the sizes of
the tests; `--exposure` measures how well honest fits identify single rows, which is the table of
`fedshed.privacy.exposure`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import msgspec

from benchmarks.attacks import (
    bombs,
    cells,
    cuts,
    dummies,
    exposed,
    hopping,
    lies,
    oracles,
    passive,
    pencil,
    rare,
)
from benchmarks.attacks.shape import ATTACKS, MODES, Attack, Mode, Outcome

__all__ = ["ATTACKS", "MODES", "Attack", "Mode", "Outcome", "main"]
FILES = (cuts, oracles, dummies, rare, hopping, pencil, cells, passive, lies, bombs)  # which register them
HEAD = f"{'attack':32} {'mode':9} {'rows':>6} {'recovered':>10} {'requests':>9} {'numbers':>8}"


def outcomes(small: bool = False) -> Iterator[Outcome]:
    """Every attack at each of its sizes, with its rules off and on."""
    for one in ATTACKS.values():
        for rows in one.sizes[:1] if small else one.sizes:
            yield from (one(mode, rows) for mode in MODES)


def main() -> None:
    """Print the table of attacks, or what was asked for."""
    logging.getLogger("fedshed").setLevel(logging.CRITICAL)  # sites log every refusal
    flags = set(sys.argv)
    if "--exposure" in flags:
        exposed.main()
        return
    found = outcomes("--small" in flags)
    if "--json" in flags:
        print(msgspec.json.encode(list(found)).decode())
        return
    print(HEAD)
    for one in found:
        print(
            f"{one.attack:32} {one.mode:9} {one.rows:6} {one.recovered:10} {one.requests:9} {one.numbers:8}",
            flush=True,
        )
