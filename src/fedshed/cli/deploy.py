"""`fedshed deploy` and `fedshed site`: a study over real sites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import App, app
from fedshed.cli.show import Json, flag, option, print_json, print_message

if TYPE_CHECKING:
    from fedshed.deployment.master import Report

deploy = App(help="Commands for the Master: set up a study, renew its certificates, and try it out locally.")
site = App(help="Commands for a site: join, check, approve, revoke and audit a study.")
app.add_typer(deploy, name="deploy")
app.add_typer(site, name="site")


@deploy.command(epilog="Example: fedshed deploy new mystudy --engine nvflare --sites paris,oslo,rome")
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to write, at the Master.")],
    engine: Annotated[str, option("The engine that carries the messages: flower or nvflare.")] = "nvflare",
    sites: Annotated[
        str | None,
        option("The names of the sites, separated by commas.", "a,b,c, or all sites with a request"),
    ] = None,
    host: Annotated[
        str, option("The name or address at which sites reach the Master; the certificate contains it.")
    ] = "localhost",
    port: Annotated[int, option("The Master's port.")] = 8443,
    requests: Annotated[
        Path | None,
        option(
            "The folder with the .join files that `fedshed site join` wrote at the sites.", "none: a trial"
        ),
    ] = None,
    protected: Annotated[
        bool,
        flag("--protected", "Set up a protected study, of which the Master sees only sums over the sites."),
    ] = False,
) -> None:
    """Write a study with certificates, and the commands for each machine.

    FOLDER is the folder to write, at the Master. Without --requests this is
    a trial on this machine: the keys of the sites are made here, and the
    tables are those of an example.
    """
    require_engine(engine)
    from fedshed.deployment.join import read_requests
    from fedshed.deployment.new import TRIAL, write
    from fedshed.deployment.plan import Deployment

    named = None if sites is None else tuple(name.strip() for name in sites.split(","))
    asked = {} if requests is None else read_requests(requests, engine, named)  # type: ignore[arg-type]
    plan = Deployment(engine, named or tuple(asked) or ("a", "b", "c"), host, port)  # type: ignore[arg-type]
    written = write(folder, plan, asked, protected=protected)
    typer.echo("\n".join(f"wrote {path}" for path in written))
    if plan.kit.notice:
        typer.echo(plan.kit.notice)
    for site, one in asked.items():
        typer.echo(f"site {site} has the key {one.fingerprint}: compare it with the site by telephone")
        if protected:
            typer.echo(f"its key in protected studies is {one.identity}: all sites must compare it")
    if not asked:
        typer.echo(TRIAL)
        typer.echo(f"run it all on this machine: fedshed deploy local {folder}")


@deploy.command(epilog="Example: fedshed deploy renew mystudy --site paris")
def renew(
    folder: Annotated[
        Path, typer.Argument(help="The folder that `fedshed deploy new` wrote, at the Master.")
    ],
    site: Annotated[
        str | None, option("Renew only the certificate of this site.", "all certificates")
    ] = None,
    request: Annotated[
        Path | None, option("The new .join file of that site, if it made a new key.", "none")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make new certificates for the same keys; print until when they are valid and where they belong.

    FOLDER is the folder that `fedshed deploy new` wrote, at the Master.
    """
    from fedshed.deployment.plan import read_plan

    require_engine(read_plan(folder).engine)
    from fedshed.deployment.renew import renew as renewed

    made = renewed(folder, site, request)
    if as_json:
        return print_json(made)
    for one in made:
        typer.echo(f"{one.path} is valid until {one.until:%Y-%m-%d}: {one.then}")


@deploy.command()
def local(
    folder: Annotated[Path, typer.Argument(help="The folder that `fedshed deploy new` wrote.")],
    timeout: Annotated[float, option("The number of seconds that the study may take.")] = 600.0,
    as_json: Json = False,
) -> None:
    """Start the Master and all sites on this machine, fit the model, and stop everything.

    FOLDER is the folder that `fedshed deploy new` wrote.
    """
    from fedshed.deployment.plan import read_plan

    plan = read_plan(folder)
    require_engine(plan.engine)
    from fedshed.deployment.local import run
    from fedshed.deployment.renew import warnings

    for said in warnings(folder):
        print_message(f"note: {said}")
    report = run(folder, seconds=timeout, say=lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(report)
    else:
        _print((folder / "master" / "results" / "summary.txt").read_text(), report, plan.engine)
    if not report.converged:
        raise typer.Exit(1)


def _print(summary: str, report: Report, engine: str) -> None:
    up, down = report.payload_up, report.payload_down
    typer.echo(summary)
    typer.echo(
        f"over TLS on {engine} in {report.seconds:.1f} s, by {report.algorithm}\n"
        f"{report.exchanges} exchanges, {up:,} bytes up and {down:,} down; "
        f"{report.carried_up:,} and {report.carried_down:,} in envelopes"
    )


def require_engine(engine: str) -> None:
    """Refuse unless the engine and the packages that read a site's table are installed."""
    from importlib.util import find_spec

    modules = {"flower": "flwr", "nvflare": "nvflare"}
    if engine not in modules:
        raise ConfigError(f"unknown engine {engine!r}; choose flower or nvflare")
    if any(find_spec(module) is None for module in (modules[engine], "psutil", "pyarrow")):
        raise ConfigError(
            f"the engine {engine} is not installed; install it with: pip install 'fedshed[{engine}]'"
        )
