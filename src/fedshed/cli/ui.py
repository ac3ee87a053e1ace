"""`fedshed ui`: the report of a run while it is going on."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import app
from fedshed.cli.show import flag, option, print_message

if TYPE_CHECKING:
    from fedshed.ui.live import Source

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")  # all addresses of this machine, whose names are not known


@app.command(epilog="Example: fedshed ui --log runs/today")
def ui(
    log: Annotated[
        Path | None,
        option("Follow a recorded run: the folder given to watch=RunLog(folder).", "a simulation"),
    ] = None,
    host: Annotated[
        str,
        option("The address to serve on. With an address other than 127.0.0.1, other machines can connect."),
    ] = "127.0.0.1",
    port: Annotated[int, option("The port; 0 chooses a free port.")] = 8765,
    browser: Annotated[bool, flag("--browser", "Open the page in a browser.")] = False,
) -> None:
    """Watch a run in the browser while it is going on; start, pause, resume and stop simulations there."""
    try:
        from fedshed.ui.server import Site, server_of
    except ImportError:
        raise ConfigError(
            "`fedshed ui` needs starlette and uvicorn; install them with: pip install 'fedshed[ui]'"
        ) from None
    key, door = secrets.token_urlsafe(16), listening(host, port)
    hosts = LOOPBACK if host in LOOPBACK else None if host in EVERYWHERE else (host,)
    address = f"http://{f'[{host}]' if ':' in host else host}:{door.getsockname()[1]}/?key={key}"
    source = _source(log)
    typer.echo(f"open {address}\nCtrl-C ends it")
    if host not in LOOPBACK:
        print_message(f"warning: anybody who can reach {host} and has the key can start runs here")
    if browser:
        typer.launch(address)
    # Addresses hold the key, so requests are not logged.
    try:
        server_of(Site(source, key, hosts)).run(sockets=[door])
    finally:
        ended = source.status()
        typer.echo(f"ended ({ended.state}: {ended.message})")


def _source(log: Path | None) -> Source:
    from fedshed.ui.live import Simulation
    from fedshed.ui.log import Log

    return Simulation() if log is None else Log(log)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or the reason why there is none."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot serve on {host}:{port} ({error}); name another --port or --host") from None
