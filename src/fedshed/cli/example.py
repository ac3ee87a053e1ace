"""`fedshed example`: small tables to begin with."""

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
        str, typer.Argument(help="hospitals, claims, digits or survival.", autocompletion=complete.examples)
    ],
    folder: Annotated[Path | None, typer.Argument(help="Where to write it.", show_default="./NAME")] = None,
) -> None:
    """Write small tables to try fedshed on, and a README with their columns, source and licence.

    NAME is hospitals, claims, digits or survival; FOLDER is where to write it, by default a new one of
    that name.
    """
    from fedshed.datasets.examples import EXAMPLES, write_example

    place = Path(name) if folder is None else folder
    typer.echo("\n".join(f"wrote {path}" for path in write_example(name, place)))
    there = () if place == Path() else (f"cd {quote(str(place))}",)
    typer.echo("\n".join(["Try next:", *(f"  {step}" for step in (*there, *EXAMPLES[name].commands))]))
