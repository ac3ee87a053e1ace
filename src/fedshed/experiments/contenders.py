"""What can be said of an algorithm before it runs: whether it is complete, and whether its links exist."""

from __future__ import annotations

from collections.abc import Sequence

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.algorithms.base import Algorithm, AnyAlgorithm
from fedshed.algorithms.channels import PerAgent
from fedshed.tables import Federation

ATTRIBUTES, METHODS = ("state", "messages"), ("ask", "absorb", "step", "respond")


def check_complete(name: str, algorithm: AnyAlgorithm) -> None:
    """ConfigError if the class lacks an attribute or a method that every algorithm has (docs/extend.md)."""
    kind = type(algorithm)
    lacks = [one for one in ATTRIBUTES if not hasattr(kind, one)]
    lacks += [one for one in METHODS if getattr(kind, one, None) is getattr(Algorithm, one, None)]
    if lacks:
        raise ConfigError(
            f"algorithm {name!r}: the class {kind.__name__} has no {' and no '.join(lacks)}; docs/extend.md "
            "shows what an algorithm needs"
        )


def check_links(name: str, algorithm: AnyAlgorithm, several: Sequence[Federation]) -> None:
    """ConfigError if links are given to sites that do not exist."""
    channel = getattr(algorithm, "channel", None)
    if not isinstance(channel, PerAgent):
        return
    sites = {site for data in several for site in data.sites}
    for site in sorted(channel.channels.keys() - sites):
        raise ConfigError(
            f"algorithm {name!r}: its budget names {site!r}, which is not a site{closest(site, sites)}"
        )
