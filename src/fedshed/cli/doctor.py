"""`fedshed doctor`: a check of the installation."""

from __future__ import annotations

import typer
from msgspec.structs import asdict

from fedshed.cli.app import app
from fedshed.cli.show import Json, print_json


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check the installation: packages, BLAS and threads, data sets, and the result of a small fit."""
    from fedshed.cli.findings import examine

    findings = examine()
    if as_json:
        print_json([asdict(one) for one in findings])
    else:
        for one in findings:
            mark = "ok" if one.ok else "FAILS" if one.needed else "optional"
            typer.echo(f"{mark:9}{one.what}: {one.found}")
            if not one.ok:
                typer.echo(f"{'':9}  {one.remedy}")
    if not all(one.ok for one in findings if one.needed):
        raise typer.Exit(1)
