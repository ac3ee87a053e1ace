"""A protected study from end to end: what all play, the Master's tables, and a simulation here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from secrets import token_bytes
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.exchange import InProcess, Transport
from fedshed.exchange.sums import ALL
from fedshed.exchange.wire import Traffic
from fedshed.fitting.all_sites import AllTables, Playing
from fedshed.fitting.conduct import conduct
from fedshed.fitting.fit_problem import Fitted, fit_problem
from fedshed.fitting.model import Conducted
from fedshed.fitting.protected_host import ProtectedSite
from fedshed.fitting.protected_site import ObjectiveRows, Rows, SiteSteps, TableRows
from fedshed.fitting.stages import PROTOCOL, RUN, Protect, StageSession
from fedshed.fitting.terms import Terms
from fedshed.inference.result import RowRobust
from fedshed.linalg.arrays import Vector
from fedshed.objectives import LinearModel
from fedshed.preparation import Study
from fedshed.preparation.approved import check_protected
from fedshed.preparation.protocol import preparers_of
from fedshed.privacy.fixed_point import FEWEST_SITES
from fedshed.protected.journal import Store
from fedshed.protected.member import Member
from fedshed.protocol.codec import encode
from fedshed.protocol.conversation import Problem, Size
from fedshed.solve.engine import Progress
from fedshed.solve.goal import Goal
from fedshed.solve.run import Result, Watch
from fedshed.solve.watching import Begin, Observer

Play: TypeAlias = Callable[[AllTables], Any]  # a study, played with all sites as one
NO_RUN = bytes(4)  # in place of the name that a wire gives to its run


def study_of(terms: Terms, watch: Watch | None = None) -> Callable[[AllTables], Conducted]:
    """The whole study as the Master and every site play it; only the Master watches."""

    def play(tables: AllTables) -> Conducted:
        return conduct(
            terms.study, tables, terms.goal, algorithm=terms.algorithm, fused=True, errors=terms.errors,
            watch=watch,
        )  # fmt: skip

    return play


def check_sites(names: Collection[str]) -> None:
    """ConfigError for too few sites."""
    if len(names) < FEWEST_SITES:
        raise ConfigError(
            f"a protected study needs at least {FEWEST_SITES} sites, not {len(names)}: with two sites, each "
            "could subtract its own numbers from the sum and read those of the other"
        )


class MaskedTables(AllTables):
    """All sites as the Master asks them: each exchange is a masked sum."""

    def __init__(
        self, transport: Transport, roster: Mapping[str, bytes], study: bytes, run: bytes, least: int | None,
        store: Store, most: Callable[[AnyAlgorithm], int | None] = lambda algorithm: None,
        session: StageSession | None = None, patience: int = 20,
    ) -> None:  # fmt: skip
        from fedshed.protected.master import MaskedSums

        check_sites(roster)
        super().__init__(self._summed, most)
        self._session, self._meter, names = session, _Meter(transport), tuple(sorted(roster))
        fewest = len(roster) if least is None else least
        self._sums = MaskedSums(self._meter, names, study, run, fewest, store, patience=patience)

    @property
    def among(self) -> tuple[str, ...]:
        """The sites that the sums are over."""
        return self._sums.names

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes that were handed to the transport and came from it, envelopes included."""
        return (0, 0) if self._session is None else (self._session.up, self._session.down)

    def told(self) -> Traffic:
        """What crossed the wire beyond what the study counts as messages of one agent."""
        return Traffic(
            uplink_bytes=self._meter.up - self.counted.uplink_bytes,
            downlink_bytes=self._meter.down - self.counted.downlink_bytes,
        )

    def _summed(self, label: int, payload: bytes) -> bytes:
        codec = self.codec(label)
        request = codec.decode_request(payload)  # without its run's name it is the same when played again
        common = codec.encode_common(NO_RUN, request.number, request.parts)
        again = codec.encode_request(common, request.mine)
        return self.reply(label, payload, *self._sums.exchange(label, again))


class _Meter:
    """A transport whose bytes are counted."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.stateless = transport, transport.stateless
        self.up = self.down = 0

    def agents(self) -> Sequence[str]:
        return self._transport.agents()

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        answers = list(self._transport.exchange(payloads))
        self.down += sum(map(len, payloads.values()))
        self.up += sum(len(data) for _, data in answers)
        return answers


class SumsWatch(Observer):
    """An observer who is told over how many sites the sums are, in place of one agent for all of them."""

    def __init__(self, watch: Watch, tables: MaskedTables) -> None:
        self._watch, self._tables = watch, tables

    def begin(self, study: Begin) -> None:
        """What is fitted, as sums over the sites that take part."""
        if isinstance(self._watch, Observer):
            self._watch.begin(replace(study, protected=len(self._tables.among)))

    def __call__(self, progress: Progress) -> None:
        """A round."""
        self._watch(progress)

    def end(self, result: Result) -> None:
        """How it ended."""
        if isinstance(self._watch, Observer):
            self._watch.end(result)


def hosted_tables(
    transport: Transport, terms: Terms, run: bytes, store: Store, patience: int
) -> MaskedTables:
    """The sites of an approved study, wherever a transport finds their hosts."""
    session = StageSession(transport, terms.digest + run, Protect(PROTOCOL, terms))
    return MaskedTables(
        session.part(), terms.roster, terms.digest, run, terms.least, store, terms.most_iterations, session,
        patience,
    )  # fmt: skip


def fit_protected(
    tables: Mapping[str, Any], study: Study, goal: Goal, *, algorithm: str | AnyAlgorithm = "auto",
    errors: RowRobust | None = None, watch: Watch | None = None,
) -> Conducted:  # fmt: skip
    """The model of tables in this process, by masked sums that every site has verified."""
    check_protected(study)

    def play(tables: AllTables, watch: Watch | None = None) -> Conducted:
        return conduct(study, tables, goal, algorithm=algorithm, fused=True, errors=errors, watch=watch)

    rows = {name: TableRows(preparer) for name, preparer in preparers_of(tables).items()}
    with simulated(play, rows, encode(study)) as masked:
        return play(masked, watch and SumsWatch(watch, masked))


def fit_problem_protected(
    problem: Problem, objectives: Mapping[str, LinearModel], algorithm: AnyAlgorithm, goal: Goal,
    **settings: Any,
) -> Fitted:  # fmt: skip
    """The fit of a problem whose objectives are in this process, by masked sums that every site has verified.

    `settings` are those of `fit_problem`.
    """
    together = _together(problem, objectives)
    contrasts = next(iter(objectives.values())).null().dim

    def play(tables: AllTables) -> Fitted:
        sites = tables.start(Playing(together, algorithm, None, contrasts))
        return fit_problem(together, algorithm, sites, goal, count=len(objectives), **settings)

    rows = {name: ObjectiveRows(name, model) for name, model in objectives.items()}
    with simulated(play, rows, encode((problem.l2, problem.loss, problem.columns, problem.l1))) as masked:
        return play(masked)


def _together(problem: Problem, objectives: Mapping[str, LinearModel]) -> Problem:
    """A problem as that of one agent, with the size of each column, which the preparation would find."""
    weight = sum(problem.weights[site] for site in problem.agents)
    squares = np.sum([_squares(objectives[site]) for site in problem.agents], axis=0) / weight
    rows = sum(len(objectives[site].y) for site in problem.agents)
    last = problem.columns[-1].partition(" [contrast")[0] == "intercept"
    size = Size(rows, squares[:-1] if last else squares)
    return replace(problem, weights={ALL: weight}, sizes={ALL: size})


def _squares(model: LinearModel) -> Vector:
    """The weighted sum of squares of each column."""
    X = model.X.toarray() if hasattr(model.X, "toarray") else np.asarray(model.X)
    weights = np.ones(len(X)) if model.weights is None else model.weights
    return np.asarray(weights @ np.square(X))


@contextmanager
def simulated(play: Play, rows: Mapping[str, Rows], about: bytes) -> Iterator[MaskedTables]:
    """Sites in this process with real masks, each of which replays the study; `about` tells studies apart."""
    from fedshed.privacy.masks import KEY, identity_public
    from fedshed.protected.stores import MemoryStore

    check_sites(rows)
    study, run = sha256(about).digest(), token_bytes(RUN)
    identities = {name: token_bytes(KEY) for name in sorted(rows)}
    roster = {name: identity_public(identity) for name, identity in identities.items()}

    def site(name: str) -> ProtectedSite:
        steps, place = SiteSteps(play, rows[name]), (study, run, len(roster), MemoryStore())
        return ProtectedSite(steps, Member(name, identities[name], roster, *place, steps))

    sites = {name: site(name) for name in roster}
    try:
        yield MaskedTables(InProcess(sites), roster, study, run, None, MemoryStore())
    finally:
        for one in sites.values():
            one.close()
