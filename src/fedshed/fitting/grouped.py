"""Tables in this process whose sites answer in groups, and what a study with groups cannot have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.exchange import InProcess
from fedshed.exchange.grouped_sites import GroupedSites, hops_of, traffic_of
from fedshed.exchange.groups import Group, check_groups
from fedshed.exchange.sites import Connect, LocalSites
from fedshed.fitting.model import Model
from fedshed.fitting.process_sites import ProcessSites
from fedshed.fitting.sites import LocalTables
from fedshed.objectives import LinearModel
from fedshed.preparation import DesignPlan, Study


class GroupedTables(LocalTables):
    """Tables in this process; the Master asks every site in the preparation, and the groups in the fit."""

    def __init__(
        self, tables: Mapping[str, Any], groups: Sequence[Group], connect: Connect = InProcess
    ) -> None:
        super().__init__(tables, connect)
        self.groups = check_groups(groups, self.names)
        self._hops = hops_of(self.groups)

    def _sites(self, plan: DesignPlan, objectives: Mapping[str, LinearModel]) -> LocalSites:
        return GroupedSites(objectives, self.groups, self._connect, self._hops)

    def told_of(self, model: Model) -> Model:
        """The model with the bytes within groups and a note on what is only known by group."""
        model.run = replace(model.run, hops=traffic_of(self.groups, self._hops))
        named = [f"{group.name} ({_count(len(group.sites))})" for group in self.groups[:MOST_NAMES]]
        more = f" and {len(self.groups) - MOST_NAMES} more" if len(self.groups) > MOST_NAMES else ""
        note = f"Groups take the place of their sites: {', '.join(named)}{more}. {BY_GROUP}"
        model.inference = replace(model.inference, notes=(*model.inference.notes, note))
        return model


MOST_NAMES = 10
BY_GROUP = (
    "Robust errors by site, the test of heterogeneity, influence and the table of sites are by group, "
    "because the Master sees only the sums of a group."
)


def _count(sites: int) -> str:
    return "1 site" if sites == 1 else f"{sites} sites"


def check_grouped(study: Study, over: Any) -> None:
    """Refuse what a study with groups cannot have, before anything is sent."""
    if study.protected:
        raise ConfigError("a protected study already sums over all sites; leave out groups")
    if study.holdout is not None:
        raise ConfigError(
            "rows that are held out are evaluated by site, which groups hide; leave out groups or holdout"
        )
    if study.site_estimates:
        raise ConfigError("groups hide the estimates of single sites; leave out groups or site_estimates")
    if study.random_intercept:
        raise ConfigError(
            "a random intercept needs the answer of each site, which groups hide; leave out groups or "
            "random_intercept"
        )
    if isinstance(over, ProcessSites):
        raise ConfigError("groups need sites in this process; leave out groups or over=ProcessSites()")
