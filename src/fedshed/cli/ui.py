"""`fedshed ui`: the report while a run goes on."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import app
from fedshed.cli.show import option

if TYPE_CHECKING:
    from fedshed.ui.live import Source

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@app.command(epilog="Example: fedshed ui --log runs/today")
def ui(
    log: Annotated[
        Path | None, option("Follow the log of a run (a folder of RunLog) instead.", "none")
    ] = None,
    host: Annotated[str, option("Address to serve on; another than loopback lets others in.")] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 is any that is free.")] = 8765,
    browser: Annotated[bool, option("Open a browser.")] = False,
) -> None:
    """Watch a run in the browser as it goes on; start, pause, resume and stop simulations there."""
    try:
        from fedshed.ui.server import Site, server_of
    except ImportError:
        raise ConfigError("`fedshed ui` needs starlette and uvicorn: pip install 'fedshed[ui]'") from None
    key, door = secrets.token_urlsafe(16), listening(host, port)
    hosts = list(LOOPBACK) if host in LOOPBACK else ["*"]
    address = f"http://{f'[{host}]' if ':' in host else host}:{door.getsockname()[1]}/?key={key}"
    site = Site(_source(log), key, hosts)
    typer.echo(f"open {address}\nCtrl-C ends it")
    if host not in LOOPBACK:
        typer.echo(f"anybody who reaches {host} and has the key can start runs here", err=True)
    if browser:
        typer.launch(address)
    # Addresses hold the key, so requests are not logged.
    server_of(site).run(sockets=[door])


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
