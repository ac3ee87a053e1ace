"""`fedshed select`: selection of columns by the elastic net and cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from fedshed.cli.app import app
from fedshed.cli.panels import ALGORITHM, OUTPUT, PENALTIES, SELECTION
from fedshed.cli.show import Json, check_folder, option, print_message, say, told, told_as_json, was_given
from fedshed.cli.table_options import TableOptions, Tables, with_options

if TYPE_CHECKING:
    from fedshed.fitting.path_result import Path as PathOfPenalties


@app.command(epilog="Example: fedshed select a.csv b.csv --target ill --family logistic --rule 1se")
@with_options(TableOptions)
def select(
    context: typer.Context,
    tables: Tables,
    l1_ratio: Annotated[
        float,
        option(
            "The share of the absolute penalty: 1 is the lasso, a smaller number the elastic net.",
            panel=SELECTION,
        ),
    ] = 1.0,
    values: Annotated[int, option("The number of penalties on the path.", panel=SELECTION)] = 100,
    ratio: Annotated[
        float | None,
        option(
            "The smallest penalty divided by the largest.",
            "1e-4 if there are more rows than coefficients, otherwise 1e-2",
            panel=SELECTION,
        ),
    ] = None,
    folds: Annotated[
        int, option("The number of folds; each site draws its own rows for each fold.", panel=SELECTION)
    ] = 10,
    seed: Annotated[int, option("The seed from which sites draw the folds.", panel=SELECTION)] = 0,
    rule: Annotated[
        str,
        option(
            "min: the penalty with the smallest deviance; 1se: the largest penalty within one standard error "
            "of it.",
            panel=SELECTION,
        ),
    ] = "min",
    intercept: Annotated[bool, option("Fit an intercept.", panel=PENALTIES)] = True,
    tol: Annotated[
        float, option("Stop when the norm of the subgradient is below this number.", panel=ALGORITHM)
    ] = 1e-6,
    out: Annotated[Path, option("The folder for the path, the figure and the model.", panel=OUTPUT)] = Path(
        "results/select"
    ),
    as_json: Json = False,
    *,
    given: TableOptions,
) -> None:
    """Select columns by the elastic net: cross-validate a path of penalties and fit the chosen model.

    TABLES are as for `fedshed fit`. Columns are standardised, unless
    --no-standardize is given; with --study, the file decides.
    """
    from fedshed.fitting.path import select as run

    study = given.asked(context, 0.0, intercept)
    if given.study is None and not was_given(context, "standardize"):
        study = replace(study, standardize=True)
    check_folder(out)
    rules: Any = rule
    found = run(
        given.tables(tables, study), study, rule=rules, values=values, ratio=ratio, l1_ratio=l1_ratio,
        folds=folds, seed=seed, tol=tol,
    )  # fmt: skip
    if as_json:
        told_as_json(
            {"chosen": found.chosen, "selected": found.selected, "path": found.steps}, _files(out, found)
        )
    else:
        say(repr(found))
        told(_files(out, found))
    assert found.model is not None
    if not found.model.converged:
        print_message(f"not converged: {found.model.run.reason}")
        raise typer.Exit(1)


def _files(out: Path, found: PathOfPenalties) -> Iterator[Path]:
    """Write the files one by one, the path first."""
    from fedshed._utils.canvas import save
    from fedshed._utils.files import write_atomically

    yield write_atomically(out / "path.csv", found.to_csv().encode())
    assert found.model is not None
    yield found.model.save(out / "model.json")
    yield write_atomically(out / "coefficients.csv", found.model.to_csv().encode())
    yield from save(found.plot(), out, "path")
