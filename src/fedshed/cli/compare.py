"""`fedshed compare`: algorithms on the same data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedshed.cli import complete
from fedshed.cli.app import app
from fedshed.cli.show import Json, check_folder, option, print_json, print_rows, progress_bar, to_json

if TYPE_CHECKING:
    from fedshed.experiments import Comparison, Study, Summary
    from fedshed.report import Recorder
    from fedshed.trace import Row

_OWN, _EACH, _USUAL = "the data set's own", "each algorithm's own", "SHED, its main rivals, ours"


@app.command(epilog="Example: fedshed compare --algorithms fib-shed,gn-shed,newton --budget 3 --l2 1e-4")
def compare(
    dataset: Annotated[str, option("Name, see `fedshed datasets`.", complete=complete.datasets)] = "digits",
    algorithms: Annotated[
        str | None, option("Names with commas; + is a Rayleigh budget.", _USUAL, complete.algorithms)
    ] = None,
    budget: Annotated[str | None, option("Eigenpairs a round, or 'rayleigh'; not for +.", _EACH)] = None,
    l2: Annotated[float, option("Ridge penalty.")] = 1e-5,
    agents: Annotated[int | None, option("Number of agents.", _OWN)] = None,
    partition: Annotated[
        str | None, option("How rows are dealt, such as iid.", _OWN, complete.partitions)
    ] = None,
    target: Annotated[int | None, option("The class against the rest.", _OWN)] = None,
    loss: Annotated[str | None, option("Such as least-squares.", _OWN)] = None,
    intercept: Annotated[bool, option("Fit an intercept, not penalised.")] = False,
    tol: Annotated[float, option("Stop at this norm of the gradient.")] = 1e-9,
    max_iterations: Annotated[int, option("Stop after so many.")] = 500,
    seed: Annotated[int, option("Decides who gets which rows and what links carry.")] = 0,
    line_search: Annotated[str | None, option("two-exchange or fused.", _EACH)] = None,
    out: Annotated[Path, option("Folder for traces, figure and report.")] = Path("results/compare"),
    report: Annotated[Path | None, option("The interactive report.", "report.html in that folder")] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    as_json: Json = False,
) -> None:
    """Run algorithms on the same data: a table, their traces as CSV and JSON, a figure, an HTML report."""
    from fedshed.experiments import Study

    names = None if algorithms is None else tuple(filter(None, algorithms.replace(" ", "").split(",")))
    study = Study(
        dataset=dataset, algorithms=names, budget=budget, l2=l2, agents=agents, partition=partition,
        target=target, loss=loss, intercept=intercept, tol=tol, max_iterations=max_iterations, seed=seed,
        line_search=line_search,
    ).resolved()  # fmt: skip
    check_folder(out)
    place = report or out / "report.html"
    check_folder(place.parent, "--report")
    recorders: dict[str, Recorder] = defaultdict(_recorder)
    with _progress(study.algorithms or (), max_iterations) as show:
        comparison = study.run(show, lambda name, progress: recorders[name](progress))
    facts, title = study.report(comparison), study.title(comparison)
    files = _write(out, comparison, facts, title)
    if not no_report:
        files.append(_write_report(place, study, comparison, recorders))
    if as_json:
        print_json(facts | {"files": [str(path) for path in files]})
    else:
        _print_summary(comparison.summary(), title)
        typer.echo("\n".join(f"wrote {path}" for path in files))


def _recorder() -> Recorder:
    from fedshed.report import Recorder

    return Recorder()


def _write(out: Path, comparison: Comparison, facts: dict[str, Any], title: str) -> list[Path]:
    from fedshed.experiments.figure import draw, save
    from fedshed.files import write_atomically

    return [
        write_atomically(out / "trace.csv", comparison.to_csv().encode()),
        write_atomically(out / "trace.json", to_json(facts | {"traces": comparison.traces()})),
        *save(draw(comparison, title), out),
    ]


def _write_report(place: Path, study: Study, comparison: Comparison, recorders: dict[str, Recorder]) -> Path:
    from fedshed.report import write
    from fedshed.report.sources import of_comparison

    return write(place, of_comparison(study, comparison, recorders))


@contextmanager
def _progress(names: Sequence[str], most: int) -> Iterator[Callable[[str, Row], None]]:
    """A bar on stderr if that is a terminal; silence elsewhere."""
    with progress_bar(counts=False) as bar:

        def show(name: str, row: Row) -> None:
            bar(names.index(name) + row.iteration / most, len(names), f"{name}, gap {row.gap:.0e}")

        yield show


def _print_summary(summary: Sequence[Summary], title: str) -> None:
    rows = [
        {
            "algorithm": one.algorithm, "iter.": one.iterations, "rounds": one.rounds,
            "exch.": one.exchanges, "KB up": _short(one.kb_up), "KB down": _short(one.kb_down),
            "vectors": f"{one.vectors_up:.0f}", "Hess.": f"{one.hessians:.0f}", "gap": f"{one.gap:.1e}",
            "sec.": f"{one.seconds:.2f}", "ended": "converged" if one.converged else "stopped",
        }
        for one in summary
    ]  # fmt: skip
    stopped = [f"{one.algorithm} stopped: {one.reason}" for one in summary if not one.converged]
    note = "KB (1000 bytes), vectors sent and Hessians computed are per agent; gap = f - f*"
    print_rows(rows, [note, *stopped], title)


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 1000 else f"{number:.0f}"
