"""The steps, each of which writes some of the figures and pages of docs/."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.figures import recorded, screenshots, tables
from benchmarks.figures.recorded import DEMO, DOCS, FIGURES, NETWORKS, ROOT
from benchmarks.rivals import report as rivals
from fedshed._utils.canvas import rendered
from fedshed.experiments import networks
from fedshed.experiments.page import page
from fedshed.experiments.plan import load, names
from fedshed.experiments.provenance import save, stamp, stamped
from fedshed.experiments.reproduce import reproduce
from fedshed.experiments.runs import cache_folder, recall_or_make
from fedshed.experiments.times import TimeMap

JOBS = 2
PAGES = ("compare", "hospitals", "selection", "survival", "validation")


def the_paper() -> None:
    """Every figure of the paper, the ablation, and the page of claims."""
    plans = [load(name) for name in names()]
    reproduce(plans, FIGURES, cache_folder(), jobs=JOBS, on_run=_tell, on_figure=_note)
    save(DOCS / "results.md", page(cache_folder(), "figures").encode())
    recorded.note(["../results.md"])


def _tell(done: int, count: int, what: str) -> None:
    print(f"run {done} of {count}: {what}", flush=True)


def _note(done: int, count: int, name: str) -> None:
    recorded.note([recorded.file_of(load(name))])
    print(f"--- figure {done} of {count}: {name}", flush=True)


def all_rivals() -> None:
    """Every rival against ours."""
    rivals.make(ROOT / rivals.RESULTS, DOCS)
    recorded.note(["rivals.md", "rivals-up.svg", "rivals-both.svg"])


def demo() -> None:
    """What `make demo` draws."""
    _save("demo", DEMO.run().plot(), (DEMO.seed,))


def map_of_networks() -> None:
    """The fastest algorithm by latency and rate; CPU seconds are measured again where behaviour changes."""

    def make() -> tuple[str, TimeMap | None]:
        found = NETWORKS.run()
        return found.title, found.time_map()

    now = [does() for does in recorded.sources()["networks.svg"].does.values()]
    title, times = recall_or_make(cache_folder() / "networks.mp", tuple[str, TimeMap], now, make)
    _save("networks", networks.draw(times, title.replace("fashion-mnist", "Fashion-MNIST")), (NETWORKS.seed,))


def concepts() -> None:
    """The pictures of docs/concepts.md."""
    drawn = runpy.run_path(str(FIGURES / "concepts.py"))["drawn"]
    for name, figure in drawn().items():
        _save(f"concept-{name}", figure, (0,))


def tutorials() -> None:
    """The figures that tutorials show, made by their commands."""
    pages = [DOCS / "tutorials" / f"{name}.md" for name in PAGES]
    before = {path: path.read_bytes() for path in FIGURES.glob("*.svg")}
    command = [sys.executable, ROOT / "tests/pages.py", "--figures", *pages]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    for path in map(Path, done.stdout.split()):
        drawn = stamped(path.read_bytes(), stamp())
        path.write_bytes(before.get(path.resolve(), b""))
        save(path, drawn)
    recorded.note(f"{name}.svg" for name in recorded.TUTORIALS)


def _save(name: str, figure: Figure, seeds: tuple[int, ...]) -> None:
    save(FIGURES / f"{name}.svg", stamped(rendered(figure, "svg"), stamp(seeds)))
    recorded.note([f"{name}.svg"])


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
