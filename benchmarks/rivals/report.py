"""The command: runs what is missing, then prints or writes tables and figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

from threadpoolctl import threadpool_limits

from benchmarks.rivals import figures, page
from benchmarks.rivals.claims import Ours
from benchmarks.rivals.contenders import ALL, TUNED_ON
from benchmarks.rivals.page import Medians
from benchmarks.rivals.problems import CHOSEN, HELD_OUT, TASKS, lower_bound, posed
from benchmarks.rivals.runs import Cell, Outcome, Store, does, measured
from fedshed._utils.mathematics import tex
from fedshed.experiments import verdicts
from fedshed.experiments.provenance import Stamp, save, stamp
from fedshed.experiments.runs import recall_or_make

TIMED = ("newton", "pen", "qn-shed")
COMMAND = "python -m benchmarks rivals --write docs"
TITLES = {"The problems on which constants were chosen": CHOSEN, "The problems that were held out": HELD_OUT}


def main() -> None:
    """All runs, then the page; `--write docs` puts page and figures there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks rivals")
    parser.add_argument("name", nargs="*")
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    asked = parser.parse_args()
    print(make(asked.results, asked.write))


RESULTS = Path("results/rivals")


def make(results: Path = RESULTS, write: Path | None = None) -> str:
    """The page; with a folder to write to, page and figures are written there."""
    began, store = time.monotonic(), Store(results)
    settings = ran(store)
    found = page.medians(store.known, settings)
    bounds = {problem: lower_bound(problem, task.seeds[0]) for problem, task in TASKS.items()}
    text = written(store.known, settings, found, bounds) + "\n" + seconds(results)
    print(f"rivals: {time.monotonic() - began:.0f} s", file=sys.stderr)
    if write is not None:
        save(write / "figures/rivals.md", text.encode())
        figures.draw(found, bounds, write / "figures", _stamp())
    return text


def ran(store: Store) -> dict[str, str]:
    """Make all runs that are missing; the setting that each contender has."""
    _follow(store, [Cell(p, 0, one.name, setting) for p in TUNED_ON for one in ALL for setting in one.grid])
    settings = page.tuned(store.known)
    _follow(
        store,
        [
            cell
            for problem in TASKS
            for one in ALL
            for cell in page.cells_of(one, problem, store.known, settings[one.name])
        ],
    )
    return settings


def _stamp() -> Stamp:
    return stamp(sorted({seed for task in TASKS.values() for seed in task.seeds}))


def seconds(results: Path, problem: str = "F5", times: int = 5) -> str:
    """CPU seconds of ours against Newton's, in turn in this process; measured for this behaviour."""
    now = [does(name, "as it is", TASKS[problem].loss) for name in TIMED]
    text: str = recall_or_make(results / "cpu.mp", str, now, lambda: _seconds(problem, times))
    return text


def _seconds(problem: str, times: int) -> str:
    cells = {name: Cell(problem, 0, name, "as it is") for name in TIMED}
    with threadpool_limits(1):
        runs = [{name: measured(cell).cpu for name, cell in cells.items()} for _ in range(times)]
    took = {name: median(run[name] for run in runs) for name in cells}
    ratios = {name: median(run[name] / run["newton"] for run in runs) for name in cells}
    said = "; ".join(f"`{name}` {took[name]:.2f} s, {ratios[name]:.1f} times Newton's" for name in cells)
    return f"## CPU\n\nAll agents and the Master in one process on {problem}, median of {times}: {said}.\n"


def _follow(store: Store, cells: Iterable[Cell]) -> None:
    """Run what is missing; a line for each on a terminal or in a log, not in the page."""
    wanted = list(dict.fromkeys(cells))
    for count, one in enumerate(store.run(wanted), 1):
        cell, how = one.cell, "" if one.reached else f"  gap {one.gap:.0e}: {one.why}"
        print(
            f"{count:4}/{len(wanted)} {cell.problem:12} {cell.seed} {cell.name:14} {cell.setting:14} "
            f"{one.exchanges:4} {one.up:8.1f} {one.down:8.1f} {one.cpu:6.1f} s{how}",
            file=sys.stderr,
            flush=True,
        )


def written(
    known: Mapping[Cell, Outcome], settings: Mapping[str, str],
    found: Mapping[tuple[str, str], Medians], bounds: Mapping[str, float],
) -> str:  # fmt: skip
    """The page in Markdown."""
    dims = {problem: len(posed(problem, task.seeds[0])[1]) for problem, task in TASKS.items()}
    parts = [HEAD, _stamp().sentence()]
    for title, tasks in TITLES.items():
        about = "\n".join(
            f"- {label}: {task.about}; {task.loss}, $\\ell_2 = {tex(task.l2)}$, $n = {dims[label]}$, "
            f"seeds {', '.join(map(str, task.seeds))}; at least {bounds[label]:.2f} KB up (lower bound)"
            for label, task in tasks.items()
        )
        parts.append(f"## {title}\n\n{about}\n\n{page.table(found, list(tasks))}")
    parts.append(f"## Who needs the least\n\n{page.least(found)}")
    parts.append(f"## What was tuned\n\n{page.settings_table(known, settings)}")
    parts.append(f"## What is claimed of our own algorithms\n\n{CLAIMS}\n\n{verdicts.table()}")
    parts.append(Ours(known, settings, dims).table())
    return "\n\n".join(parts) + "\n"


HEAD = rf"""# Rivals: every run

Written by `{COMMAND}`, which `make figures` runs, too. A cell is exchanges / KB up / KB down per agent
until $f(\theta^t) - f^\star < 10^{{-11}}$; every encoded byte is counted, also those of rejected steps. It is
the median over the seeds where a contender is run with three. Rivals that send far more are run with the
first seed, and those that came nowhere near on F5 and W5 not on the larger problems. All have the exchange
that brings costs and update together, where they search along a line. Where the gap was not reached, the cell
says how near the run came after how many exchanges."""
CLAIMS = """The same thresholds decide as for [the paper's claims](../results.md). A ratio is that of the
medians; ✓ meets the threshold, ✗ does not, and ? is open, because a run was stopped too early."""
