"""Attacks on our own sites, with their rules off, on, in protected mode: `python -m benchmarks attacks`.

`--json` prints a list of {attack, mode, rows, recovered, requests, numbers}; `--small` runs only the sizes of
the tests; `--write` puts the table into docs/privacy.md; `--exposure` measures how well honest fits identify
single rows, which is the table of `fedshed.privacy.exposure`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

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
PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
MARKS = "<!-- attacks -->\n", "<!-- end of attacks -->"
HEADINGS = "| attack | rows | recovered without its rules | with them | in protected mode |"
HEAD = f"{'attack':32} {'mode':9} {'rows':>6} {'recovered':>10} {'requests':>9} {'numbers':>8}"


def outcomes(small: bool = False) -> Iterator[Outcome]:
    """Every attack at each of its sizes, with its rules off and on, and in protected mode."""
    for one in ATTACKS.values():
        for rows in one.sizes[:1] if small else one.sizes:
            yield from (one(mode, rows) for mode in one.modes)


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
    if "--write" in flags:
        write(list(found))
        return
    print(HEAD)
    for one in found:
        print(
            f"{one.attack:32} {one.mode:9} {one.rows:6} {one.recovered:10} {one.requests:9} {one.numbers:8}",
            flush=True,
        )


def write(found: list[Outcome]) -> None:
    """Put a table of all modes into the page on privacy, between its marks."""
    cells = {(one.attack, one.rows, one.mode): one for one in found}
    lines = [HEADINGS, "|---|---|---|---|---|"]
    for attack, rows in dict.fromkeys((one.attack, one.rows) for one in found):
        said = (cells.get((attack, rows, mode)) for mode in MODES)
        shown = (f"{one.recovered:,} ({one.requests:,}, {one.numbers:,})" if one else "–" for one in said)
        lines.append(f"| {attack} | {rows:,} | {' | '.join(shown)} |")
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(before + MARKS[0] + "\n".join(lines) + "\n" + MARKS[1] + rest.partition(MARKS[1])[2])
