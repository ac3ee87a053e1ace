"""A deployment on Flower: one port with TLS, a key for each site, and an app that holds no code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshed._utils.files import write_atomically, write_secret
from fedshed.deployment.certificates import Authority, public_ssh
from fedshed.deployment.join import KEYS, Joining, new_key
from fedshed.deployment.plan import HERE, Command, Deployment

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
OFFLINE = (
    "--disable-runtime-dependency-installation"  # otherwise each run would install packages from the internet
)
MASTER = ("python", "-m", "fedshed.deployment.flower_master")
SITE = ("python", "-m", "fedshed.deployment.flower_site")
NOTICE = (
    "Flower does not check who starts or stops a run, or registers a site: whoever reaches the Master's port "
    "and has ca.crt can stop the study, but cannot run code or take the place of a site. Let only the sites "
    "reach this port, or use NVFlare."
)
NAME = "study"  # of the connection in Flower's configuration
APP = """[project]
name = "fedshed-study"
version = "1.0.0"
description = "Names a run of the study. Nobody opens this app: the installed fedshed answers."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedshed"

[tool.flwr.app.components]
serverapp = "fedshed.deployment.flower:KIND"
clientapp = "fedshed.deployment.flower:KIND"

[tool.flwr.app.config]
ticket = ""
"""


class FlowerKit:
    """SuperLink at the Master, a SuperNode at each site."""

    organisation, notice = "fedshed", NOTICE

    def __init__(self, plan: Deployment) -> None:
        self._plan = plan
        self._address = f"{plan.host}:{plan.port}"

    def write(self, root: Path, requests: Mapping[str, Joining]) -> Authority:
        """Write ca.crt everywhere, and at the Master the server's key and the sites' public keys."""
        authority, master = Authority.new("fedshed study"), root / "master"
        certificate, key = authority.server(self._plan.host)
        write_atomically(master / "server.crt", certificate, private=False)
        write_secret(master / "server.key", key)
        write_atomically(master / "app" / "pyproject.toml", APP.encode())
        for folder in (master, *(root / "sites" / site for site in self._plan.sites)):
            write_atomically(folder / "ca.crt", authority.certificate, private=False)
        for site in self._plan.sites:
            public = requests[site].key if site in requests else _trial_key(root / "sites" / site)
            write_atomically(master / "keys" / f"{site}.pub", public_ssh(public), private=False)
        connection = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{self._address}"\n'
        trust = f'root-certificates = "{(master / "ca.crt").resolve()}"\n'
        write_atomically(master / "flwr" / "config.toml", (connection + trust).encode())
        return authority

    def certificates(self) -> dict[str, str]:
        """The certificate of the server; sites have keys only."""
        return {"the server": "master/server.crt"}

    def master(self) -> Command:
        """The SuperLink, and the study beside it (flower_master.py)."""
        tls = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key")
        where = ("--host", self._plan.host, "--port", str(self._plan.port))
        argv = (*MASTER, "serve", self._address, "flower-superlink", *where, *tls)
        return Command("superlink", "master", (*argv, "--enable-supernode-auth", OFFLINE), self._home)

    def site(self, site: str) -> Command:
        """The SuperNode of a site and the program that answers it, over a port of the site's machine only."""
        port = self._plan.port + 1 + self._plan.sites.index(site)
        argv = (
            *SITE, f"127.0.0.1:{port}", "flower-supernode", "--superlink", self._address,
            "--root-certificates", "ca.crt", "--auth-supernode-private-key", "node.key",
            "--host", "127.0.0.1", "--port", str(port),
        )  # fmt: skip
        return Command(f"supernode-{site}", f"sites/{site}", argv, {**QUIET, "FLWR_HOME": f"{HERE}/flwr"})

    def admissions(self) -> tuple[Command, ...]:
        """Each site's key is registered under its name."""
        return tuple(
            Command(
                f"register-{site}",
                "master",
                ("flwr", "supernode", "register", f"keys/{site}.pub", NAME, "--name", site),
                self._home,
            )
            for site in self._plan.sites
        )

    def start(self) -> Command:
        """Submit the run."""
        return Command("run", "master", (*MASTER, "start", "flwr", "run", "app", NAME), self._home)

    def stop(self) -> Command | None:
        """None, because Ctrl-C stops each program (`flower_runtime.supervise`)."""
        return None

    def stop_site(self) -> str:
        """Nothing, for the same reason."""
        return ""

    @property
    def _home(self) -> dict[str, str]:
        return {**QUIET, "FLWR_HOME": f"{HERE}/flwr"}


def _trial_key(folder: Path) -> Any:
    """Make a site's key, and return its public half."""
    key, encoded = new_key("flower")
    write_secret(folder / KEYS["flower"], encoded)
    return key.public_key()
