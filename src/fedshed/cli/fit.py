"""`fedshed fit` and `fedshed predict`: the pooled model of tables that stay at their sites."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import app
from fedshed.cli.panels import ALGORITHM, EVALUATION, INFERENCE, OUTPUT, PENALTIES
from fedshed.cli.show import (
    REPORT,
    Json,
    check_file,
    check_folder,
    command_line,
    flag,
    option,
    print_json,
    print_message,
    say,
    told,
    told_as_json,
)
from fedshed.cli.table_options import (
    CsvOptions,
    FittedModel,
    Incomplete,
    TableOptions,
    Tables,
    check_missing,
    with_options,
)

if TYPE_CHECKING:
    from fedshed.fitting.model import Model
    from fedshed.inference import Summary
    from fedshed.inference.result import Robust
    from fedshed.preparation import Study
    from fedshed.report import Recorder, Rerun
    from fedshed.solve.engine import Progress


@app.command(
    epilog="Example: fedshed fit claims.csv --site region --family poisson --target claims --exposure years"
)
@with_options(TableOptions)
def fit(
    context: typer.Context,
    tables: Tables,
    l2: Annotated[
        float,
        option("The ridge penalty on the mean loss; the intercept is not penalised.", panel=PENALTIES),
    ] = 0.0,
    l1: Annotated[
        float,
        option(
            "The absolute penalty (lasso) on the mean loss, which sets coefficients to 0.", panel=PENALTIES
        ),
    ] = 0.0,
    intercept: Annotated[bool, option("Fit an intercept.", panel=PENALTIES)] = True,
    algorithm: Annotated[
        str,
        option("The algorithm; `fedshed algorithms` lists all of them.", panel=ALGORITHM, metavar="NAME"),
    ] = "auto",
    tol: Annotated[
        float, option("Stop when the norm of the gradient is below this number.", panel=ALGORITHM)
    ] = 1e-9,
    max_iterations: Annotated[int, option("Stop after this many iterations.", panel=ALGORITHM)] = 500,
    protected: Annotated[
        bool,
        flag(
            "--protected",
            "Simulate a protected study on this machine: the Master sees only sums over the sites, which "
            "send masked numbers.",
            ALGORITHM,
        ),
    ] = False,
    robust: Annotated[bool, flag("--robust", "Show standard errors clustered by site.", INFERENCE)] = False,
    errors: Annotated[
        str,
        option(
            "The standard errors: model, site (as --robust), cluster (see --cluster), HC0, HC1, HC2 or HC3; "
            "with R's sandwich for links that are not canonical: HC0-expected to HC3-expected.",
            panel=INFERENCE,
        ),
    ] = "model",
    level: Annotated[float, option("The level of the confidence intervals.", panel=INFERENCE)] = 0.95,
    exp: Annotated[
        bool, flag("--exp", "Show exp(coef): odds ratios, rate ratios or hazard ratios.", INFERENCE)
    ] = False,
    sum_to_zero: Annotated[
        bool,
        flag(
            "--sum-to-zero",
            "Show coefficients of a multinomial model that sum to 0 over the classes, in place of those "
            "against a reference class (--reference TARGET=CLASS).",
            INFERENCE,
        ),
    ] = False,
    holdout: Annotated[
        str | None,
        option(
            "Evaluate on rows that are not fitted: a fraction of each site's rows, or a column of booleans.",
            False,
            panel=EVALUATION,
        ),
    ] = None,
    holdout_seed: Annotated[
        int, option("The seed from which each site draws that fraction.", panel=EVALUATION)
    ] = 0,
    leave_one_site_out: Annotated[
        bool,
        flag(
            "--leave-one-site-out",
            "Evaluate each site with a model that was fitted to the other sites.",
            EVALUATION,
        ),
    ] = False,
    out: Annotated[
        Path,
        option(
            "The folder for the model, the figure of its coefficients, the trace of the fit and the report.",
            panel=OUTPUT,
        ),
    ] = Path("results/fit"),
    report: Annotated[Path | None, option(*REPORT, panel=OUTPUT)] = None,
    no_report: Annotated[bool, flag("--no-report", "Do not write a report.", OUTPUT)] = False,
    as_json: Json = False,
    *,
    given: TableOptions,
) -> None:
    """Fit one model to the tables of all sites and print its coefficients and standard errors.

    TABLES are CSV (also compressed: .gz, .bz2, .xz, .zst), Parquet or Arrow
    files: one file per site, or one file with --site. The summary also
    compares the sites.
    """
    from fedshed._utils.files import file_hash
    from fedshed.fitting.fit import fit as run
    from fedshed.inference import FewSitesWarning
    from fedshed.inference.result import RowRobust
    from fedshed.report import Recorder, Rerun, versions

    study = _with_holdout(given.asked(context, l2, intercept, l1), holdout, holdout_seed)
    if sum_to_zero and study.loss != "multinomial":
        raise ConfigError(
            "--sum-to-zero needs a model of several classes (--family multinomial); leave it out"
        )
    check_folder(out)
    place = report or out / "report.html"
    check_file(place)
    frames = given.tables(tables, study)
    study = _listed(study, frames) if protected else study
    shown = _chosen_errors(errors, robust)
    _check_errors(level, shown == "site", len(frames))
    by_rows: Any = shown if shown in get_args(RowRobust) else None
    recorder = Recorder()
    with _watching(tol, recorder) as watch:
        model = run(
            frames, study, algorithm=algorithm, tol=tol, max_iterations=max_iterations, errors=by_rows,
            watch=watch,
        )  # fmt: skip
    if leave_one_site_out:
        from fedshed.fitting.evaluate import leave_one_site_out as left_out

        found = left_out(frames, study, algorithm=algorithm, tol=tol, max_iterations=max_iterations)
        model.evaluation = found.evaluation
    hashes = {table.name: file_hash(table) for table in tables}
    again = Rerun(command_line(context), 0, hashes, versions())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSitesWarning)  # the summary has a note about it
        summary = model.summary(robust=shown, level=level, exp=exp, sum_to_zero=sum_to_zero)
        page = None if no_report else (place, again)
        if as_json:
            facts = {"coefficients": summary.to_rows(), "run": model.run, **model.facts(summary)}
            facts |= {} if model.evaluation is None else {"evaluation": model.evaluation}
            told_as_json(facts, _files(out, model, summary, recorder, page))
        else:
            say(str(summary))  # before anything is written, because a disk may be full
            if model.evaluation is not None:
                say(f"\n{model.evaluation}")
            told(_files(out, model, summary, recorder, page))
    if not model.converged:
        print_message(f"not converged: {model.run.reason}")
        raise typer.Exit(1)


def _with_holdout(study: Study, holdout: str | None, seed: int) -> Study:
    """The study with rows held out: a number is a fraction, anything else is a column."""
    from msgspec.structs import replace

    if holdout is None:
        return study
    try:
        return replace(study, holdout=float(holdout), holdout_seed=seed)
    except ValueError:
        return replace(study, holdout=holdout, holdout_seed=seed)


def _listed(study: Study, frames: Any) -> Study:
    """A protected study whose lists of levels and classes come from the tables, which are all here."""
    from fedshed.exchange import InProcess
    from fedshed.preparation.approved import listed
    from fedshed.preparation.protocol import negotiate, preparers_of

    plan, _, _ = negotiate(study, InProcess(preparers_of(frames)))
    return listed(study, plan)


@app.command(epilog="Example: fedshed predict results/fit/model.json new.csv --out predictions.csv")
@with_options(CsvOptions)
def predict(
    model: FittedModel,
    table: Annotated[
        Path,
        typer.Argument(
            help="A CSV, Parquet or Arrow file with the columns of the model.", show_default=False
        ),
    ],
    out: Annotated[Path | None, option("The CSV file to write.", "print")] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="The column that identifies the rows, such as a patient number; it is copied.",
            show_default=False,
            metavar="COLUMN",
        ),
    ] = None,
    missing: Incomplete = "refuse",
    on_unknown_level: Annotated[
        str,
        option(
            "error: stop if a category has a level that no site had; missing: leave the predictions of such "
            "rows empty."
        ),
    ] = "error",
    interval: Annotated[bool, flag("--interval", "Add standard errors and confidence intervals.")] = False,
    level: Annotated[float, option("The level of the confidence intervals.")] = 0.95,
    *,
    given: CsvOptions,
) -> None:
    """Predict the target of new rows, with a column for the probability of each class.

    MODEL is what `fedshed fit` wrote. TABLE is a CSV, Parquet or Arrow file
    with the columns of the model; predictions are in the order of its rows.
    """
    from fedshed._utils.files import write_atomically
    from fedshed.fitting.model import Model
    from fedshed.tables import read_table

    if out is not None:
        check_file(out)
    check_missing(missing)
    if on_unknown_level not in ("error", "missing"):
        raise ConfigError(f"--on-unknown-level {on_unknown_level} is not known; write error or missing")
    _check_errors(level, False, 1)
    fitted = Model.load(model)
    text_columns = (*fitted.plan.levels, *([id_column] if id_column else []))
    frame = read_table(table, given.format(text_columns))
    ids = None if id_column is None else (id_column, _identifiers(frame, id_column))
    kept = None
    if missing == "empty":
        kept = fitted.plan.complete(frame, on_unknown_level == "missing")
    elif on_unknown_level == "missing":
        kept = ~fitted.plan.complete(frame) | fitted.plan.complete(
            frame, True
        )  # rows with missing values stay, so that the model treats them
    text = _predictions(fitted, frame, kept, level if interval else None, ids)
    if kept is not None and not kept.all():
        print_message(_left_empty(fitted, frame, kept))
    if out is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {write_atomically(out, text.encode())}")


@app.command(name="test", epilog="Example: fedshed test small/model.json large/model.json")
def likelihood_ratio_test(small: FittedModel, large: FittedModel, as_json: Json = False) -> None:
    """Test a larger model against a smaller one by a likelihood-ratio or F test.

    SMALL and LARGE are models that `fedshed fit` wrote for the same rows;
    the terms of the small model must be part of the large one.
    """
    from fedshed.fitting.model import Model
    from fedshed.fitting.nested import likelihood_ratio

    found = likelihood_ratio(Model.load(small), Model.load(large))
    if as_json:
        print_json(found)
    else:
        say(str(found))


def _identifiers(frame: Any, name: str) -> list[Any]:
    """The values of the column that identifies the rows."""
    from fedshed._utils.names import closest
    from fedshed.tables.frames import Frame

    if name not in (names := Frame(frame).names):
        raise ConfigError(f"--id {name}: the table has no such column{closest(name, names)}")
    found: list[Any] = frame[name].to_pylist()
    return ["" if value is None else value for value in found]


def _left_empty(model: Model, frame: Any, kept: Any) -> str:
    """A sentence on the rows that have no prediction."""
    from fedshed.tables.frames import Frame

    lost = model.plan.missing_values(Frame(frame), to_evaluate=False)
    named = f" (missing: {', '.join(f'{name} in {count}' for name, count in lost.items())})" if lost else ""
    return f"{int((~kept).sum())} of {len(kept)} rows have no prediction{named}"


def _predictions(
    model: Model, frame: Any, kept: Any, level: float | None, ids: tuple[str, list[Any]] | None = None
) -> str:
    """The predictions as CSV, with empty fields for a row that is not kept; identifiers come first."""
    import csv
    import io

    labels = model.plan.classes or ()
    complete = [True] * len(frame) if kept is None else kept.tolist()
    known = frame.filter(complete) if not all(complete) else frame
    columns = [model.predict(known).tolist(), *(model.predict_proba(known).T.tolist() if labels else [])]
    shown = labels
    if model.plan.study.positive and model.plan.modelled:
        shown = ("other", model.plan.modelled[0])
        columns[0] = [shown[bool(label)] for label in columns[0]]
    names = ["prediction", *(f"p[{label}]" for label in shown)]
    if level is not None:
        columns += [values.tolist() for values in model.predict_interval(known, level=level)[1:]]
        of = f"p[{shown[1]}] " if labels else ""
        names += [f"{of}std_err", f"{of}low", f"{of}high"]
    found = zip(*columns, strict=True)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    rows = (next(found) if there else [""] * len(columns) for there in complete)
    if ids is not None:
        names, rows = [ids[0], *names], ([one, *row] for one, row in zip(ids[1], rows, strict=True))
    writer.writerow(names)
    writer.writerows(rows)
    return file.getvalue()


def _chosen_errors(errors: str, robust: bool) -> Robust:
    """Which standard errors are shown; False stands for those of the model."""
    from fedshed.inference.result import RowRobust

    known = ("model", "site", *get_args(RowRobust))
    if errors not in known:
        raise ConfigError(f"--errors {errors} is not known; write one of {', '.join(known)}")
    if robust and errors not in ("model", "site"):
        raise ConfigError(
            f"--robust and --errors {errors} ask for different standard errors; give only one of them"
        )
    chosen: Any = "site" if robust else errors
    return False if chosen == "model" else chosen


def _check_errors(level: float, robust: bool, sites: int) -> None:
    """Check before the fit what the standard errors need."""
    if not 0 < level < 1:
        raise ConfigError(
            f"--level must be between 0 and 1, not {level}; for 95 % intervals write --level 0.95"
        )
    if robust and sites < 2:
        raise ConfigError(
            "standard errors clustered by site need at least two sites; leave out --robust (or --errors site)"
        )


@contextmanager
def _watching(tol: float, recorder: Recorder) -> Iterator[Callable[[Progress], None]]:
    """Record the rounds, and show them with the gradient norm on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield recorder
        return
    from rich.console import Console

    with Console(stderr=True).status("the sites agree on their columns") as status:

        def show(progress: Progress) -> None:
            recorder(progress)
            norm = progress.rows[-1].grad_norm
            status.update(f"round {len(progress.rows)}: gradient norm {norm:.1e}, stops at {tol:.0e}")

        yield show


def _files(
    out: Path, model: Model, summary: Summary, recorder: Recorder, page: tuple[Path, Rerun] | None
) -> Iterator[Path]:
    """Write the files one by one, the model first."""
    from fedshed._utils.canvas import save
    from fedshed._utils.files import write_atomically
    from fedshed.inference.plot import draw
    from fedshed.report import write
    from fedshed.report.fitted import of_model

    yield model.save(out / "model.json")
    yield write_atomically(out / "summary.txt", f"{summary}\n".encode())
    coding = summary.inference.coding
    sums = coding is not None and coding.reference is None
    table = model.to_csv(summary.level, summary.robust, sum_to_zero=sums)
    yield write_atomically(out / "coefficients.csv", table.encode())
    if model.trace is not None:
        yield write_atomically(out / "trace.csv", model.trace.to_csv().encode())
    if model.inference.model_covariance is not None:
        study = model.plan.study
        title = f"{study.target}: {study.family}, {model.inference.site_count} sites"
        figure = draw(summary.inference, title, summary.level, summary.robust, summary.exp)
        yield from save(figure, out, "coefficients")
    if model.evaluation is not None:
        from fedshed.cli.evaluate import evaluation_files

        yield from evaluation_files(out, model.evaluation)
    if page is not None:
        place, again = page
        yield write(place, of_model(model, recorder, again, summary))
