"""The preparation as a protocol (describe, agree, tally, build), over the same wire as any algorithm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from msgspec import UnsetType
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedshed._utils.errors import ConfigError, DataError
from fedshed._utils.files import user_secret
from fedshed._utils.names import printable
from fedshed.exchange import InProcess, Transport, open_transport
from fedshed.exchange.sums import ALL
from fedshed.exchange.wire import Traffic, Wire
from fedshed.linalg.arrays import Scalars
from fedshed.preparation import answer_checks, filling, formulas, scaling, tallies
from fedshed.preparation.agreement import LONGEST_REASON, agree, with_names
from fedshed.preparation.approved import check_protected
from fedshed.preparation.messages import (
    MESSAGES,
    Build,
    Constants,
    Describe,
    Deviations,
    Ready,
    Refused,
    Schema,
    Spread,
    Tallies,
    Tally,
    Values,
)
from fedshed.preparation.notices import of_levels, of_positive
from fedshed.preparation.objections import Objections, by_sentence, in_short
from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.row_numbers import refuse_or_note
from fedshed.preparation.site import Preparer
from fedshed.preparation.study import Study
from fedshed.preparation.units import of_units
from fedshed.protocol.conversation import Conversation, Flow, Problem, answers_of, everyone
from fedshed.protocol.messages import Message
from fedshed.solve import validation as checks
from fedshed.tables import Federation

log = logging.getLogger("fedshed")
_EMPTY = "{!r} is left out, because no row of any site has this combination of levels (an empty cell)"
M = TypeVar("M", bound=Message)


class Preparation(Conversation, frozen=True):
    """The conversation before the first gradient; every site must answer, and none may refuse."""

    messages = MESSAGES

    def flow(self, study: Study, problem: Problem) -> Flow[tuple[DesignPlan, dict[str, Ready]]]:
        """The plan, and what each site said of its table."""
        if study.formula is not None:
            formulas.formula_of(study)  # a formula that cannot be used is nobody's table's fault
        if study.protected:
            check_protected(study)
        schemas = yield from self._answers(Describe(study), Schema, problem)
        for site, schema in schemas.items():
            answer_checks.of_schema(study, site, schema)
        plan = yield from self._tallied(agree(study, schemas), schemas, problem)
        ready = yield from self._answers(Build(plan), Ready, problem)
        for site, each in ready.items():
            answer_checks.of_ready(plan, site, schemas[site], each)
        notes = (
            *of_positive(study, schemas),
            *of_levels(study, schemas),
            *of_units(plan, ready),
            *refuse_or_note(plan, ready),
        )
        plan = with_names(plan, ready)
        same = set[int]()
        if not study.protected:
            values = yield from self._constants(plan, ready, problem)
            if empty := scaling.empty_cells(plan, values):
                ready = {site: scaling.without_columns(each, empty) for site, each in ready.items()}
                values = {name: each for name, each in values.items() if name not in empty}
                plan = replace(with_names(plan, ready), aliased=empty)
                notes = (*notes, *(_EMPTY.format(name) for name in empty))
            same = scaling.same_everywhere(plan, values)
        scaled = study.standardize or scaling.far_from_zero(plan, ready, formulas.powers_to_centre(study))
        if not (study.needs_moments or scaled):
            if not isinstance(plan.aliased, UnsetType):
                ready = yield from self._built_again(plan, ready, problem)
            return replace(plan, warnings=notes), ready
        means = scaling.means(ready, len(plan.names))
        spread = yield from self._answers(Spread(plan, means), Deviations, problem)
        for site, found in spread.items():
            answer_checks.of_deviations(site, ready[site], found, len(plan.names))
        again = ready
        if study.protected:
            same = scaling.without_spread(plan, ready, means, spread)
        if scaled:
            plan = scaling.standardised(plan, ready, means, spread, same)
            again = yield from self._built_again(plan, ready, problem)
        told = {i: scaling.told(plan, means, ready[i], spread[i], again[i]) for i in again}
        return replace(plan, warnings=notes), dict[str, Ready](told)

    def _tallied(self, plan: DesignPlan, schemas: Mapping[str, Schema], problem: Problem) -> Flow[DesignPlan]:
        """The plan with the numbers of all rows that the formula's transforms need: means, knots, ..."""
        rows = {site: schema.complete for site, schema in schemas.items()}
        if plan.study.privacy is not None and (waiting := tallies.pending(plan)):
            raise ConfigError(
                f"term {waiting[0][0].term!r} needs moments of the rows, which a private study does not "
                "release; use public numbers instead, such as I((age - 60) / 15)"
            )
        if filling.pending(plan):
            sums = yield from self._answers(Tally(plan), Tallies, problem)
            plan = filling.with_fills(plan, {site: each.sums for site, each in sums.items()}, rows)
        while tallies.pending(plan):
            found = yield from self._answers(Tally(plan), Tallies, problem)
            plan = tallies.with_tallies(plan, found, rows)
        return plan

    def _constants(
        self, plan: DesignPlan, ready: Mapping[str, Ready], problem: Problem
    ) -> Flow[dict[str, Scalars]]:
        """The values, site by site, of the design columns that do not vary within any site, by name."""
        columns = tuple(sorted(set.intersection(*(set(each.constant) for each in ready.values()))))
        if not columns:
            return {}
        values = yield from self._answers(Constants(plan, columns), Values, problem)
        return scaling.by_column(plan, columns, values)

    def _built_again(
        self, plan: DesignPlan, before: Mapping[str, Ready], problem: Problem
    ) -> Flow[dict[str, Ready]]:
        """What the sites say of the final design: columns left out and scales in one request.

        A site that approved the study builds two designs in it and no third.
        """
        ready = yield from self._answers(Build(plan), Ready, problem)
        for site, each in ready.items():
            answer_checks.same_table(site, before[site], each)
        return ready

    def _answers(self, part: Message, kind: type[M], problem: Problem) -> Flow[dict[str, M]]:
        """One answer of each site, by site; a refusal is an error that names the site."""
        replies = yield from everyone([part], problem)
        if any(isinstance(answer, Refused) for (answer,) in replies.values()):
            said = [
                (site, printable(reason[:LONGEST_REASON]))
                for site, (answer,) in replies.items()
                for reason in _reasons(answer)
            ]
            objections = Objections()
            for sites, reason in by_sentence(said):
                objections.check(_refuse, sites, reason)
            objections.raise_all()
        return answers_of(replies, kind, type(part))


def _refuse(sites: Sequence[str], reason: str) -> None:
    named = sites[0] == ALL and reason.startswith("site ")  # a group names the one that refuses
    raise DataError(reason if named else f"{in_short(sites)}: {reason}")


def _reasons(answer: Message) -> list[str]:
    """Why a site cannot go on, or what it says is wrong with its columns."""
    if isinstance(answer, Refused):
        return answer.reason.split("\n")
    return [field.problem for field in answer.fields if field.problem] if isinstance(answer, Schema) else []


@dataclass(frozen=True, eq=False)
class Prepared:
    """The result of `prepare`: tables that fit together.

    Attributes
    ----------
    federation : Federation
        The design and target of each site.
    plan : DesignPlan
        The plan that all sites follow.
    sites : mapping
        For each site, the rows used, the rows dropped and their weight.
    traffic : Traffic
        The exchanges and bytes that the agreement took.
    """

    federation: Federation
    plan: DesignPlan
    sites: Mapping[str, Ready]  # rows, rows dropped and weight of each
    traffic: Traffic


def prepare(
    frames: Mapping[str, Any],
    study: Study,
    *,
    connect: Callable[[Mapping[str, Any]], Transport] = InProcess,
    name: str = "data",
) -> Prepared:
    """Let the sites agree on a plan for a study, and build their tables.

    Parameters
    ----------
    frames : mapping
        A table for each site: pandas, polars, Arrow, or a dict of arrays.
    study : Study
        The model and its columns.
    connect : callable, optional
        A function that makes a transport from the sites. Default: all sites are in this process.
    name : str, default "data"
        A name for titles.

    Returns
    -------
    Prepared
        The federation, the plan and the traffic.

    Raises
    ------
    DataError
        If the tables do not fit together; the message names the site and the column.
    ConfigError
        If the study cannot work.

    Examples
    --------
    >>> import fedshed
    >>> from fedshed.preparation import prepare
    >>> tables = {"north": {"age": [40, 50], "ill": [0, 1]}, "south": {"age": [60, 70], "ill": [1, 0]}}
    >>> prepare(tables, fedshed.Study(family="logistic", target="ill")).federation.columns
    ('age',)
    """
    preparers = preparers_of(frames)
    with threadpool_limits(1):  # the same bits on any machine with this BLAS
        with open_transport(connect(preparers)) as transport:
            plan, ready, traffic = negotiate(study, transport, tuple(preparers))
        tables = {site: preparers[site].table(plan) for site in sorted(preparers)}
    return Prepared(Federation(tables, plan.names, name), plan, ready, traffic)


def negotiate(
    study: Study, transport: Transport, agents: Sequence[str] | None = None, patience: int = 20
) -> tuple[DesignPlan, dict[str, Ready], Traffic]:
    """The Master's part of the preparation, over any transport.

    Parameters
    ----------
    study : Study
        The model and its columns.
    transport : Transport
        The connection to the sites.
    agents : sequence of str, optional
        The sites that take part. Default: all that the transport reaches.
    patience : int, default 20
        The number of exchanges in a row without an answer after which a site is given up.

    Returns
    -------
    tuple of DesignPlan, dict and Traffic
        The plan, what each site said about its table, and the traffic.

    Raises
    ------
    DataError
        If the tables do not fit together; the message names the site and the column.

    Examples
    --------
    >>> import fedshed
    >>> from fedshed.exchange import InProcess
    >>> from fedshed.preparation import Preparer, negotiate
    >>> sites = {"north": Preparer("north", {"age": [40, 50], "ill": [0, 1]})}
    >>> plan, ready, traffic = negotiate(fedshed.Study(family="logistic", target="ill"), InProcess(sites))
    >>> plan.coefficients
    ('age', 'intercept')
    """
    problem = Problem(np.zeros(1), dict.fromkeys(agents or transport.agents(), 1.0), study.loss)
    checks.reachable(transport, problem.agents)
    wire = Wire(Preparation(), problem, transport, Traffic(), patience=patience)
    plan, ready = wire.run_conversation(Preparation().flow(study, problem))
    for note in plan.warnings:
        log.warning("%s", printable(note))
    return plan, ready, wire.traffic


def preparers_of(frames: Mapping[str, Any]) -> dict[str, Preparer]:
    """What answers for each table in the preparation; an error names the site."""
    if not frames:
        raise DataError("a study needs at least one site; give a table for each site")
    made = {}
    for site, frame in frames.items():
        try:
            made[str(site)] = Preparer(str(site), frame, key=user_secret())
        except DataError as error:
            raise DataError(f"site {str(site)!r}: {error}") from error
    return made
