"""The plan of a deployment: the engine, the address, the sites, and the programs that each machine runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed.deployment.config import check_name, load

if TYPE_CHECKING:
    from fedshed.deployment.certificates import Authority
    from fedshed.deployment.join import Joining

Engine: TypeAlias = Literal["flower", "nvflare"]
HERE = "{here}"  # in a command: the folder it is started in


class Deployment(Struct, frozen=True, forbid_unknown_fields=True):
    """What `deploy new` was asked for; kept as deployment.toml."""

    engine: Engine
    sites: tuple[str, ...]
    host: str = "localhost"
    port: int = 8443

    def __post_init__(self) -> None:
        for site in self.sites:
            check_name(site)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise ConfigError(f"--sites must name each site once, not {','.join(self.sites)!r}")
        if not 1024 <= self.port <= 65535 - len(self.sites):
            raise ConfigError(f"--port must be between 1024 and {65535 - len(self.sites)}, not {self.port}")

    def toml(self) -> str:
        """The text of deployment.toml."""
        sites = ", ".join(f'"{site}"' for site in self.sites)
        return f'engine = "{self.engine}"\nsites = [{sites}]\nhost = "{self.host}"\nport = {self.port}\n'

    @property
    def kit(self) -> Kit:
        """What the engine needs to be set up and started."""
        if self.engine == "flower":
            from fedshed.deployment.flower_kit import FlowerKit

            return FlowerKit(self)
        from fedshed.deployment.nvflare_kit import NVFlareKit

        return NVFlareKit(self)


class Command(Struct, frozen=True):
    """A program: the folder of the deployment in which it is started, its arguments and environment."""

    name: str
    folder: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}

    def line(self) -> str:
        """The command as it is typed in its folder."""
        env = [f"{name}={_shell(value)}" for name, value in self.env.items()]
        return " ".join([*env, *map(_shell, self.argv)])

    def at(self, root: Path) -> tuple[list[str], dict[str, str], Path]:
        """Arguments, environment and folder, for a deployment that lies at `root`."""
        here = root / self.folder
        argv = [value.replace(HERE, str(here)) for value in self.argv]
        return argv, {name: value.replace(HERE, str(here)) for name, value in self.env.items()}, here


def _shell(value: str) -> str:
    if HERE in value:
        return '"' + value.replace('"', '\\"').replace(HERE, "$PWD") + '"'
    return shlex.quote(value)


class Kit(Protocol):
    """An engine's part of a deployment."""

    organisation: str  # in the certificates of sites
    notice: str  # what users must know before they use the engine; may be empty

    def write(self, root: Path, requests: Mapping[str, Joining]) -> Authority:
        """Write certificates, keys and the engine's files into master/ and sites/NAME/; return the authority.

        A site that made its own key has a request; without one its key is made here, for a trial.
        """
        ...

    def certificates(self) -> dict[str, str]:
        """The path of each certificate in the deployment, by the site or program to which it belongs."""
        ...

    def master(self) -> Command:
        """The service at the Master."""
        ...

    def site(self, site: str) -> Command:
        """The service at a site."""
        ...

    def admissions(self) -> tuple[Command, ...]:
        """Commands to run once at the Master, after its service has started and before the sites start."""
        ...

    def start(self) -> Command:
        """The command that starts the study, once all services run."""
        ...

    def stop(self) -> Command | None:
        """The command at the Master that stops all services; None if each is stopped with Ctrl-C."""
        ...

    def stop_site(self) -> str:
        """The line that stops a site's service, typed in the site's folder; empty if Ctrl-C does so."""
        ...


def read_plan(root: Path) -> Deployment:
    """The plan of the deployment in a folder."""
    return load(root / "deployment.toml", Deployment)
