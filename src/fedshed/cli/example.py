"""`fedshed example`: small tables for a first try."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from fedshed.cli import complete
from fedshed.cli.app import app


@app.command(epilog="Example: fedshed example hospitals")
def example(
    name: Annotated[
        str,
        typer.Argument(
            help="The example: hospitals, claims, digits or survival.", autocompletion=complete.examples
        ),
    ],
    folder: Annotated[Path | None, typer.Argument(help="The folder to write.", show_default="./NAME")] = None,
) -> None:
    """Write small tables for a first try, and a README with their columns, source and licence.

    NAME is hospitals, claims, digits or survival. FOLDER is the folder to
    write; by default a new folder with that name.
    """
    from fedshed.datasets.examples import EXAMPLES, write_example

    place = Path(name) if folder is None else folder
    typer.echo("\n".join(f"wrote {path}" for path in write_example(name, place)))
    there = () if place == Path() else (f"cd {quote(str(place))}",)
    typer.echo("\n".join(["Try next:", *(f"  {step}" for step in (*there, *EXAMPLES[name].commands))]))
