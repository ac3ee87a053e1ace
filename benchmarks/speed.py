"""CPU time and memory against rivals in the same run (docs/performance.md); medians of 3, one BLAS thread.

The naive form is Fib-SHED with a full eigendecomposition of every n x n Hessian and H_hat rebuilt each round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

REPEATS = 3
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
START, END = "<!-- measured -->", "<!-- /measured -->"
GROWTH = {
    "n, 100 rows": ("fib-shed", [(10, n, 100) for n in (100, 200, 400, 800, 1600)], 1, "at most 2"),
    "n, 2,000 rows": ("qn-shed", [(4, n, 2000) for n in (100, 200, 400, 800, 1600)], 1, "at most 2"),
    "n, 2,000 rows ": ("fib-shed", [(4, n, 2000) for n in (100, 200, 400, 800, 1600)], 1, "at most 2"),
    "M": ("fib-shed", [(M, 50, 100) for M in (10, 100, 1000, 10_000)], 0, "at most 1"),
    "N_i": ("fib-shed", [(10, 50, N) for N in (100, 1000, 10_000)], 2, "at most 1"),
}


def task(*arguments: object) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tasks", *map(str, arguments)]
    one = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **one})
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number; whatever else is alike."""
    first = runs[0]
    return {k: median(r[k] for r in runs) if isinstance(v, float) else v for k, v in first.items()}


def started(*command: str) -> float:
    """CPU seconds of a process from start to end."""
    before = os.times()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def problem_w() -> list[str]:
    """Problem W: ours against the naive form, and against scikit-learn on the pooled rows."""
    with tempfile.TemporaryDirectory() as folder:
        task("w8a-written", folder)
        names = ("naive", "naive-together", "fib-shed", "qn-shed")
        rounds = [
            {**{name: task("w8a", folder, name) for name in names}, "pooled": task("w8a-pooled", folder)}
            for _ in range(REPEATS)
        ]
    cost = {name: medians([r[name] for r in rounds]) for name in rounds[0]}
    faster = {name: median(r["naive"]["cpu"] / r[name]["cpu"] for r in rounds) for name in names}
    slower = median(r["qn-shed"]["cpu"] / r["pooled"]["cpu"] for r in rounds)
    lines = [
        "| problem W | CPU-s | iterations | MB | against the rival | asked for |",
        "|---|---|---|---|---|---|",
    ]
    asked = {
        "naive": "the rival",
        "naive-together": "agents evaluated together, as below",
        "fib-shed": "3 times faster, 250 MB",
        "qn-shed": "5.5 times faster, 250 MB",
    }
    for name in names:
        c = cost[name]
        lines.append(
            f"| `{name}` | {c['cpu']:.2f} | {c['iterations']} | {c['mb']:.0f} "
            f"| {faster[name]:.1f} times faster | {asked[name]} |"
        )
    c = cost["pooled"]
    lines.append(
        f"| scikit-learn, pooled, newton-cholesky | {c['cpu']:.2f} | {c['iterations']} | {c['mb']:.0f} "
        f"| qn-shed takes {slower:.1f} times as long | at most 10 times |"
    )
    return lines


def scale() -> list[str]:
    """Many columns, and many agents."""
    lines = ["", "| scale | CPU-s | wall-s | iterations | MB | asked for |", "|---|---|---|---|---|---|"]
    c = medians([task("sparse", "qn-shed") for _ in range(REPEATS)])
    norm = f"gradient norm {c['norm']:.0e}"
    lines.append(
        f"| n = 47,000, CSR, 20 agents, `qn-shed`: {norm} | {c['cpu']:.1f} | {c['wall']:.1f} "
        f"| {c['iterations']} | {c['mb']:.0f} | under 60 s, under 2,000 MB |"
    )
    for algorithm, most in {"fib-shed": "3,000", "qn-shed": "2,000"}.items():
        c = medians([task("dense", algorithm, 10_000, 50, 100, 12) for _ in range(REPEATS)])
        each = c["cpu"] / c["exchanges"]
        lines.append(
            f"| 10,000 agents, n = 50, 100 rows each, `{algorithm}`: {each:.2f} CPU-s a round "
            f"| {c['cpu']:.1f} | {c['wall']:.1f} | {c['iterations']} | {c['mb']:.0f} "
            f"| under 1 s a round, under {most} MB |"
        )
    importing = median(started("-c", "import fedshed") for _ in range(REPEATS))
    solving = median(started("-c", "import fedshed; fedshed.optimize") for _ in range(REPEATS))
    helping = median(started("-m", "fedshed", "--help") for _ in range(REPEATS))
    lines.append(f"| `import fedshed` | {importing:.2f} | | | | under 0.4 |")
    lines.append(f"| `import fedshed`, and its solver at first use | {solving:.2f} | | | | |")
    lines.append(f"| `fedshed --help` | {helping:.2f} | | | | under 0.5 |")
    return lines


def growth() -> list[str]:
    """CPU seconds of 4 iterations against one size, and the slope on a log-log scale over the last 3."""
    lines = [
        "",
        "| against | algorithm | CPU-s of 4 iterations | exponent | asked for |",
        "|---|---|---|---|---|",
    ]
    for what, (algorithm, sizes, axis, asked) in GROWTH.items():
        seconds = [
            median(task("dense", algorithm, *size, 4)["cpu"] for _ in range(REPEATS if size[0] < 1000 else 1))
            for size in sizes
        ]
        x = np.log([size[axis] for size in sizes][-3:])
        slope = float(np.polyfit(x, np.log(seconds[-3:]), 1)[0])
        shown = ", ".join(f"{size[axis]:,}: {s:.2f}" for size, s in zip(sizes, seconds, strict=True))
        lines.append(f"| {what.strip()} | `{algorithm}` | {shown} | {slope:.2f} | {asked} |")
    return lines


def main() -> None:
    lines = []
    for part in (problem_w, scale, growth):
        lines += part()
        print(*lines[-8:], sep="\n", flush=True)
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
