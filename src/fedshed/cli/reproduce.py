"""`fedshed reproduce`: the figures of the paper."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedshed.cli import complete
from fedshed.cli.app import app
from fedshed.cli.show import check_folder, option, print_rows, progress_bar
from fedshed.errors import ConfigError


@app.command(epilog="Example: fedshed reproduce fmnist-1e-5 --out figures")
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="An experiment, a family such as mnist, 'all', or 'list'.",
            autocompletion=complete.experiments,
        ),
    ],
    quick: Annotated[bool, option("On small embedded data, with few iterations.")] = False,
    out: Annotated[Path, option("Folder for the figures.")] = Path("results/figures"),
    results: Annotated[Path | None, option("With 'all': write the page of claims here.", "none")] = None,
    jobs: Annotated[int, option("Processes.")] = 2,
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Figures only, no HTML beside them.")
    ] = False,
) -> None:
    """Reproduce the paper's figures; runs are cached by content, so a stopped call goes on where it was."""
    from fedshed.experiments.plan import load, names, select
    from fedshed.experiments.reproduce import reproduce as run
    from fedshed.experiments.runs import cache_folder

    if name == "list":
        rows = [{"name": one, "paper": load(one).paper, "what": load(one).title} for one in names()]
        return print_rows(rows, [])
    chosen = select(name)
    if results is not None and name != "all":
        raise ConfigError("--results needs the runs of all experiments: fedshed reproduce all --results FILE")
    check_folder(out)
    with progress_bar() as show:
        paths = run(chosen, out, cache_folder(), quick=quick, jobs=jobs, on_run=show, report=not no_report)
    if results is not None:
        from fedshed.experiments.claims import page
        from fedshed.files import write_atomically

        figures = os.path.relpath(out, results.parent)
        paths.append(write_atomically(results, page(cache_folder(), figures, quick).encode()))
    typer.echo("\n".join(f"wrote {path}" for path in paths))
