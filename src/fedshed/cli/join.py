"""`fedshed site join`: a site makes its own key and a request for the Master."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedshed.cli.deploy import require_engine, site
from fedshed.cli.show import option


@site.command(epilog="Example: fedshed site join paris --engine nvflare")
def join(
    name: Annotated[str, typer.Argument(help="The name of the site in the study.")],
    engine: Annotated[str, option("The engine that the Master uses: flower or nvflare.")] = "nvflare",
    folder: Annotated[Path | None, option("The folder of the site.", "the name of the site")] = None,
) -> None:
    """Make the site's private key, which stays here, and a request for the Master.

    NAME is the name of the site in the study.
    """
    require_engine(engine)
    from fedshed.deployment.join import IDENTITY, KEYS, SUFFIX
    from fedshed.deployment.join import join as joined

    place = folder or Path(name)
    made = joined(name, engine, place)  # type: ignore[arg-type]
    typer.echo(f"wrote {place / KEYS[engine]}: the private key of site {name}, which stays on this machine")
    typer.echo(f"wrote {place / (name + SUFFIX)}: the request; send it to the Master's operator")
    typer.echo(
        f"wrote {place / IDENTITY}: its private key for protected studies, which also stays on this machine"
    )
    typer.echo(f"fingerprint of the key: {made.fingerprint}")
    typer.echo(f"public key in protected studies: {made.identity}")
    typer.echo("Tell the Master's operator the fingerprint by telephone. Copy the folder that the operator")
    typer.echo(f"sends back into {place}/, beside the key.")
