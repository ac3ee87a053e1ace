"""`fedshed survival`: survival curves of all sites, and the log-rank test of their groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import app, notes_together
from fedshed.cli.show import (
    Json,
    check_file,
    check_folder,
    command_line,
    flag,
    option,
    say,
    told,
    told_as_json,
)
from fedshed.cli.table_options import CsvOptions, Tables, _number, with_options, words

if TYPE_CHECKING:
    from fedshed.inference.survival_result import SurvivalCurves
    from fedshed.report import Rerun

_NONE, _EXACT = False, "the times of all events"


@app.command(epilog="Example: fedshed survival a.csv b.csv --time days --event death --by arm")
@with_options(CsvOptions)
def survival(
    context: typer.Context,
    tables: Tables,
    time: Annotated[str, option("The column with the time for which a row was observed.", _NONE)] = "",
    event: Annotated[
        str, option("The column that is 1 if the event happened, 0 if the row is censored.", _NONE)
    ] = "",
    entry: Annotated[
        str | None, option("The column with the time at which a row came under observation.", _NONE)
    ] = None,
    by: Annotated[str | None, option("The column with the groups to be compared.", _NONE)] = None,
    site: Annotated[
        str | None, option("The column that names the site of each row.", "one file per site")
    ] = None,
    positive: Annotated[
        str, option("Values of --event that mean that the event happened, separated by commas.", "1")
    ] = "",
    missing: Annotated[
        str, option("What is done with rows that have missing values: refuse or drop.")
    ] = "refuse",
    grid: Annotated[
        str,
        option("The ends of the time intervals in which sites count events, separated by commas.", _EXACT),
    ] = "",
    every: Annotated[
        float | None, option("In place of --grid: the length of equal time intervals, up to --until.", _EXACT)
    ] = None,
    until: Annotated[float | None, option("The last time of the curves.", "the largest time")] = None,
    least: Annotated[
        int,
        option(
            "The smallest count other than 0 that may leave a site; cells are merged until they reach it."
        ),
    ] = 0,
    level: Annotated[float, option("The level of the confidence bands and intervals.")] = 0.95,
    per_site: Annotated[bool, flag("--per-site", "Also write the curves of each site.")] = False,
    out: Annotated[Path, option("The folder for the curves, the figure and the report.")] = Path(
        "results/survival"
    ),
    no_report: Annotated[bool, flag("--no-report", "Do not write a report.")] = False,
    as_json: Json = False,
    *,
    given: CsvOptions,
) -> None:
    """Estimate Kaplan-Meier curves and medians over all sites, and compare groups by the log-rank test.

    TABLES are CSV (also compressed: .gz, .bz2, .xz, .zst), Parquet or Arrow
    files: one file per site, or one file with --site.
    """
    from fedshed._utils.files import file_hash
    from fedshed.fitting.survival import survival as run
    from fedshed.report import Rerun, versions
    from fedshed.tables import read_sites

    _check(time, event, level)
    check_folder(out)
    check_file(out / "report.html")
    with notes_together():
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
        raise ConfigError("name the columns of the time and of the event: --time COLUMN --event COLUMN")
    if not 0 < level < 1:
        raise ConfigError(
            f"--level must be between 0 and 1, not {level}; for 95 % intervals write --level 0.95"
        )


def _times(text: str) -> list[float] | None:
    """The times of the grid, or None if no grid is given."""
    if not text.strip():
        return None
    try:
        return [float(word) for word in words(text) or []]
    except ValueError:
        raise ConfigError(f"--grid {text}: write times separated by commas, such as 30,60,90") from None


def _files(
    out: Path, found: SurvivalCurves, level: float, per_site: bool, again: Rerun | None
) -> Iterator[Path]:
    """Write the files one by one, the numbers first."""
    from fedshed._utils.canvas import rendered
    from fedshed._utils.files import write_atomically
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
