"""`fedshed plan`: the expected deviation of a private fit, before any privacy budget is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import app
from fedshed.cli.show import Json, option, print_json, print_message, print_rows, say

if TYPE_CHECKING:
    from fedshed.privacy.private import Privacy
    from fedshed.solve.private_plan import Prediction, PrivatePlan


@app.command(epilog="Example: fedshed plan --rows 10000 --columns 10 --epsilon 4 --delta 1e-6 --clip 4")
def plan(
    study: Annotated[
        Path | None, typer.Argument(help="A study (a TOML file) with privacy = {epsilon, delta, clip}.")
    ] = None,
    rows: Annotated[int | None, option("The number of rows of all sites together.", "required")] = None,
    columns: Annotated[
        int | None,
        option("The number of columns of the design, without the intercept.", "those that the study names"),
    ] = None,
    epsilon: Annotated[
        float | None,
        option(
            "The epsilon of differential privacy; a smaller number is more private.", "as in the study, or 4"
        ),
    ] = None,
    delta: Annotated[
        float | None,
        option(
            "The delta of differential privacy; it must be below 1 / rows.",
            "as in the study, or 1 / (100 rows)",
        ),
    ] = None,
    clip: Annotated[
        float | None,
        option(
            "The largest allowed Euclidean norm of a row's predictors; rows above it are scaled down.",
            "as in the study, or sqrt(2 columns)",
        ),
    ] = None,
    sites: Annotated[int, option("The number of sites, at least 3.")] = 10,
    as_json: Json = False,
) -> None:
    """Predict the error that differential privacy adds to a logistic fit, in standard errors of a pooled fit.

    STUDY is a TOML file with privacy = {epsilon, delta, clip}. The command
    reads nothing else and spends no privacy budget. It exits with 1 if
    noise would dominate the fit.
    """
    from fedshed.preparation.study import read_study
    from fedshed.solve.private_plan import PrivatePlan, predict

    given = None if study is None else read_study(study)
    rows, columns = _rows(rows), _columns(columns, None if given is None else given.columns)
    privacy = _privacy(rows, columns, None if given is None else given.privacy, epsilon, delta, clip)
    intercept = given is None or given.intercept
    found = predict(rows, columns, privacy.epsilon, privacy.delta, privacy.clip, sites, intercept)
    whole = PrivatePlan(rows=rows, columns=columns, sites=sites, privacy=privacy, intercept=intercept)
    if as_json:
        print_json(asdict(found) | {"nonsense": found.nonsense, "releases": _releases(whole)})
    else:
        _show(found, whole)
    if found.nonsense:
        print_message(found.nonsense)
        raise typer.Exit(1)


def _rows(rows: int | None) -> int:
    if rows is None or rows < 1:
        raise ConfigError("give the number of rows of all sites together, such as --rows 10000")
    return rows


def _columns(columns: int | None, named: tuple[str, ...] | None) -> int:
    """The columns as given, or as named in the study; categories, and maybe a formula, make more."""
    if columns is None and named is not None:
        return len(named)
    if columns is None or columns < 1:
        raise ConfigError(
            "give the number of columns of the design without the intercept, such as --columns 10"
        )
    return columns


def _privacy(
    rows: int, columns: int, said: Privacy | None, epsilon: float | None, delta: float | None,
    clip: float | None,
) -> Privacy:  # fmt: skip
    """The privacy parameters: as given, else as in the study, else the usual ones."""
    from fedshed.privacy.private import Privacy

    usual = said or Privacy(4.0, 0.01 / rows, float(f"{(2 * columns) ** 0.5:.2g}"))
    return Privacy(
        usual.epsilon if epsilon is None else epsilon,
        usual.delta if delta is None else delta,
        usual.clip if clip is None else clip,
    )


def _releases(plan: PrivatePlan) -> list[dict[str, Any]]:
    """The released totals over all sites, each with its share of the budget."""
    from fedshed.solve.private_plan import BOUND_SHARE, CURVATURE_SHARE

    packed, gradients = plan.n * (plan.n + 1) // 2, 1 - BOUND_SHARE - CURVATURE_SHARE
    return [
        {"released": "bound X'X/4, once", "numbers": packed, "budget": BOUND_SHARE},
        {"released": f"{plan.steps} gradients", "numbers": plan.steps * plan.n, "budget": gradients},
        {"released": "Hessian near the end, once", "numbers": packed, "budget": CURVATURE_SHARE},
    ]


def _show(found: Prediction, plan: PrivatePlan) -> None:
    """Print the table of what is released, and the prediction below it."""
    rows = [one | {"budget": f"{one['budget']:.0%}"} for one in _releases(plan)]
    notes = [
        f"predicted deviation from the pooled fit: {found.deviation:.2g} standard errors",
        f"(root mean square over coefficients; the median is {found.median:.2g})",
        f"95 % intervals include the noise: they are {found.widening:.2f} times as wide",
        f"budget rho = {found.rho:.4g}; {found.exchanges} exchanges",
        "",
        "Rows beyond the clip are scaled down, which biases the estimates: choose a clip",
        "that few rows exceed. The prediction assumes that the norm of a typical row is",
        "0.7 of the clip, spread evenly over the columns; coefficients of rare columns",
        "deviate more.",
    ]
    notes += [privacy.weak] if (privacy := plan.privacy).weak else []
    title = (
        f"{found.rows:,} rows, {found.columns} columns, {found.sites} sites: epsilon {found.epsilon:g}, "
        f"delta {found.delta:.2g}, clip {found.clip:g}"
    )
    say(title)
    print_rows(rows, notes)
