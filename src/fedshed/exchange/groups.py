"""Groups of sites that appear to the Master as one agent: their description, checks, and byte counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.linalg.arrays import Vector
from fedshed.protocol.conversation import AgentId, Problem, Size

FEW = 50  # names that an error lists


@dataclass(frozen=True)
class Group:
    """Sites that appear to the Master as one agent: a relay asks them and answers with sums of their answers.

    Parameters
    ----------
    name : str
        The name that the Master uses. No site and no other group may have this name.
    members : sequence of str or Group
        Names of sites, and groups within this one.

    Raises
    ------
    ConfigError
        If the name is not text, or the members are not a list of sites and groups.

    Examples
    --------
    >>> import fedshed
    >>> north = fedshed.Group("north", ["a", "b"])
    >>> fedshed.Group("country", [north, "c"]).sites
    ('a', 'b', 'c')
    """

    name: str
    members: Sequence[str | Group]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(
                f"the name of a group must be text, not {self.name!r}; write Group('north', ['a', 'b'])"
            )
        if isinstance(self.members, str | Group) or not isinstance(self.members, Collection):
            raise ConfigError(
                f"group {self.name!r}: members must be a list of sites and groups, not {self.members!r}"
            )
        if not self.members:
            raise ConfigError(f"group {self.name!r} has no members; name its sites, or leave it out")
        members = tuple(each if isinstance(each, Group) else str(each) for each in self.members)
        object.__setattr__(self, "members", members)

    @property
    def sites(self) -> tuple[str, ...]:
        """All sites of the group, sorted, including those of the groups within it."""
        return tuple(sorted(site for group in walk_groups([self]) for site in group.own_sites))

    @property
    def own_sites(self) -> tuple[str, ...]:
        """The members that are sites."""
        return tuple(each for each in self.members if isinstance(each, str))

    @property
    def own_groups(self) -> tuple[Group, ...]:
        """The members that are groups."""
        return tuple(each for each in self.members if isinstance(each, Group))


class GroupTraffic(Struct, frozen=True):
    """The bytes of all messages between a group's relay and its members, also of the groups within it.

    They come in addition to the bytes between the Master and its agents, which the trace counts.

    Attributes
    ----------
    name : str
        The name of the group.
    members : int
        The number of its members.
    uplink_bytes : int
        Bytes from the members to the relay.
    downlink_bytes : int
        Bytes from the relay to the members.
    groups : tuple of GroupTraffic
        The same for each group within it.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> groups = [fedshed.Group("north", federation.sites[:3])]
    >>> result = fedshed.optimize(federation, l2=1e-2, algorithm="newton", groups=groups)
    >>> print(result.hops[0])
    Group 'north' sent 31,473 bytes to its 3 members and received 362,718 bytes.
    """

    name: str
    members: int
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    groups: tuple[GroupTraffic, ...] = ()

    def __str__(self) -> str:
        said = (
            f"Group {self.name!r} sent {self.downlink_bytes:,} bytes to its {self.members} "
            f"{'member' if self.members == 1 else 'members'} and received {self.uplink_bytes:,} bytes."
        )
        within = (f"  {line}" for group in self.groups for line in str(group).split("\n"))
        return "\n".join([said, *within])


LIST = "groups must be a list such as [Group('north', ['a', 'b'])]"


class Hop:
    """Bytes between a relay and its members, as they are counted."""

    def __init__(self) -> None:
        self.up = self.down = 0


def walk_groups(groups: Sequence[Group]) -> Iterator[Group]:
    """Every group, and every group within it."""
    for group in groups:
        yield group
        yield from walk_groups(group.own_groups)


def check_groups(groups: Any, sites: Collection[AgentId]) -> tuple[Group, ...]:
    """The groups, if every name in them is that of one site and no site or group is named twice."""
    if not isinstance(groups, Collection) or isinstance(groups, Group | Mapping | str):
        raise ConfigError(f"{LIST}, not {groups!r}")
    for group in groups:
        if not isinstance(group, Group):
            raise ConfigError(f"{LIST}, and {group!r} is not a Group")
    known, owners, names = set(sites), dict[str, str](), set[str]()
    for group in walk_groups(tuple(groups)):
        if group.name in known:
            raise ConfigError(f"a group and a site are both called {group.name!r}; rename the group")
        if group.name in names:
            raise ConfigError(f"two groups are called {group.name!r}; give each group a different name")
        names.add(group.name)
        for site in group.own_sites:
            _check_member(group.name, site, known, owners)
            owners[site] = group.name
    return tuple(groups)


def _check_member(group: str, site: str, known: set[str], owners: Mapping[str, str]) -> None:
    if site not in known:
        names = closest(site, known) if len(known) <= FEW else ""
        raise ConfigError(f"group {group!r} names {site!r}, which is not a site here{names}")
    if site in owners:
        twice = (
            f"group {group!r}, twice" if owners[site] == group else f"groups {owners[site]!r} and {group!r}"
        )
        raise ConfigError(f"site {site!r} is in {twice}; name it once")


def group_problem(problem: Problem, groups: Sequence[Group]) -> Problem:
    """The problem as the Master sees it: a group has the weight and the size of all its sites."""
    weights, sizes = dict(problem.weights), dict(problem.sizes)
    for group in groups:
        sites = group.sites
        if all(site in sizes for site in sites):
            sizes[group.name] = _size([sizes.pop(site) for site in sites], [weights[site] for site in sites])
        weights[group.name] = sum(weights.pop(site) for site in sites)
    return replace(problem, weights=weights, sizes=sizes)


def _size(sizes: Sequence[Size], weights: Sequence[float]) -> Size:
    """Rows of all sites, and the mean squares of their columns, where each of them has told its own."""
    told: list[Vector] = [size.squares for size in sizes if size.squares is not None]
    squares = np.average(told, axis=0, weights=weights) if len(told) == len(sizes) else None
    return Size(sum(size.rows for size in sizes), squares)
