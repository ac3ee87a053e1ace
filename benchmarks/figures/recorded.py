"""docs/figures/recorded.json: the settings and behaviours that each figure and page was recorded with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from benchmarks.rivals import runs
from benchmarks.rivals.contenders import ALL
from benchmarks.rivals.problems import TASKS
from fedshed._utils.files import write_atomically
from fedshed.experiments import ComparisonSpec
from fedshed.experiments.behaviour import Behaviour, behaviour
from fedshed.experiments.plan import Figure, Run, load, names
from fedshed.experiments.reproduce import all_specs
from fedshed.experiments.runs import behaviour_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIGURES = DOCS / "figures"
# as in `make demo` and docs/tutorials/compare.md
DEMO = ComparisonSpec(dataset="digits", agents=20, partition="two-class", l2=1e-5)
NETWORKS = ComparisonSpec(
    dataset="fashion-mnist", agents=28, partition="two-class", l2=1e-5,
    algorithms=("newton", "newton-seldom", "pen", "qn-shed", "lbfgs-coded", "fib-shed"),
)  # fmt: skip
TUTORIALS = ("compare", "ridges", "hospitals", "tutorial-selection", "survival", "validation")
CONCEPTS = ("concept-sharing", "concept-renewals", "concept-ratios")
REPORT = ("report-desktop.png", "report-phone.png")
# these show the demo, or run some of its algorithms on small data
OF_DEMO = (*(f"{one}.svg" for one in ("demo", *CONCEPTS, *TUTORIALS)), *REPORT)


class Source(Struct):
    """What a file is made from: settings, and what each algorithm does, by its name."""

    settings: str
    does: dict[str, Callable[[], Behaviour]]


class Entry(Struct):
    """A recorded file: the hash of its settings, and the hashes of behaviours by algorithm."""

    settings: str
    does: dict[str, str]


class Book(Struct):
    """All recorded files by name, and behaviours by hash."""

    files: dict[str, Entry] = {}
    behaviours: dict[str, Behaviour] = {}


def sources() -> dict[str, Source]:
    """All files that `make figures` writes, and what they are made from."""
    plans = {name: load(name) for name in names()}
    made = {file_of(plan): _of_plans([plan]) for plan in plans.values()}
    made["../results.md"] = _of_plans(list(plans.values()))
    made |= dict.fromkeys(("rivals.md", "rivals-up.svg", "rivals-both.svg"), _of_rivals())
    made["networks.svg"] = _of_comparison(NETWORKS)
    return made | dict.fromkeys(OF_DEMO, _of_comparison(DEMO))


def file_of(plan: Figure) -> str:
    """The file of an experiment, seen from docs/figures."""
    return f"{plan.name}.{'md' if plan.kind == 'table' else 'svg'}"


def note(files: Iterable[str]) -> None:
    """Write down that these files were recorded now."""
    book, made = _read(), sources()
    for file in files:
        now = {name: does() for name, does in made[file].does.items()}
        hashes = {name: _hash(one) for name, one in now.items()}
        book.files[file] = Entry(_hash(made[file].settings), hashes)
        book.behaviours |= {hashes[name]: one for name, one in now.items()}
    used = {one for entry in book.files.values() for one in entry.does.values()}
    behaviours = {one: book.behaviours[one] for one in sorted(used)}
    data = msgspec.json.encode(Book(dict(sorted(book.files.items())), behaviours))
    write_atomically(_path(), msgspec.json.format(data, indent=1), private=False)


def stale() -> list[str]:
    """A line for each file that would be made from other settings or other behaviours today."""
    book = _read()
    found = ((file, _why(book.files.get(file), source, book)) for file, source in sources().items())
    return [f"docs/figures/{file}: {why}".replace("figures/../", "") for file, why in found if why]


def is_current(file: str) -> bool:
    """Whether a file is there and would be made from the same today."""
    book = _read()
    return (FIGURES / file).exists() and not _why(book.files.get(file), sources()[file], book)


def _why(entry: Entry | None, source: Source, book: Book) -> str:
    """Why a file is stale, in words; nothing where it is not."""
    if entry is None:
        return "what it was recorded with is not known"
    if entry.settings != _hash(source.settings) or entry.does.keys() != source.does.keys():
        return "its settings have changed"
    changed = [
        name for name, does in source.does.items() if not does().agrees(book.behaviours[entry.does[name]])
    ]
    return f"other behaviour of {', '.join(changed)}" if changed else ""


def _of_plans(plans: Sequence[Figure]) -> Source:
    specs = all_specs(plans)
    does = {f"{spec.problem.loss}: {_words(spec.run)}": partial(behaviour_of, spec) for spec in specs}
    return Source(repr(plans), does)


def _words(run: Run) -> str:
    """An algorithm with the parameters that are not its own."""
    shown = {name: value for name, value in asdict(run).items() if value != getattr(_DEFAULT, name)}
    own = {
        name: value for name, value in shown.items() if name not in ("algorithm", "label", "max_iterations")
    }
    return " ".join([run.algorithm, *(f"{name}={value}" for name, value in own.items())])


_DEFAULT = Run("")


def _of_comparison(spec: ComparisonSpec) -> Source:
    """The algorithms of a comparison."""
    study = spec.resolved()
    return Source(study.command(), {name: partial(_ready, spec, name) for name in study.algorithms or ()})


@cache
def _ready(spec: ComparisonSpec, name: str) -> Behaviour:
    algorithm = spec.resolved().prepared()[name]
    return behaviour(lambda *_: algorithm, "logistic")


def _of_rivals() -> Source:
    """Every setting where it is tuned; those that have one setting on all losses."""
    losses = sorted({task.loss for task in TASKS.values()})
    cases = [
        (loss, one.name, setting)
        for one in ALL
        for setting in one.grid
        for loss in (losses if len(one.grid) == 1 else ["logistic"])
    ]
    does = {
        f"{loss}: {name}, {setting}": partial(runs.does, name, setting, loss) for loss, name, setting in cases
    }
    return Source(repr((TASKS, ALL)), does)


def _read() -> Book:
    path = _path()
    return msgspec.json.decode(path.read_bytes(), type=Book) if path.exists() else Book()


def _path() -> Path:
    return FIGURES / "recorded.json"


def _hash(value: Any) -> str:
    return blake2b(msgspec.json.encode(value), digest_size=6).hexdigest()
