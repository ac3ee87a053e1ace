"""`fedshed meta`: a meta-analysis of the estimates of single sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import app
from fedshed.cli.panels import META, OUTPUT, PENALTIES
from fedshed.cli.show import Json, check_folder, flag, option, say, told, told_as_json
from fedshed.cli.table_options import TableOptions, Tables, with_options

if TYPE_CHECKING:
    from fedshed.inference.meta import MetaAnalysis
    from fedshed.preparation import Study


@app.command(epilog="Example: fedshed meta north.csv south.csv west.csv --target malignant --exp")
@with_options(TableOptions)
def meta(
    context: typer.Context,
    tables: Tables,
    intercept: Annotated[bool, option("Fit an intercept.", panel=PENALTIES)] = True,
    method: Annotated[
        str,
        option(
            "The estimator of the variance between sites: fixed (which sets it to 0), dl, pm or reml.",
            panel=META,
        ),
    ] = "reml",
    interval: Annotated[
        str, option("The intervals of random effects: hk (Hartung and Knapp) or normal.", panel=META)
    ] = "hk",
    level: Annotated[float, option("The level of the confidence intervals.", panel=META)] = 0.95,
    exp: Annotated[
        bool, flag("--exp", "Show exp(coef): odds ratios, rate ratios or hazard ratios.", META)
    ] = False,
    out: Annotated[Path, option("The folder for meta.csv and the forest plot.", panel=OUTPUT)] = Path(
        "results/meta"
    ),
    as_json: Json = False,
    *,
    given: TableOptions,
) -> None:
    """Combine the estimates of single sites by fixed and random effects, with a forest plot.

    TABLES are as for `fedshed fit`: one file per site, or one file with
    --site. They can also be one model.json of a study whose sites sent their
    own estimates (site_estimates = true).
    """
    from fedshed.fitting.model import Model

    check_folder(out)
    if [path.suffix for path in tables] == [".json"]:
        found = Model.load(tables[0]).meta()
    else:
        found = _of_tables(tables, given.asked(context, 0.0, intercept), given)
    chosen: Any = {"method": method, "interval": interval, "level": level}
    text = found.to_text(**chosen, exp=exp)
    if as_json:
        facts = {"lines": {n: found.lines(n, **chosen) for n in found.coefficients}}
        combined = {"combined": {n: found.combined(n, **chosen) for n in found.coefficients}}
        told_as_json(facts | combined | {"left_out": found.left_out}, _files(out, found, chosen, exp))
    else:
        say(text)
        told(_files(out, found, chosen, exp))


def _of_tables(paths: list[Path], study: Study, given: TableOptions) -> MetaAnalysis:
    from fedshed.fitting.meta_analysis import meta_analysis

    frames = given.tables(paths, study)
    if len(frames) < 2:
        raise ConfigError(
            "a meta-analysis needs at least two sites; name more tables, or the column of sites (--site)"
        )
    return meta_analysis(frames, study)


def _files(out: Path, found: MetaAnalysis, chosen: Any, exp: bool) -> Iterator[Path]:
    from fedshed._utils.canvas import save
    from fedshed._utils.files import write_atomically

    yield write_atomically(out / "meta.csv", found.to_csv(**chosen).encode())
    yield from save(found.plot(**chosen, exp=exp), out, "forest")
