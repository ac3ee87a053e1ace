"""The steps, each of which writes some of the figures and pages of docs/."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from benchmarks.figures import screenshots, tables
from benchmarks.figures.stale import DOCS, ROOT
from benchmarks.rivals import report as rivals
from fedshed._utils.canvas import rendered
from fedshed.experiments import ComparisonSpec, networks
from fedshed.experiments.page import page
from fedshed.experiments.plan import load, names
from fedshed.experiments.provenance import code_hash, stamp, stamped
from fedshed.experiments.reproduce import reproduce
from fedshed.experiments.runs import cache_folder
from fedshed.experiments.times import TimeMap

FIGURES = DOCS / "figures"
JOBS = 2
# as in `make demo` and docs/tutorials/compare.md
DEMO = ComparisonSpec(dataset="digits", agents=20, partition="two-class", l2=1e-5)
NETWORKS = ComparisonSpec(
    dataset="fashion-mnist", agents=28, partition="two-class", l2=1e-5,
    algorithms=("newton", "newton-seldom", "pen", "qn-shed", "lbfgs-coded", "fib-shed"),
)  # fmt: skip
TUTORIALS = ("compare", "hospitals", "selection", "survival", "validation")


def the_paper() -> None:
    """Every figure of the paper, the ablation, and the page of claims."""
    plans = [load(name) for name in names()]
    reproduce(plans, FIGURES, cache_folder(), jobs=JOBS, on_run=_told)
    (DOCS / "results.md").write_text(page(cache_folder(), "figures"))


def _told(done: int, count: int, what: str) -> None:
    print(f"{done:4}/{count} {what}", flush=True)


def all_rivals() -> None:
    """Every rival against ours."""
    rivals.make(ROOT / rivals.RESULTS, DOCS)


def demo() -> None:
    """What `make demo` draws."""
    _save("demo", DEMO.run().plot(), (DEMO.seed,))


def map_of_networks() -> None:
    """The fastest algorithm by latency and rate; CPU seconds are measured once for this code."""
    kept = cache_folder() / f"networks-{code_hash()}.mp"
    if not kept.exists():
        found = NETWORKS.run()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(msgspec.msgpack.encode((found.title, found.time_map())))
    title, times = msgspec.msgpack.decode(kept.read_bytes(), type=tuple[str, TimeMap])
    _save("networks", networks.draw(times, title.replace("fashion-mnist", "Fashion-MNIST")), (NETWORKS.seed,))


def concepts() -> None:
    """The pictures of docs/concepts.md."""
    drawn = runpy.run_path(str(FIGURES / "concepts.py"))["drawn"]
    for name, figure in drawn().items():
        _save(f"concept-{name}", figure, (0,))


def tutorials() -> None:
    """The figures that tutorials show, made by their commands."""
    pages = [DOCS / "tutorials" / f"{name}.md" for name in TUTORIALS]
    command = [sys.executable, ROOT / "tests/pages.py", "--figures", *pages]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    for path in map(Path, done.stdout.split()):
        path.write_bytes(stamped(path.read_bytes(), stamp()))


def _save(name: str, figure: Figure, seeds: tuple[int, ...]) -> None:
    (FIGURES / f"{name}.svg").write_bytes(stamped(rendered(figure, "svg"), stamp(seeds)))


STEPS: dict[str, Callable[[], None]] = {
    "paper": the_paper,
    "rivals": all_rivals,
    "networks": map_of_networks,
    "demo": demo,
    "concepts": concepts,
    "tutorials": tutorials,
    "report": lambda: screenshots.make(DEMO, FIGURES),
    "tables": tables.write,
}
