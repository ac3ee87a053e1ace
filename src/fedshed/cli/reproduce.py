"""`fedshed reproduce`: the figures of the paper."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedshed._utils.errors import ConfigError
from fedshed.cli import complete
from fedshed.cli.app import app
from fedshed.cli.show import check_folder, option, print_rows, progress_bar, told

NAMES = ", ".join(complete.experiments(""))


@app.command(epilog=f"Names: {NAMES}. A family such as mnist is all that begin with it.")
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="An experiment, a family such as mnist, 'all', or 'list'.",
            autocompletion=complete.experiments,
            show_default=False,
        ),
    ] = "",
    file: Annotated[Path | None, option("An experiment of your own, in a TOML file.", "none")] = None,
    quick: Annotated[bool, option("On small embedded data, with few iterations.")] = False,
    out: Annotated[Path, option("Folder for the figures.")] = Path("results/figures"),
    results: Annotated[
        Path | None,
        option("Write the page of claims here; but for 'all', only what NAME is about changes.", "none"),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Figures only, no HTML beside them.")
    ] = False,
) -> None:
    """Reproduce the paper's figures, or draw an experiment of your own (--file).

    NAME is one of those below, a family of them such as mnist, 'all', or 'list', which says what each is.
    Runs are cached by content, so a call that was stopped goes on where it was.
    """
    from fedshed.experiments.page import amended, page, page_before
    from fedshed.experiments.plan import load, load_file, names, select
    from fedshed.experiments.reproduce import reproduce as run
    from fedshed.experiments.runs import cache_folder

    if (file is None) == (not name):
        raise ConfigError(f"name an experiment or give --file; known: {NAMES}")
    if name == "list":
        rows = [{"name": one, "paper": load(one).paper, "what": load(one).title} for one in names()]
        return print_rows(rows, [])
    if results is not None and file is not None:
        raise ConfigError("--results is about the paper's claims; leave it out, or name an experiment")
    before = page_before(results) if results is not None and name != "all" else ""
    plans = [load_file(file, quick)] if file else [load(one, quick) for one in select(name)]
    check_folder(out)
    source = None if file is None else str(file)
    with progress_bar() as show:
        paths = run(
            plans,
            out,
            cache_folder(),
            quick=quick,
            jobs=jobs,
            on_run=show,
            report=not no_report,
            source=source,
        )
    told(paths)
    if results is not None:
        from fedshed._utils.files import write_atomically

        figures = os.path.relpath(out, results.parent)
        if name == "all":
            text = page(cache_folder(), figures, quick)
        else:
            command = f"fedshed reproduce {name}{' --quick' * quick} --out {out} --results {results}"
            text = amended(before, select(name), cache_folder(), figures, command, quick)
        told([write_atomically(results, text.encode())])
