"""What an agent costs in bytes, by algorithm: what it remembers, what the Master holds of it, and all in all.

Each run is a process of its own: agents with n = 50 and 100 rows each, 12 iterations (docs/performance.md).
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import Any

import fedshed
from benchmarks.speed import PAGE, task
from benchmarks.storage import nbytes, parts
from fedshed import Federation
from fedshed.exchange import InProcess

START, END = "<!-- agents -->", "<!-- /agents -->"
AGENTS, ITERATIONS = 500, 12
ALGORITHMS = ("newton", "lbfgs", "agd", "fib-shed", "qn-shed", "pen", "fednl")


def each(algorithm: str, federation: Federation) -> dict[str, Any]:
    """The most bytes of arrays per agent, at the agents and at the Master, and of the process."""
    sites: dict[str, Any] = {}
    most = {"agent": 0.0, "master": 0.0}

    def connect(opened: Mapping[str, Any]) -> InProcess:
        sites.update(opened)
        return InProcess(opened)

    def watch(progress: Any) -> None:
        state = {id(part): part for part in parts(progress.state)}
        held = sum(len(site.save()) for site in sites.values())
        most["agent"] = max(most["agent"], held / len(sites))
        most["master"] = max(most["master"], nbytes(state) / len(sites))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options = {"l2": 1e-3, "tol": 1e-14, "max_iterations": ITERATIONS}
    fedshed.optimize(federation, algorithm=algorithm, transport=connect, watch=watch, **options)
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {**most, "process": 1024 * process / len(sites)}


def table() -> list[str]:
    """A line for each algorithm, in kB."""
    lines = [
        "| algorithm | kB that the agent remembers | that the Master holds | by which the process grows |",
        "|---|---|---|---|",
    ]
    for name in ALGORITHMS:
        found = task("agents", name, AGENTS)
        shown = " | ".join(f"{found[what] / 1000:.1f}" for what in ("agent", "master", "process"))
        lines.append(f"| `{name}` | {shown} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    lines = table()
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")
