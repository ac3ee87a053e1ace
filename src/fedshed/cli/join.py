"""`fedshed site join`: a site makes its own key and a request for the Master."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedshed.cli.deploy import require_engine, site
from fedshed.cli.show import option


@site.command(epilog="Example: fedshed site join paris --engine nvflare")
def join(
    name: Annotated[str, typer.Argument(help="The site's name in the study.")],
    engine: Annotated[str, option("flower or nvflare, as the Master says.")] = "nvflare",
    folder: Annotated[Path | None, option("The site's folder.", "its name")] = None,
) -> None:
    """Make the site's private key, which stays here, and a request to hand to the Master."""
    require_engine(engine)
    from fedshed.deployment.join import IDENTITY, KEYS, SUFFIX
    from fedshed.deployment.join import join as joined

    place = folder or Path(name)
    made = joined(name, engine, place)  # type: ignore[arg-type]
    typer.echo(f"wrote {place / KEYS[engine]}: the private key of site {name}, which stays on this machine")
    typer.echo(f"wrote {place / (name + SUFFIX)}: the request; send it to the Master")
    typer.echo(f"wrote {place / IDENTITY}: its key for protected studies, which stays here too")
    typer.echo(f"fingerprint of the key: {made.fingerprint}")
    typer.echo(f"public key in protected studies: {made.identity}")
    typer.echo("tell the Master's operator the fingerprint by telephone, and copy the folder that comes back")
    typer.echo(f"into {place}/, beside the key")
