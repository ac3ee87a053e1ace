"""`fedshed deploy renew`: new certificates for the same keys, under the authority that the Master keeps."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import write_atomically
from fedshed.deployment.certificates import Authority, ending_soon, ends
from fedshed.deployment.join import Joining, read_request
from fedshed.deployment.plan import Deployment, read_plan

FOLDER = "authority"  # of a deployment, at the Master: ca.key, the requests, and all certificates


class Renewed(Struct, frozen=True):
    """A new certificate: whose it is, where it is, until when it is valid, and what to do with it."""

    holder: str
    path: str
    until: datetime
    then: str


def keep(root: Path, authority: Authority, plan: Deployment, requests: Mapping[str, Joining]) -> None:
    """Write what renewal needs into a folder that stays at the Master."""
    authority.write(root / FOLDER)
    for site, request in requests.items():
        write_atomically(root / FOLDER / "requests" / f"{site}.join", request.data)
    for path in plan.kit.certificates().values():
        write_atomically(_issued(root, path), (root / path).read_bytes())


def renew(root: Path, site: str | None = None, request: Path | None = None) -> list[Renewed]:
    """Make new certificates for the same keys, or for the new key of one site.

    Parameters
    ----------
    root : Path
        The folder that `fedshed deploy new` made, at the Master.
    site : str, optional
        The site whose certificate is renewed. Default: those of the server and of all sites.
    request : Path, optional
        A new request (`.join` file) of that site, if it has made a new key.

    Returns
    -------
    list of Renewed
        The new certificates, in the folders where `deploy new` put the old ones.

    Raises
    ------
    ConfigError
        If the authority's key is missing, or the site has no certificate.
    """
    plan = read_plan(root)
    chosen = _chosen(plan, site)
    asked = None if request is None else _asked(request, plan, site)
    authority = Authority.read(root / FOLDER)
    return [_renewed(root, plan, authority, holder, path, asked) for holder, path in chosen.items()]


def warnings(root: Path) -> list[str]:
    """A sentence for each certificate of a deployment that expires soon, with the command that renews it."""
    said = ending_soon(sorted((root / FOLDER).rglob("*.crt")))
    return [f"{one} (fedshed deploy renew {root})" for one in said]


def _chosen(plan: Deployment, site: str | None) -> dict[str, str]:
    """The paths of the certificates to make, by holder."""
    paths = plan.kit.certificates()
    if site is None:
        return paths
    if site not in plan.sites:
        raise ConfigError(f"{site!r} is not a site of this deployment; its sites are {', '.join(plan.sites)}")
    if site not in paths:
        raise ConfigError(
            f"site {site!r} has a key but no certificate on {plan.engine}, so there is nothing to renew"
        )
    return {site: paths[site]}


def _asked(request: Path, plan: Deployment, site: str | None) -> Joining:
    joining = read_request(request, plan.engine)
    if joining.site != site:
        raise ConfigError(f"{request} is a request of site {joining.site!r}; give --site {joining.site}")
    return joining


def _renewed(
    root: Path, plan: Deployment, authority: Authority, holder: str, path: str, asked: Joining | None
) -> Renewed:
    if asked is None:
        made = authority.renewed(_issued(root, path).read_bytes())
    else:
        made = authority.client(asked.site, asked.key, plan.kit.organisation)
        write_atomically(root / FOLDER / "requests" / f"{asked.site}.join", asked.data)
    for copy in (_issued(root, path), root / path):
        write_atomically(copy, made)
    return Renewed(holder, str(root / path), ends(made), _then(plan, holder, path))


def _then(plan: Deployment, holder: str, path: str) -> str:
    """What to do with a new certificate."""
    if holder not in plan.sites:
        return "restart the Master's service if it is running"
    inside = Path(path).relative_to(f"sites/{holder}")
    return f"send it to site {holder}, which replaces its {inside} by it and restarts its service"


def _issued(root: Path, path: str) -> Path:
    return root / FOLDER / "issued" / path
