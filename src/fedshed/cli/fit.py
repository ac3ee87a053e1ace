"""`fedshed fit` and `fedshed predict`: the pooled model of tables that stay at their sites."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedshed.cli.app import app
from fedshed.cli.show import Json, check_folder, command_line, option, print_json, was_given
from fedshed.errors import ConfigError

if TYPE_CHECKING:
    from fedshed.engine import Progress
    from fedshed.inference import Summary
    from fedshed.model import Model
    from fedshed.preparation import CsvFormat, Study
    from fedshed.report import Recorder

_NONE, _ALL = "none", "all others"
NaValues = Annotated[
    str, option("Marks of missing values in CSV files, with commas; nothing always is one.", _NONE)
]
Header = Annotated[str | None, option("Column names of CSV files without a header, with commas.", _NONE)]
Sep = Annotated[str | None, option("What separates the columns of CSV files, such as ';'.", "found out")]
Decimal = Annotated[str | None, option("The decimal mark of CSV files: '.' or ','.", "found out")]
Encoding = Annotated[str | None, option("Of CSV files, such as latin-1.", "found out")]


@app.command(
    epilog="Example: fedshed fit claims.csv --site region --family poisson --target n --exposure years"
)
def fit(
    context: typer.Context,
    tables: list[Path],
    target: Annotated[str, option("The column to be explained; a formula may name it.", _NONE)] = "",
    family: Annotated[str, option("linear, logistic, poisson, gamma or multinomial.")] = "logistic",
    site: Annotated[str | None, option("The column that names the site of a row.", "a file each")] = None,
    formula: Annotated[str | None, option("Such as 'y ~ age + C(region)'.", _NONE)] = None,
    columns: Annotated[str | None, option("Predictors, with commas.", _ALL)] = None,
    exclude: Annotated[str, option("Columns that are no predictors, with commas.", _NONE)] = "",
    categories: Annotated[str, option("Columns of numbers that are categories, with commas.", _NONE)] = "",
    reference: Annotated[
        list[str] | None, option("COLUMN=LEVEL to compare with; repeat it.", "first")
    ] = None,
    positive: Annotated[str, option("Values of the target that count as yes, with commas.", _NONE)] = "",
    weight: Annotated[str | None, option("Column that says how often a row counts.", _NONE)] = None,
    offset: Annotated[str | None, option("Column added to the linear predictor.", _NONE)] = None,
    exposure: Annotated[str | None, option("Column whose logarithm is the offset.", _NONE)] = None,
    l2: Annotated[float, option("Ridge on the mean loss; the intercept is free.")] = 0.0,
    standardize: Annotated[bool, option("Penalise standardised coefficients; reported in units.")] = False,
    intercept: Annotated[bool, option("Fit an intercept.")] = True,
    missing: Annotated[str, option("Rows with missing values: refuse or drop.")] = "refuse",
    na_values: NaValues = "",
    header: Header = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    study: Annotated[Path | None, option("A TOML file that says what the options above do.", _NONE)] = None,
    algorithm: Annotated[str, option("See `fedshed algorithms`.")] = "auto",
    tol: Annotated[float, option("Stop at this norm of the gradient.")] = 1e-9,
    max_iterations: Annotated[int, option("Stop after so many.")] = 500,
    robust: Annotated[bool, option("Errors clustered by site.")] = False,
    level: Annotated[float, option("Of the confidence intervals.")] = 0.95,
    out: Annotated[Path, option("Folder for model, plot, trace and report.")] = Path("results/fit"),
    report: Annotated[Path | None, option("The interactive report.", "report.html in that folder")] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    as_json: Json = False,
) -> None:
    """Fit one model to the tables of all sites: coefficients, standard errors, and how the sites differ.

    TABLES are CSV (also .gz, .bz2, .xz) or Parquet files: one with --site, or one for each site.
    """
    from fedshed.files import file_hash
    from fedshed.fitting import fit as run
    from fedshed.inference import FewSitesWarning
    from fedshed.preparation import read_study, study_of
    from fedshed.preparation.reading import read_sites
    from fedshed.report import Recorder, Rerun, versions, write
    from fedshed.report.sources import of_model

    given = {
        "family": family, "target": target, "formula": formula, "columns": _list(columns), "site": site,
        "exclude": _list(exclude) or [],
        "categories": _list(categories) or [], "references": _pairs(reference or []), "weight": weight,
        "positive": [_number(text) for text in _list(positive) or []],
        "offset": offset, "exposure": exposure, "l2": l2, "standardize": standardize, "intercept": intercept,
        "missing": missing,
    }  # fmt: skip
    if study:
        _check_said_once(context, study)
    asked = read_study(study) if study else study_of(given)
    check_folder(out)
    place = report or out / "report.html"
    check_folder(place.parent, "--report")
    csv = _csv_format(sep, decimal, encoding, na_values, header)
    frames = read_sites(tables, site=_site(asked, tables), keep=True, csv=csv)
    _check_errors(level, robust, len(frames))
    recorder = Recorder()
    with _watching(tol, recorder) as watch:
        model = run(frames, asked, algorithm=algorithm, tol=tol, max_iterations=max_iterations, watch=watch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSitesWarning)  # a note of the summary says it
        summary = model.summary(robust=robust, level=level)
        text, rows = str(summary), summary.to_rows()
        files = _write(out, model, summary)
        if not no_report:
            hashes = {table.name: file_hash(table) for table in tables}
            rerun = Rerun(command_line(context), 0, hashes, versions())
            files.append(write(place, of_model(model, recorder, rerun, level, robust)))
    if as_json:
        print_json({"coefficients": rows, "run": model.run, "files": [str(path) for path in files]})
    else:
        typer.echo("\n".join([text, *(f"wrote {path}" for path in files)]))
    if not model.converged:
        typer.echo(f"not converged: {model.run.reason}", err=True)
        raise typer.Exit(1)


@app.command(epilog="Example: fedshed predict results/fit/model.json new.csv --out predictions.csv")
def predict(
    model: Path,
    table: Path,
    out: Annotated[Path | None, option("Write a CSV file instead of printing.", "print")] = None,
    missing: Annotated[
        str, option("Rows with missing values: refuse, or predict nothing (empty).")
    ] = "refuse",
    na_values: NaValues = "",
    header: Header = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Predict: a column `prediction`, and one for the probability of each class; rows in their order.

    MODEL is what `fedshed fit` wrote, TABLE a CSV or Parquet file with the columns of the model.
    """
    from fedshed.files import write_atomically
    from fedshed.model import Model
    from fedshed.preparation.reading import read_table

    if missing not in ("refuse", "empty"):
        raise ConfigError(f"--missing {missing}: write refuse or empty")
    fitted = Model.load(model)
    frame = read_table(table, _csv_format(sep, decimal, encoding, na_values, header))
    text = _predictions(fitted, frame, missing == "empty")
    if out is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {write_atomically(out, text.encode())}")


def _predictions(model: Model, frame: Any, empty: bool) -> str:
    """Predictions as CSV; if asked for, an empty line where a row is not complete."""
    import csv
    import io

    labels = model.plan.classes or ()
    complete = model.plan.complete(frame).tolist() if empty else [True] * len(frame)
    known = frame.filter(complete) if not all(complete) else frame
    columns = [model.predict(known).tolist(), *(model.predict_proba(known).T.tolist() if labels else [])]
    found = zip(*columns, strict=True)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["prediction", *(f"p[{label}]" for label in labels)])
    writer.writerows(next(found) if there else [""] * len(columns) for there in complete)
    return file.getvalue()


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str) -> int | float | str:
    """A number if it reads as one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _csv_format(
    sep: str | None, decimal: str | None, encoding: str | None, na_values: str, header: str | None
) -> CsvFormat:
    """How the CSV files are written; an empty field always is a missing value."""
    from fedshed.preparation import CsvFormat

    sep = {"tab": "\t", r"\t": "\t"}.get(sep or "", sep)
    names = None if header is None else tuple(_list(header) or ())
    return CsvFormat(sep, decimal, encoding, ("", *na_values.split(",")), names)


def _check_said_once(context: typer.Context, study: Path) -> None:
    """Refuse an option that the study says: it would be ignored."""
    from fedshed.preparation import Study

    for name in (*Study.__struct_fields__, "reference"):
        if was_given(context, name):
            raise ConfigError(f"--{name} and --study {study}: say it in the file, or give options only")


def _check_errors(level: float, robust: bool, sites: int) -> None:
    """What the errors need is found out before the work, not after it."""
    if not 0 < level < 1:
        raise ConfigError(f"--level must lie between 0 and 1, not {level}")
    if robust and sites < 2:
        raise ConfigError("--robust clusters errors by site and needs at least two; leave it out")


def _pairs(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--reference {text}: write COLUMN=LEVEL")
    return {column: level for column, _, level in (text.partition("=") for text in texts)}


def _site(study: Study, tables: list[Path]) -> str | None:
    """The column of sites; one table without it would be one site."""
    if study.site is None and len(tables) == 1:
        typer.echo(f"one table and no --site: {tables[0]} is one site", err=True)
    return study.site


@contextmanager
def _watching(tol: float, recorder: Recorder) -> Iterator[Callable[[Progress], None]]:
    """Records; and shows the rounds and the gradient norm on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield recorder
        return
    from rich.console import Console

    with Console(stderr=True).status("sites agree on their columns") as status:

        def show(progress: Progress) -> None:
            recorder(progress)
            norm = progress.rows[-1].grad_norm
            status.update(f"round {len(progress.rows)}: gradient norm {norm:.1e}, to {tol:.0e}")

        yield show


def _write(out: Path, model: Model, summary: Summary) -> list[Path]:
    from fedshed.experiments.figure import save
    from fedshed.files import write_atomically
    from fedshed.inference.plot import draw

    study, figure = model.plan.study, None
    if model.inference.model_covariance is not None:
        title = f"{study.target}: {study.family}, {len(model.inference.sites)} sites"
        figure = draw(model.inference, title, summary.level, summary.robust)
    paths = [
        model.save(out / "model.json"),
        write_atomically(out / "summary.txt", f"{summary}\n".encode()),
    ]
    if model.trace is not None:
        paths.append(write_atomically(out / "trace.csv", model.trace.to_csv().encode()))
    return paths + (save(figure, out, "coefficients") if figure else [])
