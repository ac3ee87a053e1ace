"""Sites that hold a table each: they agree on a plan, and then play a study on the rows it makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from secrets import token_bytes
from typing import Any, Protocol

from msgspec.structs import replace

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.channels import Channel, Constant, PerAgent
from fedshed.exchange import InProcess, Transport, open_transport
from fedshed.exchange.groups import Group
from fedshed.exchange.sites import Connect, LocalSites, Sites, Stage
from fedshed.exchange.wire import Traffic
from fedshed.fitting.stages import PROTOCOL, RUN, STUDY, Greeting, Play, Prepare, StageSession, same_protocol
from fedshed.fitting.terms import Terms
from fedshed.objectives import LinearModel, local_objectives, stacked
from fedshed.objectives.build import held_objective
from fedshed.preparation import DesignPlan
from fedshed.preparation.cells import empty_reference_cell
from fedshed.preparation.protocol import preparers_of
from fedshed.protocol.codec import raw
from fedshed.protocol.conversation import Problem
from fedshed.solve import validation as checks
from fedshed.tables import Federation

UNLIMITED = 1 << 20  # eigenpairs per round over a link without a budget: more than any site has


class TableSites(Protocol):
    """Where the tables of a study are."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the sites."""
        ...

    @property
    def one_process(self) -> bool:
        """Whether all are in this process, where messages cost nothing."""
        ...

    @property
    def sites(self) -> int:
        """The number of sites in the sums of a protected study; 0 in other studies."""
        ...

    @property
    def groups(self) -> Sequence[Group]:
        """Groups of sites that are one agent each after the preparation."""
        ...

    def prepare(self) -> AbstractContextManager[Transport]:
        """A transport to sites that take part in the preparation."""
        ...

    def play(self, plan: DesignPlan, problem: Problem, algorithm: AnyAlgorithm) -> Sites:
        """The sites with the rows of a plan, for the fit and what comes before and after it."""
        ...

    def budget(self) -> Channel | None:
        """What the sites' links carry, as far as they have said so in the preparation."""
        ...

    def approved_algorithm(self, n: int) -> tuple[AnyAlgorithm, str] | None:
        """What a study that the sites have approved runs with n coefficients, and why; None without one."""
        ...

    def most_iterations(self, algorithm: AnyAlgorithm) -> int | None:
        """Iterations that an approved study allows, if there is such a limit."""
        ...

    def told(self) -> Traffic:
        """What crossed the wire beside the messages of the study: which stage the sites are in, masks."""
        ...


class LocalTables:
    """Tables in this process; `connect` makes a transport from what answers for the sites."""

    sites = 0
    groups: Sequence[Group] = ()

    def __init__(self, tables: Mapping[str, Any], connect: Connect = InProcess) -> None:
        self._preparers, self._connect = preparers_of(tables), connect

    @property
    def names(self) -> Sequence[str]:
        """Names of the sites."""
        return tuple(self._preparers)

    @property
    def one_process(self) -> bool:
        """Whether the sites are called directly, without a transport such as Stateless."""
        return self._connect is InProcess

    def prepare(self) -> AbstractContextManager[Transport]:
        """The sites in the preparation."""
        return open_transport(self._connect(self._preparers))

    def play(self, plan: DesignPlan, problem: Problem, algorithm: AnyAlgorithm) -> Sites:
        """Their objectives; columns that are collinear are refused here, where the rows are at hand."""
        rows = {site: self._preparers[site].table(plan) for site in sorted(self._preparers)}
        federation = Federation(rows, plan.names)
        objectives = stacked(local_objectives(federation, plan.loss, plan.intercept, plan.classes))
        explain = partial(empty_reference_cell, plan)
        checks.unique_optimum(objectives, problem.penalised, problem.columns, explain)
        return self._sites(plan, objectives)

    def _sites(self, plan: DesignPlan, objectives: Mapping[str, LinearModel]) -> LocalSites:
        return LocalSites(objectives, self._connect, self._held(plan))

    def _held(self, plan: DesignPlan) -> dict[str, LinearModel]:
        """The rows that the study holds out."""
        if plan.study.holdout is None:
            return {}
        loss, classes, intercept = plan.loss, plan.classes, plan.intercept
        made = {}
        for site in sorted(self._preparers):
            try:
                table = self._preparers[site].held(plan)
            except DataError as error:
                raise DataError(f"site {site!r}: {error}") from error
            made[site] = held_objective(site, table, loss, classes, intercept)
        return made

    def budget(self) -> None:
        """None: links within a process have no limit."""

    def approved_algorithm(self, n: int) -> None:
        """None: nobody approves a study of tables in this process."""

    def most_iterations(self, algorithm: AnyAlgorithm) -> None:
        """None: the number of iterations has no limit."""

    def told(self) -> Traffic:
        """No bytes, because the sites are in this process."""
        return Traffic()


class HostedTables:
    """Tables at hosts (`fedshed.fitting.host`) that a transport reaches: processes, or machines elsewhere.

    Sites that approve studies are given the `terms`; `run` names this run of the study, so that a host goes
    on with what it knows of it.
    """

    one_process = False
    sites = 0
    groups: Sequence[Group] = ()

    def __init__(
        self, transport: Transport, names: Sequence[str], terms: Terms | None = None, run: bytes | None = None
    ) -> None:
        self._transport, self._terms, self.names = transport, terms, tuple(names)
        study = bytes(STUDY) if terms is None else terms.digest
        self._run = study + (token_bytes(RUN) if run is None else run)
        self._sessions: list[StageSession] = []

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes that were handed to the transport and came from it, envelopes included."""
        return sum(one.up for one in self._sessions), sum(one.down for one in self._sessions)

    def prepare(self) -> AbstractContextManager[Transport]:
        """The stage of the preparation."""
        return nullcontext(self._session(Prepare(PROTOCOL, self._terms)).part())

    def play(self, plan: DesignPlan, problem: Problem, algorithm: AnyAlgorithm) -> Sites:
        """The stage of the fit; a site builds its rows without the design's names."""
        for site, greeting in self._greetings().items():
            _is_itself(site, greeting)
        stage = Play(replace(plan, names=(), terms=(), warnings=()), raw(algorithm), self._terms)
        return _HostedSites(self._session(stage), self._transport.stateless)

    def budget(self) -> Channel | None:
        """Each site's uplink, where it has a limit."""
        greetings = sorted(self._greetings().items())  # not in the order in which sites came: it is saved
        links = {site: said.uplink for site, said in greetings if said.uplink is not None}
        return PerAgent(dict(links), Constant(UNLIMITED)) if links else None

    def approved_algorithm(self, n: int) -> tuple[AnyAlgorithm, str] | None:
        """What the terms say, at the Master as at every site."""
        return None if self._terms is None else self._terms.choose(n)

    def most_iterations(self, algorithm: AnyAlgorithm) -> int | None:
        """Iterations that the points of the approved study allow, and what comes before and after them."""
        return None if self._terms is None else self._terms.most_iterations(algorithm)

    def told(self) -> Traffic:
        """Bytes of the stages themselves."""
        return Traffic(downlink_bytes=sum(one.told for one in self._sessions))

    def _greetings(self) -> dict[str, Greeting]:
        return {site: said for one in self._sessions for site, said in one.greetings.items()}

    def _session(self, stage: Prepare | Play) -> StageSession:
        self._sessions.append(StageSession(self._transport, self._run, stage))
        return self._sessions[-1]


class _HostedSites:
    """The parts of one stage as transports."""

    def __init__(self, session: StageSession, stateless: bool) -> None:
        self._session, self.stateless = session, stateless

    def open(self, stage: Stage) -> AbstractContextManager[Transport]:
        """The part with the number of the stage."""
        return nullcontext(self._session.part(stage.number))


def _is_itself(site: str, greeting: Greeting) -> None:
    """Refuse a site that runs another version, or is not the one it is registered as."""
    same_protocol(f"site {site!r}", greeting.protocol)
    if greeting.name != site:
        raise ProtocolError(
            f"the node that is registered as {site!r} calls itself {greeting.name!r}; "
            "write the registered name in its site.toml"
        )
