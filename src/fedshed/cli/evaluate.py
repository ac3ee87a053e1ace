"""`fedshed evaluate`: how well a model predicts the rows of tables that stay at their sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedshed.cli.app import app, notes_together
from fedshed.cli.show import Json, check_folder, option, say, told, told_as_json
from fedshed.cli.table_options import (
    CsvOptions,
    FittedModel,
    Incomplete,
    Tables,
    check_missing,
    with_options,
)

if TYPE_CHECKING:
    from fedshed.inference.evaluation import Evaluation


@app.command(epilog="Example: fedshed evaluate results/fit/model.json east.csv west.csv --threshold 0.3")
@with_options(CsvOptions)
def evaluate(
    model: FittedModel,
    tables: Tables,
    site: Annotated[
        str | None, option("The column that names the site of each row.", "one file per site")
    ] = None,
    threshold: Annotated[float, option("The probability from which a row is predicted as yes.")] = 0.5,
    bins: Annotated[
        int,
        option(
            "The number of bins in which a site counts its scores; with 0 the scores themselves are compared."
        ),
    ] = 0,
    least: Annotated[int, option("With --bins: bins are merged until each has at least this many rows.")] = 1,
    missing: Incomplete = "refuse",
    out: Annotated[
        Path | None, option("The folder for the text, the CSV file and the figure.", "print only")
    ] = None,
    as_json: Json = False,
    *,
    given: CsvOptions,
) -> None:
    """Evaluate a model on tables, by site and pooled: AUC, calibration, Brier score, R2 and the like.

    MODEL is what `fedshed fit` wrote. TABLES have its columns and its target:
    one file per site, or one file with --site. Use rows that the model was not
    fitted to; `fedshed fit --holdout` keeps such rows apart.
    """
    from fedshed.fitting.evaluate import evaluate as run
    from fedshed.fitting.model import Model
    from fedshed.tables import read_sites

    if out is not None:
        check_folder(out)
    fitted = Model.load(model)
    column = site or (fitted.plan.study.site if len(tables) == 1 else None)
    with notes_together():
        frames = read_sites(tables, site=column, keep=True, csv=given.format(tuple(fitted.plan.levels)))
    found = run(fitted, frames, threshold=threshold, bins=bins, least=least, missing=check_missing(missing))
    files = iter(()) if out is None else evaluation_files(out, found)
    if as_json:
        told_as_json({"evaluation": found}, files)
    else:
        say(str(found))
        told(files)


def evaluation_files(out: Path, found: Evaluation) -> Iterator[Path]:
    """Write an evaluation as text, as CSV and as a figure."""
    from fedshed._utils.canvas import save
    from fedshed._utils.files import write_atomically

    yield write_atomically(out / "evaluation.txt", f"{found.summary()}\n".encode())
    yield write_atomically(out / "evaluation.csv", found.to_csv().encode())
    if found.pooled:
        yield from save(found.plot(), out, "evaluation")
