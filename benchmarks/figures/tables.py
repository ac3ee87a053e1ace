"""Tables of hand-written pages, filled from recorded runs between <!-- NAME --> and <!-- /NAME -->."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures.recorded import DOCS, ROOT
from benchmarks.rivals import page, report
from benchmarks.rivals.page import Medians
from benchmarks.rivals.runs import Store
from fedshed.experiments.measured import shown
from fedshed.experiments.plan import load
from fedshed.experiments.repeats import Repeats
from fedshed.experiments.reproduce import recorded
from fedshed.experiments.runs import cache_folder

HELD_OUT = ("F5'", "F8'", "W5'", "WI6", "A5", "M5")
COMPARED = (
    "pen", "qn-shed", "lbfgs-coded", "newton", "newton-seldom", "lbfgs", "q-shed", "fednl-natural", "fedns",
    "disco", "fib-shed",
)  # fmt: skip
CHOSEN = {"Fashion-MNIST": "F5'", "w8a, i.i.d.": "WI6", "a9a": "A5"}
FEW = ("newton", "pen", "qn-shed", "lbfgs-coded", "newton-seldom", "lbfgs")
ROUNDS = ("fib-shed", "fib-shed+", "gn-shed", "fednl", "lbfgs", "giant", "heavy-ball")


def write() -> None:
    """All tables."""
    found = _medians()
    fill(DOCS / "beyond.md", "rivals", _rivals(found, COMPARED, dict(zip(HELD_OUT, HELD_OUT, strict=True))))
    fill(DOCS / "beyond.md", "least", page.least(found))
    fill(DOCS / "choose.md", "rivals", _rivals(found, FEW, CHOSEN))
    fill(DOCS / "choose.md", "rounds", _rounds())


def fill(path: Path, name: str, text: str) -> None:
    """Put a text between the marks of a page."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, whole = path.read_text(), re.compile(f"{start}.*?{end}", re.S)
    if not whole.search(before):
        raise SystemExit(f"{path} has no {start} ... {end}, between which a table is written")
    path.write_text(whole.sub(lambda _: f"{start}\n{text}\n{end}", before))


def _medians() -> dict[tuple[str, str], Medians]:
    store = Store(ROOT / report.RESULTS)
    return page.medians(store.known, page.tuned(store.known))


def _rivals(found: dict[tuple[str, str], Medians], names: Sequence[str], problems: dict[str, str]) -> str:
    """Exchanges / KB up / KB down; a dash where there was no run."""
    rows = [
        [f"`{name}`", *(str(found.get((problem, name), "–")) for problem in problems.values())]
        for name in names
    ]
    return _table(["", *problems], rows)


def _rounds() -> str:
    """Rounds, vectors and Hessians on Fashion-MNIST, and rounds on w8a."""
    iid, differ = recorded(load("fmnist-1e-5"), cache_folder()).values()
    w8a = next(iter(recorded(load("w8a"), cache_folder()).values()))
    beside = list(recorded(load("classical"), cache_folder()).values())  # with L-BFGS, which the paper lacks
    differ, w8a = [*differ, *beside[0]], [*w8a, *beside[-1]]
    columns = {
        "rounds, sites differ": (differ, "rounds"), "rounds, i.i.d.": (iid, "rounds"),
        "vectors sent, sites differ": (differ, "uplink_vectors"),
        "Hessians, sites differ": (differ, "hessians"), "rounds on w8a": (w8a, "rounds"),
    }  # fmt: skip
    rows = [
        [f"`{name}`", *(_count(runs, name, count) for runs, count in columns.values())] for name in ROUNDS
    ]
    return _table(["algorithm", *columns], rows)


def _count(runs: Sequence[Repeats], name: str, count: str) -> str:
    found = next((one for one in runs if one.name == name), None)
    return "–" if found is None else shown(found.amounts(count), count)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
