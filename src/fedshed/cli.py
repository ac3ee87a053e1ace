"""The command `fedshed`: compare algorithms, and list them and the data sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer
from typer.core import TyperGroup

from fedshed import __version__
from fedshed.errors import ConfigError, DataError, Error, SingularError

if TYPE_CHECKING:
    from fedshed.datasets.loaders import Dataset
    from fedshed.experiments import Comparison, Summary
    from fedshed.trace import Row

WIDTH = 100  # of a table that goes into a pipe or a file


class _Commands(TyperGroup):
    """Commands whose mistakes are told in one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; wrong use exits with 2, another error of ours with 1, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except Error as error:
            wrong_use = isinstance(error, ConfigError | DataError | SingularError)
            _stop(f"error: {error}", 2 if wrong_use else 1)
        except KeyboardInterrupt:
            _stop("interrupted", 130)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def main() -> None:
    """Run the command line."""
    app(prog_name="fedshed")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedshed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Second-order federated learning of convex models."""


def _option(text: str, default: str | bool = True) -> Any:
    return typer.Option(help=text, show_default=default)


_OWN, _EACH, _USUAL = "the data set's own", "each algorithm's own", "SHED, its main rivals, ours"


@app.command(epilog="Example: fedshed compare --algorithms fib-shed,gn-shed,newton --budget 3 --l2 1e-4")
def compare(
    dataset: Annotated[str, _option("Name, see `fedshed datasets`.")] = "digits",
    algorithms: Annotated[str | None, _option("Names with commas; + is a Rayleigh budget.", _USUAL)] = None,
    budget: Annotated[str | None, _option("Eigenpairs a round, or 'rayleigh'; not for +.", _EACH)] = None,
    l2: Annotated[float, _option("Ridge penalty.")] = 1e-5,
    agents: Annotated[int | None, _option("Number of agents.", _OWN)] = None,
    partition: Annotated[str | None, _option("How rows are dealt, such as iid.", _OWN)] = None,
    target: Annotated[int | None, _option("The class against the rest.", _OWN)] = None,
    loss: Annotated[str | None, _option("Such as least-squares.", _OWN)] = None,
    intercept: Annotated[bool, _option("Fit an intercept, not penalised.")] = False,
    tol: Annotated[float, _option("Stop at this norm of the gradient.")] = 1e-9,
    max_iterations: Annotated[int, _option("Stop after so many.")] = 500,
    seed: Annotated[int, _option("Decides who gets which rows and what links carry.")] = 0,
    line_search: Annotated[str | None, _option("two-exchange or fused.", _EACH)] = None,
    out: Annotated[Path, _option("Folder for traces and figure.")] = Path("results/compare"),
    as_json: Json = False,
) -> None:
    """Run algorithms on the same data: one table, their traces as CSV and JSON, and a figure."""
    from fedshed.experiments import Study

    names = None if algorithms is None else tuple(filter(None, algorithms.replace(" ", "").split(",")))
    study = Study(
        dataset=dataset, algorithms=names, budget=budget, l2=l2, agents=agents, partition=partition,
        target=target, loss=loss, intercept=intercept, tol=tol, max_iterations=max_iterations, seed=seed,
        line_search=line_search,
    ).resolved()  # fmt: skip
    _check_folder(out)
    with _progress(study.algorithms or (), max_iterations) as show:
        comparison = study.run(show)
    report, title = study.report(comparison), study.title(comparison)
    files = _write(out, comparison, report, title)
    if as_json:
        _print_json(report | {"files": [str(path) for path in files]})
    else:
        _print_summary(comparison.summary(), title)
        typer.echo("\n".join(f"wrote {path}" for path in files))


@app.command(epilog="Example: fedshed reproduce fmnist-1e-5 --out figures")
def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, a family such as mnist, 'all', or 'list'.")],
    quick: Annotated[bool, _option("On small embedded data, with few iterations.")] = False,
    out: Annotated[Path, _option("Folder for the figures.")] = Path("results/figures"),
    results: Annotated[Path | None, _option("With 'all': write the page of claims here.", "none")] = None,
    jobs: Annotated[int, _option("Processes.")] = 2,
) -> None:
    """Reproduce the paper's figures; runs are cached by content, so a stopped call goes on where it was."""
    from fedshed.experiments.plan import load, names, select
    from fedshed.experiments.reproduce import reproduce as run
    from fedshed.experiments.runs import cache_folder

    if name == "list":
        rows = [{"name": one, "paper": load(one).paper, "what": load(one).title} for one in names()]
        return _print_rows(rows, [])
    chosen = select(name)
    if results is not None and name != "all":
        raise ConfigError("--results needs the runs of all experiments: fedshed reproduce all --results FILE")
    _check_folder(out)
    with _counter() as show:
        paths = run(chosen, out, cache_folder(), quick=quick, jobs=jobs, on_run=show)
    if results is not None:
        from fedshed.experiments.claims import page
        from fedshed.files import write_atomically

        figures = os.path.relpath(out, results.parent)
        paths.append(write_atomically(results, page(cache_folder(), figures, quick).encode()))
    typer.echo("\n".join(f"wrote {path}" for path in paths))


@app.command()
def algorithms(as_json: Json = False) -> None:
    """List the algorithms: the losses they are for, their budget, and their source."""
    from fedshed.algorithms import ALGORITHMS

    rows = [
        {
            "name": entry.name, "what": entry.about, "losses": ", ".join(entry.algorithm.losses or ("any",)),
            "budget": _budget(entry.algorithm), "source": entry.source,
        }
        for entry in ALGORITHMS.values()
    ]  # fmt: skip
    notes = ["budget: eigenpairs a round; a name with + has a Rayleigh budget"]
    _print_json(rows) if as_json else _print_rows(rows, notes)


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the data sets: their size and defaults, and where they are or how to get them."""
    from fedshed.datasets.loaders import DATASETS

    fields = ("name", "rows", "columns", "loss", "agents", "partition")
    rows = [{key: getattr(data, key) for key in fields} | _place(data) for data in DATASETS.values()]
    notes = [f"{row['name']}: {row['how']}" for row in rows if row["how"]]
    shown = [{key: row[key] or "no" for key in (*fields, "found")} for row in rows]
    _print_json(rows) if as_json else _print_rows(shown, notes)


# --- what is written ------------------------------------------------------------------------------


def _check_folder(out: Path) -> None:
    """A folder that cannot be made or written to is found out before the work, not after it."""
    there = next(path for path in (out, *out.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise ConfigError(f"--out {out}: {there} is not a folder that can be written to; name another")


def _write(out: Path, comparison: Comparison, report: dict[str, Any], title: str) -> list[Path]:
    from fedshed.experiments.figure import draw, save
    from fedshed.files import write_atomically

    return [
        write_atomically(out / "trace.csv", comparison.to_csv().encode()),
        write_atomically(out / "trace.json", _json(report | {"traces": comparison.traces()})),
        *save(draw(comparison, title), out),
    ]


def _json(value: Any) -> bytes:
    """Indented JSON; what is not finite is null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


# --- what is shown --------------------------------------------------------------------------------


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


@contextmanager
def _progress(names: Sequence[str], most: int) -> Iterator[Callable[[str, Row], None]]:
    """A bar on stderr if that is a terminal; silence elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("loading", total=len(names))

        def show(name: str, row: Row) -> None:
            done = names.index(name) + row.iteration / most
            bar.update(task, completed=done, description=f"{name}, gap {row.gap:.0e}")

        yield show


@contextmanager
def _counter() -> Iterator[Callable[[int, int, str], None]]:
    """A bar with the time left on stderr if that is a terminal; silence elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


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
    _print_rows(rows, [note, *stopped], title)


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 1000 else f"{number:.0f}"


def _print_rows(rows: Sequence[dict[str, Any]], notes: Sequence[str], title: str | None = None) -> None:
    """A table, numbers to the right, and notes below it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1)
    )
    for name in rows[0]:
        right = all(str(row[name])[:1] in "-0123456789" for row in rows)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False)
    console.print(table, *notes, sep="\n")


def _print_json(value: Any) -> None:
    typer.echo(_json(value), nl=False)


def _budget(algorithm: Any) -> int | str:
    """An algorithm's own budget: eigenpairs a round, the name of a channel, or none."""
    channel = getattr(algorithm, "channel", None)
    if channel is None:
        return "none: fixed size"
    return getattr(channel, "pairs", type(channel).__name__.lower())


def _place(dataset: Dataset) -> dict[str, str | None]:
    """Where a data set was found, or how to get it."""
    from fedshed.datasets.loaders import find

    if not dataset.files:
        return {"found": "in scikit-learn", "how": None}
    try:
        paths = [find(name) for name in dataset.files]
    except DataError as sentence:
        return {"found": None, "how": str(sentence)}
    return {"found": str(paths[0].parent), "how": None}
