"""`fedshed reproduce`: the figures of the paper."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedshed._utils.errors import ConfigError
from fedshed._utils.mathematics import plain
from fedshed.cli import complete
from fedshed.cli.app import app
from fedshed.cli.show import check_folder, flag, option, print_rows, progress_bar, told

NAMES = ", ".join(complete.experiments(""))


@app.command(epilog=f"Names: {NAMES}. A family such as mnist stands for all names that begin with it.")
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="An experiment, a family such as mnist, 'all', or 'list'.",
            autocompletion=complete.experiments,
            show_default=False,
        ),
    ] = "",
    file: Annotated[Path | None, option("The TOML file of an experiment of your own.", False)] = None,
    quick: Annotated[bool, flag("--quick", "Use small embedded data and few iterations.")] = False,
    out: Annotated[Path, option("The folder for the figures.")] = Path("results/figures"),
    results: Annotated[
        Path | None,
        option(
            "With 'all': the Markdown file to write, which compares the paper's claims with these runs.",
            False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="The number of processes.", min=1)] = 2,
    no_report: Annotated[bool, flag("--no-report", "Write only figures, without HTML reports.")] = False,
) -> None:
    """Reproduce the figures of the paper, or draw an experiment of your own (--file).

    NAME is one of the names below, a family of them such as mnist, 'all', or
    'list', which describes each experiment. Finished runs are saved and used
    again, so a command that was stopped continues where it was.
    """
    from fedshed.experiments.page import page
    from fedshed.experiments.plan import load, load_file, names, select
    from fedshed.experiments.reproduce import reproduce as run
    from fedshed.experiments.runs import cache_folder

    if (file is None) == (not name):
        raise ConfigError(f"give either the name of an experiment or --file; the names are {NAMES}")
    if name == "list":
        rows = [{"name": one, "paper": load(one).paper, "what": plain(load(one).title)} for one in names()]
        return print_rows(rows, [])
    if results is not None and name != "all":
        raise ConfigError(
            "--results checks the paper's claims, which needs all runs; use it with: fedshed reproduce all"
        )
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

        text = page(cache_folder(), os.path.relpath(out, results.parent), quick)
        told([write_atomically(results, text.encode())])
