"""`fedshed survival`: survival curves of all sites, and the log-rank test of their groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import app
from fedshed.cli.show import Json, check_file, check_folder, command_line, option, say, told, told_as_json
from fedshed.cli.table_options import CsvOptions, _number, with_options, words

if TYPE_CHECKING:
    from fedshed.inference.survival_result import SurvivalCurves
    from fedshed.report import Rerun

_NONE, _EXACT = "none", "the times of all events"


@app.command(epilog="Example: fedshed survival a.csv b.csv --time days --event death --by arm")
@with_options(CsvOptions)
def survival(
    context: typer.Context,
    tables: list[Path],
    time: Annotated[str, option("Column: how long a row was observed.", _NONE)] = "",
    event: Annotated[str, option("Column: 1 if it ended with the event, 0 if censored.", _NONE)] = "",
    entry: Annotated[str | None, option("Column: since when a row was observed.", _NONE)] = None,
    by: Annotated[str | None, option("Column with the groups to be compared.", _NONE)] = None,
    site: Annotated[str | None, option("The column that names the site of a row.", "a file each")] = None,
    positive: Annotated[str, option("Values of the event column that are events, with commas.", "1")] = "",
    missing: Annotated[str, option("Rows with missing values: refuse or drop.")] = "refuse",
    grid: Annotated[str, option("Times at which sites count, with commas.", _EXACT)] = "",
    every: Annotated[float | None, option("Count at multiples of this time, up to --until.", _EXACT)] = None,
    until: Annotated[float | None, option("The last time at which sites count.", "the largest")] = None,
    least: Annotated[
        int, option("No count below this leaves a site, except 0; cells are merged until it is reached.")
    ] = 0,
    level: Annotated[float, option("The level of the bands and intervals.")] = 0.95,
    per_site: Annotated[bool, typer.Option("--per-site", help="Write the curves of each site, too.")] = False,
    out: Annotated[Path, option("Folder for the curves, the figure and the report.")] = Path(
        "results/survival"
    ),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    as_json: Json = False,
    *,
    given: CsvOptions,
) -> None:
    """Kaplan-Meier curves over all sites, medians with intervals, and the log-rank test of their groups.

    TABLES are CSV (also .gz, .bz2, .xz) or Parquet files: one with --site, or one for each site.
    """
    from fedshed._utils.files import file_hash
    from fedshed.fitting.survival import survival as run
    from fedshed.report import Rerun, versions
    from fedshed.tables import read_sites

    _check(time, event, level)
    check_folder(out)
    check_file(out / "report.html")
    frames = read_sites(tables, site=site, csv=given.format((by,) if by else ()))
    chosen: Any = missing
    found = run(
        frames, time=time, event=event, entry=entry, by=by, grid=_times(grid), every=every, until=until,
        least=least, missing=chosen, positive=[_number(word) for word in words(positive) or []],
    )  # fmt: skip
    again = Rerun(command_line(context), 0, {table.name: file_hash(table) for table in tables}, versions())
    files = _files(out, found, level, per_site, None if no_report else again)
    if as_json:
        told_as_json(found.facts(level), files)
        return
    say(found.summary(level))
    if per_site:
        for name in sorted(found.sites):
            say(f"\nSite {name}\n{found.of_site(name).summary(level)}")
    told(files)


def _check(time: str, event: str, level: float) -> None:
    if not time or not event:
        raise ConfigError("name the columns of the time and of the event (--time, --event)")
    if not 0 < level < 1:
        raise ConfigError(f"--level must lie between 0 and 1, not {level}")


def _times(text: str) -> list[float] | None:
    """The times of a grid, if one is given."""
    if not text.strip():
        return None
    try:
        return [float(word) for word in words(text) or []]
    except ValueError:
        raise ConfigError(f"--grid {text}: write times with commas between them, such as 30,60,90") from None


def _files(
    out: Path, found: SurvivalCurves, level: float, per_site: bool, again: Rerun | None
) -> Iterator[Path]:
    """Write the files one by one, the numbers first."""
    from fedshed._utils.files import write_atomically
    from fedshed.experiments.figure import rendered
    from fedshed.report.survival import write_survival

    yield write_atomically(out / "summary.txt", f"{found.summary(level)}\n".encode())
    yield write_atomically(out / "curves.csv", found.to_csv(level).encode())
    if per_site:
        yield write_atomically(out / "sites.csv", found.to_csv(level, per_site=True).encode())
    figure = found.plot(level)
    svg = rendered(figure, "svg")
    yield write_atomically(out / "survival.svg", svg)
    yield write_atomically(out / "survival.pdf", rendered(figure, "pdf"))
    if again is not None:
        yield write_survival(out / "report.html", found, svg, again, level)
