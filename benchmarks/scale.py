"""Very many agents, through groups and without them: seconds of an iteration and peak memory (docs/scale.md).

Each measurement is a process of its own; the exponent between 10^4 and 10^5 agents extrapolates to 10^6.
"""

from __future__ import annotations

from math import log10
from pathlib import Path
from typing import Any

from benchmarks.speed import END, START, task

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
AGENTS = (10_000, 100_000)
GROUPS = 100
ITERATIONS = {"newton": 4, "lbfgs": 8}
MILLION = 1_000_000


def growth(found: dict[int, dict[str, Any]], what: str) -> float:
    """The exponent e of `what` ~ agents^e between the two sizes."""
    few, many = AGENTS
    return log10(found[many][what] / found[few][what]) / log10(many / few)


def extrapolated(found: dict[int, dict[str, Any]], what: str) -> float:
    """`what` of a million agents, with the exponent between the two sizes."""
    many = AGENTS[-1]
    return float(found[many][what] * (MILLION / many) ** growth(found, what))


def through_groups() -> list[str]:
    """Newton and L-BFGS through 100 groups."""
    lines = [
        f"| agents of 20 rows, n = 50, in {GROUPS} groups | algorithm | CPU-s per iteration "
        "| CPU-s before the first | peak MB | asked for |",
        "|---|---|---|---|---|---|",
    ]
    for algorithm, iterations in ITERATIONS.items():
        found = {M: task("grouped", algorithm, M, GROUPS, iterations) for M in AGENTS}
        for M, each in found.items():
            asked = "at most 15 s, below 8,000 MB" if AGENTS[-1] == M else ""
            lines.append(
                f"| {M:,} | `{algorithm}` | {each['each']:.2f} "
                f"| {each['before']:.1f} | {each['mb']:,.0f} | {asked} |"
            )
        seconds, exponent = extrapolated(found, "each"), growth(found, "each")
        lines.append(
            f"| {MILLION:,}, extrapolated | `{algorithm}` | {seconds:.0f} (exponent {exponent:.2f}) | "
            f"| {extrapolated(found, 'mb'):,.0f} (exponent {growth(found, 'mb'):.2f}) | |"
        )
        print(*lines[-3:], sep="\n", flush=True)
    return lines


def without_groups() -> list[str]:
    """The SHED family, whose answers do not add up: every agent is one of the Master's."""
    lines = [
        "",
        "| agents of 100 rows, n = 50, no groups | algorithm | CPU-s per exchange | peak MB | asked for |",
        "|---|---|---|---|---|",
    ]
    for algorithm in ("fib-shed", "qn-shed"):
        cost = task("dense", algorithm, 10_000, 50, 100, 12)
        each = cost["cpu"] / cost["exchanges"]
        lines.append(
            f"| 10,000 | `{algorithm}` | {each:.2f} | {cost['mb']:,.0f} | below 1 s, below 2,000 MB |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    lines = [*through_groups(), *without_groups()]
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
