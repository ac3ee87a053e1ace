"""`fedshed compare`: algorithms on the same data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from fedshed._utils.errors import ConfigError
from fedshed.cli import complete
from fedshed.cli.app import app
from fedshed.cli.panels import ALGORITHMS, DATA_SET, OUTPUT, PENALTIES
from fedshed.cli.show import (
    NOT_POOLED,
    REPORT,
    Json,
    check_file,
    check_folder,
    command_line,
    flag,
    option,
    print_rows,
    progress_bar,
    say,
    to_json,
    told,
    told_as_json,
)
from fedshed.cli.table_options import TableOptions, option_names, refuse_given, with_options, words

if TYPE_CHECKING:
    from fedshed.experiments import Comparison, Summary
    from fedshed.experiments.compare import OnResult, OnRow
    from fedshed.solve.trace import Row

_OWN, _EACH = "as listed for the data set", "each algorithm's default"
_USUAL = "SHED, its variants and the main competing methods"
OF_A_DATA_SET = ("dataset", "agents", "partition", "preprocessing", "loss", "repeats")


@app.command(epilog="Example: fedshed compare --algorithms fib-shed,my.py:DiagonalNewton --l2 1e-4")
@with_options(TableOptions)
def compare(
    context: typer.Context,
    tables: Annotated[
        list[Path] | None, typer.Argument(help="Your own tables, as for `fedshed fit`.", show_default=False)
    ] = None,
    dataset: Annotated[
        str,
        option(
            "The data set; `fedshed datasets` lists all of them.",
            complete=complete.datasets,
            panel=DATA_SET,
            metavar="NAME",
        ),
    ] = "digits",
    algorithms: Annotated[
        str | None,
        option(
            "Names separated by commas, or FILE.py:CLASS. NAME+ runs NAME over a simulated fading (Rayleigh) "
            "link.",
            _USUAL,
            complete.algorithms,
            panel=ALGORITHMS,
            metavar="NAMES",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        option(
            "Eigenpairs per round, or 'rayleigh'; names with + and algorithms without a budget ignore it.",
            _EACH,
            panel=ALGORITHMS,
        ),
    ] = None,
    l2: Annotated[float, option("The ridge penalty on the mean loss.", panel=PENALTIES)] = 1e-5,
    agents: Annotated[
        int | None, option("The number of agents, which simulate sites.", _OWN, panel=DATA_SET)
    ] = None,
    partition: Annotated[
        str | None,
        option(
            "How rows are distributed over the agents, such as iid.",
            _OWN,
            complete.partitions,
            panel=DATA_SET,
            metavar="NAME",
        ),
    ] = None,
    preprocessing: Annotated[
        str | None,
        option(
            "How images become columns: pca-uncentred or pca-rescaled.",
            "pca-uncentred for image sets",
            complete=complete.preprocessings,
            panel=DATA_SET,
            metavar="NAME",
        ),
    ] = None,
    loss: Annotated[
        str | None, option("The loss, such as least-squares.", _OWN, panel=DATA_SET, metavar="NAME")
    ] = None,
    intercept: Annotated[
        bool | None,
        option(
            "Fit an intercept, which is not penalised.",
            "yes with your own tables, otherwise no",
            panel=PENALTIES,
        ),
    ] = None,
    line_search: Annotated[
        str | None, option("The line search: two-exchange or fused.", _EACH, panel=ALGORITHMS)
    ] = None,
    tol: Annotated[
        float, option("Stop when the norm of the gradient is below this number.", panel=ALGORITHMS)
    ] = 1e-9,
    max_iterations: Annotated[int, option("Stop after this many iterations.", panel=ALGORITHMS)] = 500,
    gap: Annotated[
        float | None,
        option(
            "Compare what each run used until f - f* fell below this number.",
            "until --tol is reached",
            panel=ALGORITHMS,
        ),
    ] = None,
    seed: Annotated[
        int,
        option("The seed of the partition of the rows and of the simulated links.", panel=ALGORITHMS),
    ] = 0,
    repeats: Annotated[
        int,
        option("The number of partitions of the rows, with the seeds seed, seed + 1, ...", panel=DATA_SET),
    ] = 1,
    every_column: Annotated[
        bool, flag("--all", "Show all columns, even on a narrow terminal.", OUTPUT)
    ] = False,
    out: Annotated[
        Path, option("The folder for the traces, the figures and the report.", panel=OUTPUT)
    ] = Path("results/compare"),
    report: Annotated[Path | None, option(*REPORT, panel=OUTPUT)] = None,
    no_report: Annotated[bool, flag("--no-report", "Do not write a report.", OUTPUT)] = False,
    as_json: Json = False,
    *,
    given: TableOptions,
) -> None:
    """Run algorithms on the same data and write a table, traces (CSV, JSON), figures and an HTML report.

    With TABLES, the data are your own tables, described by the options of
    `fedshed fit`. Without TABLES, the data are a data set whose rows are
    distributed over agents; --target is then the number of the class that is
    modelled against all others.
    """
    names = None if algorithms is None else tuple(words(algorithms) or ())
    check_folder(out)
    place = report or out / "report.html"
    check_file(place)
    common: dict[str, Any] = {
        "algorithms": names, "budget": budget, "l2": l2, "tol": tol, "max_iterations": max_iterations,
        "gap": gap, "seed": seed, "line_search": line_search,
    }  # fmt: skip
    if tables:
        refuse_given(
            context,
            OF_A_DATA_SET,
            "applies to data sets only; your own tables define the sites, so leave it out",
        )
        run = _on_tables(context, tables, given, intercept is not False, common)
    else:
        own = [name for name in option_names(TableOptions) if name != "target"]
        refuse_given(
            context, own, "applies to your own tables only; name them, as for `fedshed fit`, or leave it out"
        )
        data = {
            "dataset": dataset, "agents": agents, "partition": partition, "loss": loss,
            "target": _class(given.target), "preprocessing": preprocessing, "intercept": bool(intercept),
            "repeats": repeats,
        }  # fmt: skip
        run = _on_data_set(context, common | data)
    settings, comparison = run
    found = _files(out, comparison, settings, None if no_report else place)
    if as_json:
        from fedshed.experiments.study import facts

        told_as_json(facts(settings, comparison), found)
    else:
        _print_summary(comparison, every_column)
        told(found)


def _on_data_set(context: typer.Context, settings: dict[str, Any]) -> tuple[dict[str, Any], Comparison]:
    """The comparison on a named data set, and its settings as they were used."""
    from msgspec.structs import replace

    from fedshed.experiments import ComparisonSpec

    study = ComparisonSpec(**settings).resolved()
    with _progress(len(study.algorithms or ()) * study.repeats, study.max_iterations) as (on_row, on_result):
        comparison = study.run(on_row, on_result)
    command = command_line(context)
    return asdict(study), replace(comparison, setting=replace(comparison.setting, command=command))


def _on_tables(
    context: typer.Context, tables: list[Path], given: TableOptions, intercept: bool, common: dict[str, Any]
) -> tuple[dict[str, Any], Comparison]:
    """The comparison on a user's own tables, prepared as for a fit."""
    from fedshed.experiments import compare as run
    from fedshed.experiments.study import as_budget, as_line_search
    from fedshed.objectives import family_of
    from fedshed.preparation import prepare

    study = given.asked(context, common["l2"], intercept)
    if study.selects:
        raise ConfigError(
            "`fedshed compare` runs algorithms for smooth costs: leave out l1, or use `fedshed fit`"
        )
    budget, line_search = as_budget(common["budget"]), as_line_search(common["line_search"])
    prepared = prepare(given.tables(tables, study), study)
    rows, sites = sum(prepared.federation.rows.values()), len(prepared.federation.sites)
    n = len(prepared.plan.coefficients)
    classes = family_of(study.loss).contrasts(len(prepared.plan.classes or ()))
    ridge = "by coefficient" if isinstance(study.l2, dict) else f"{study.l2:g}"
    title = f"{study.target}: {sites} sites, {rows} rows, n = {n * classes}, {study.loss}, l2 = {ridge}"
    names = common["algorithms"]
    count = 8 if names is None else len(names)
    with _progress(count, common["max_iterations"]) as (on_row, on_result):
        comparison = run(
            prepared.federation, names, loss=study.loss, l2=prepared.plan.l2(),
            intercept=prepared.plan.intercept, budget=budget, line_search=line_search, tol=common["tol"],
            max_iterations=common["max_iterations"], target_gap=common["gap"], seed=common["seed"],
            title=title, command=command_line(context), on_row=on_row, on_result=on_result,
        )  # fmt: skip
    settings = common | {
        "algorithms": list(comparison.results),
        "l2": study.l2,
        "study": study,
        "tables": list(map(str, tables)),
    }
    return settings, comparison


def _class(target: str) -> int | None:
    """The number of the class that is modelled against all others."""
    if not target:
        return None
    try:
        return int(target)
    except ValueError:
        raise ConfigError(
            f"--target {target}: without tables, give the number of a class; name your tables to use a column"
        ) from None


def _files(out: Path, comparison: Comparison, settings: dict[str, Any], page: Path | None) -> Iterator[Path]:
    """Write the files one by one."""
    from fedshed._utils.canvas import save
    from fedshed._utils.files import write_atomically
    from fedshed.experiments.study import facts

    yield write_atomically(out / "trace.csv", comparison.to_csv().encode())
    whole = facts(settings, comparison) | {"traces": comparison.traces()}
    yield write_atomically(out / "trace.json", to_json(whole))
    yield from save(comparison.plot(), out)
    if comparison.time_map() is not None:
        yield from save(comparison.plot_times(), out, "networks")
    if page is not None:
        yield comparison.report(page)


@contextmanager
def _progress(runs: int, most: int) -> Iterator[tuple[OnRow, OnResult]]:
    """Show a progress bar on stderr if that is a terminal."""
    ended: list[str] = []
    with progress_bar(counts=False) as bar:

        def show(name: str, row: Row) -> None:
            bar(len(ended) + row.iteration / most, max(runs, len(ended) + 1), f"{name}, gap {row.gap:.0e}")

        yield show, lambda name, result: ended.append(name)


def _print_summary(comparison: Comparison, every_column: bool) -> None:
    summary = comparison.summary()
    rows = [_row(one, comparison.target_gap is not None) for one in summary]
    stopped = [said for one in summary if (said := _how_it_ended(one))]
    stopped += [f"{NOT_POOLED}: {name}" for name, one in comparison.algorithms.items() if not one.pooled]
    note = "KB (1000 bytes), vectors sent and Hessians computed are per agent; gap = f - f*"
    if len(comparison.trials) > 1:
        note += "\nmedians over the partitions, with the least and the most"
    found = comparison.time_map()
    if comparison.target_gap is not None:
        note += f"\ncosts are counted until the gap is below {comparison.target_gap:g}"
    if found is None:
        aim = "the tolerance" if comparison.target_gap is None else "that gap"
        stopped.append(f"no map of latency and rate: no algorithm reached {aim} in every run")
    optional = () if every_column else OPTIONAL
    print_rows(rows, [note, *stopped], comparison.title, optional, "--all shows them")
    if found is not None:
        say("")
        print_rows(found.records(), [*found.notes(), TIME_NOTE], "Fastest by latency and rate")


TIME_NOTE = (
    "time to the optimum = exchanges x latency + 8 x bytes of the busiest link / rate\n"
    "+ CPU of all sites and the Master, as measured in these runs (docs/cost.md)"
)
# the columns that a narrow terminal leaves out, in this order
OPTIONAL = ("vectors", "sec.", "iter.", "rounds", "KB down")


def _how_it_ended(one: Summary) -> str:
    """A sentence on a run that did not reach the tolerance."""
    from fedshed.experiments.summaries import failure
    from fedshed.solve.engine import ROUNDING

    if one.reason.startswith(ROUNDING):
        return f"{one.algorithm} {one.reason}"
    return failure(one.algorithm, one.converged, one.reason)


def _row(one: Summary, to_gap: bool) -> dict[str, str]:
    from fedshed.experiments.summaries import ended, short, whole, with_range

    return {
        "algorithm": one.algorithm, "iter.": with_range(one, "iterations", whole),
        "rounds": with_range(one, "rounds", whole), "exch.": with_range(one, "exchanges", whole),
        "KB up": with_range(one, "kb_up", short), "KB down": with_range(one, "kb_down", short),
        "vectors": with_range(one, "vectors_up", whole), "Hess.": with_range(one, "hessians", whole),
        "gap": f"{one.gap:.1e}", "sec.": f"{one.seconds:.2f}",
        "ended": "gap reached" if to_gap and one.converged else ended(one),
    }  # fmt: skip
