"""Sites of this process behind the relays of their groups: what the Master asks are groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedshed.exchange.group import Relay
from fedshed.exchange.groups import Group, GroupTraffic, Hop, walk_groups
from fedshed.exchange.inprocess import Handler, InProcess
from fedshed.exchange.sites import Connect, LocalSites, Stage
from fedshed.objectives import LinearModel
from fedshed.protocol.codec import Codec
from fedshed.protocol.conversation import AgentId
from fedshed.protocol.sums import Scaling

BY_GROUPS = "a run with groups"  # allows algorithms that need only sums


class GroupedSites(LocalSites):
    """Sites whose objectives are in this process; `connect` makes a transport from groups and other sites."""

    def __init__(
        self, objectives: Mapping[str, LinearModel], groups: Sequence[Group], connect: Connect = InProcess,
        hops: Mapping[str, Hop] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(objectives, connect)
        self._groups, self._hops = groups, hops_of(groups) if hops is None else hops

    def traffic(self) -> tuple[GroupTraffic, ...]:
        """What the relays and their members have sent each other so far, in all stages."""
        return traffic_of(self._groups, self._hops)

    def _answering(self, stage: Stage, codec: Codec) -> Mapping[AgentId, Handler]:
        """A relay for each group, and the sites that are in none."""
        rest: dict[AgentId, Handler] = dict(self._open)
        relays = {}
        for group in self._groups:
            relays[group.name], _ = self._relay(group, stage, codec)
            for site in group.sites:
                del rest[site]
        return {**rest, **relays}

    def _relay(self, group: Group, stage: Stage, codec: Codec) -> tuple[Relay, float]:
        """The relay of a group, and the weight of all its sites."""
        members: dict[AgentId, Handler] = {site: self._open[site] for site in group.own_sites}
        weights = {site: self._open[site].objective.weight for site in group.own_sites}
        for inner in group.own_groups:
            members[inner.name], weights[inner.name] = self._relay(inner, stage, codec)
        total = sum(weights[i] for i in sorted(weights))
        scalings = {i: Scaling(weight, total, plain=True) for i, weight in weights.items()}
        n = next(iter(self._open.values())).objective.dim
        return Relay(members, stage.conversation, n, scalings, codec, self._hops[group.name]), total


def hops_of(groups: Sequence[Group]) -> dict[str, Hop]:
    """A count that starts at 0 for each group, by its name."""
    return {group.name: Hop() for group in walk_groups(groups)}


def traffic_of(groups: Sequence[Group], hops: Mapping[str, Hop]) -> tuple[GroupTraffic, ...]:
    """The counts as the tree of the groups."""
    return tuple(
        GroupTraffic(
            group.name, len(group.members), hops[group.name].up, hops[group.name].down,
            traffic_of(group.own_groups, hops),
        )
        for group in groups
    )  # fmt: skip
