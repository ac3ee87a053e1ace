"""A host: the end of a study at a site, which opens the requested stages on its own rows."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import Struct, UnsetType

from fedshed._utils.errors import CodecError, ProtocolError
from fedshed._utils.files import user_secret
from fedshed.algorithms.channels import ByteRate
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.fitting.parts import algorithm_of, part_of
from fedshed.fitting.protected_host import MaskedRecord, ProtectedSite
from fedshed.fitting.protected_site import SiteSteps, TableRows
from fedshed.fitting.protected_study import study_of
from fedshed.fitting.stages import (
    PROTOCOL,
    RUN,
    STAGE,
    STUDY,
    Answer,
    Envelope,
    Greeting,
    Play,
    Prepare,
    Protect,
    Stage,
    Unknown,
    VersionError,
    digest,
    same_protocol,
)
from fedshed.fitting.terms import Terms
from fedshed.objectives import LinearModel, family_of
from fedshed.objectives.build import held_objective, local_objective
from fedshed.preparation import DesignPlan, scaling
from fedshed.preparation.cells import design_objections
from fedshed.preparation.derived import check_plan
from fedshed.preparation.describe import text_columns
from fedshed.preparation.design import Design
from fedshed.preparation.guarded import GuardedPreparer
from fedshed.preparation.holdout import fitted_rows
from fedshed.preparation.site import Preparer, asked_study, held_table
from fedshed.privacy.gate import DesignFacts, Gate
from fedshed.privacy.leverage import Leverage
from fedshed.privacy.policy import Objection, Policy
from fedshed.privacy.tables import held_objections
from fedshed.protected.journal import Store, Witness
from fedshed.protected.member import Member
from fedshed.protocol.codec import encode
from fedshed.protocol.limits import check_items
from fedshed.tables.frames import Frame
from fedshed.tables.stored import Table

log = logging.getLogger("fedshed")
_ENVELOPE = msgspec.msgpack.Decoder(Envelope)
_STAGE: msgspec.msgpack.Decoder[Stage] = msgspec.msgpack.Decoder(Prepare | Play | Protect)


class Answering(Protocol):
    """What answers the payloads of one part of a stage."""

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request."""
        ...


class Built(Struct, frozen=True):
    """The rows of a site for a fit, which all parts of the stage share."""

    objective: LinearModel
    facts: DesignFacts
    gate: Gate | None
    found: list[Objection]  # what the policy has against the plan
    ledger: Leverage
    held: LinearModel | None = None  # the rows that the study holds out
    names: tuple[str, ...] = ()  # of the columns of the design


class Host:
    """A site's table, and what is computed on it, whatever carries the bytes.

    Subclasses say where the table is, what may leave (`gate`), and what must outlive a process (`keep`).
    """

    lasting = False  # whether it keeps what it knows for later processes

    def __init__(self, name: str) -> None:
        self.name = name
        self._stages: dict[bytes, Stage] = {}
        self._answering: dict[tuple[bytes, int], tuple[Answering, Site | None]] = {}
        self._built: dict[bytes, Built] = {}

    def frame(self, run: bytes, text: tuple[str, ...] = ()) -> Any:
        """The site's table, the same throughout a run; `text` are columns whose numbers are codes."""
        raise NotImplementedError

    def gate(self, run: bytes, stage: Stage, rows: int) -> Gate | None:
        """The gate that decides what leaves the site; None if every request is answered."""
        return None

    def key(self) -> bytes:
        """The site's secret, with which it marks its rows."""
        return user_secret()

    def identity(self) -> bytes:
        """The private key with which the site signs in protected studies."""
        raise ProtocolError("this site has no key for protected studies; run `fedshed site join` to make one")

    def store(self, run: bytes) -> Store:
        """The permanent store of a protected study, which survives the process."""
        raise ProtocolError("this site has no permanent store, which a protected study needs")

    def witness(self, run: bytes) -> Witness | None:
        """A second record of how far a protected study has come."""
        return None

    def uplink(self) -> ByteRate | None:
        """What the site's link carries, if that is limited."""
        return None

    def kept(self, run: bytes, name: str) -> bytes | None:
        """What an earlier process of this site kept under a name."""
        return None

    def keep(self, run: bytes, name: str, data: bytes) -> None:
        """Keep something for a later process of this site, where each message has its own."""

    def handle(self, data: bytes) -> bytes:
        """The reply to an envelope."""
        return encode(self.answer(opened_envelope(data)))

    def forget(self) -> None:
        """Clear all memory, as after a restart of the process."""
        for key in list(self._stages):
            self._drop(key)

    def answer(self, envelope: Envelope) -> Answer | Unknown:
        """An answer, or that the stage is unknown."""
        stage = self._stage(envelope)
        if stage is None:
            return Unknown()
        which = envelope.key, envelope.part
        if which not in self._answering:
            self._answering[which] = self._opened(envelope, stage)
        answering, site = self._answering[which]
        payload = answering.handle(envelope.payload)
        if site is not None:
            self.keep(envelope.run, f"{envelope.stage.hex()}.{envelope.part}", site.save())
            self._keep_leverage(envelope)
        return Answer(payload, self._greeting() if envelope.opening else None)

    def _keep_leverage(self, envelope: Envelope) -> None:
        if self.lasting:
            ledger = self._built[envelope.key].ledger
            self.keep(envelope.run, f"{envelope.stage.hex()}.leverage", ledger.save())

    def _greeting(self) -> Greeting:
        return Greeting(self.name, self.uplink(), PROTOCOL)

    def _stage(self, envelope: Envelope) -> Stage | None:
        """The stage of an envelope: known, or told now, or kept by an earlier process of this site.

        A new run of a study takes the place of those before it, and a new fit that of the fit before it, so
        that neither uses memory without end.
        """
        if envelope.key not in self._stages:
            kept = self.kept(envelope.run, envelope.stage.hex())
            opening = envelope.opening or kept
            if opening is None:
                return None
            stage = _stage(opening, envelope)
            for old, before in list(self._stages.items()):
                same_run = old[: STUDY + RUN] == envelope.run
                if old[:STUDY] == envelope.study and not (same_run and type(before) is not type(stage)):
                    self._drop(old)
            self._stages[envelope.key] = stage
            if kept is None:
                self.keep(envelope.run, envelope.stage.hex(), opening)
        return self._stages[envelope.key]

    def _drop(self, key: bytes) -> None:
        """Forget a stage and all that answers for it."""
        self._stages.pop(key, None)
        self._built.pop(key, None)
        for which in [which for which in self._answering if which[0] == key]:
            answering = self._answering.pop(which)[0]
            if isinstance(answering, ProtectedSite):
                answering.close()

    def _opened(self, envelope: Envelope, stage: Stage) -> tuple[Answering, Site | None]:
        """What answers a part of a stage, and the site whose cache is to be kept."""
        if isinstance(stage, Protect):
            return self._protected(envelope, stage), None
        if isinstance(stage, Prepare):
            same_protocol("the Master", stage.protocol)
            text = text_columns(asked_study(envelope.payload))
            study = None if stage.terms is None else stage.terms.study
            preparer = Preparer(self.name, self.frame(envelope.run, text), study, key=self.key())
            gate = self.gate(envelope.run, stage, preparer.frame.rows)
            return (preparer if gate is None else GuardedPreparer(preparer, gate)), None
        if envelope.key not in self._built:
            self._built[envelope.key] = self._build(envelope, stage)
        built = self._built[envelope.key]
        site = self._site(envelope, stage, built)
        if built.gate is None:
            return site, site
        alike = site.objective is built.objective  # not the model without columns, nor rows held out
        ledger = built.ledger if alike else None
        return Guarded(site, built.gate, built.facts, built.found, ledger), site

    def _protected(self, envelope: Envelope, stage: Protect) -> ProtectedSite:
        """The site in a protected study, in which it computes itself what must be asked."""
        same_protocol("the Master", stage.protocol)
        if envelope.part != 0:  # otherwise several parts would answer for the same rows
            raise ProtocolError("a protected study has only one part")
        terms = stage.terms
        frame = self.frame(envelope.run, text_columns(terms.study))
        preparer = Preparer(self.name, frame, terms.study, key=self.key())

        def gate(rows: int) -> Gate | None:
            return self.gate(envelope.run, stage, rows)

        record = MaskedRecord(gate, envelope.run[STUDY:].hex(), preparer)
        steps = SiteSteps(study_of(terms), TableRows(preparer), terms.most_iterations, record)
        return ProtectedSite(steps, self._member(envelope.run, terms, steps))

    def _member(self, run: bytes, terms: Terms, steps: SiteSteps) -> Member:
        """The site among the others of a protected study."""
        return Member(
            self.name, self.identity(), terms.roster, terms.digest, run[STUDY:], terms.fewest,
            self.store(run), steps, self.witness(run),
        )  # fmt: skip

    def _build(self, envelope: Envelope, stage: Play) -> Built:
        """A site's rows as the plan has them, and the gate that they are behind."""
        plan, frame = stage.plan, self.frame(envelope.run, text_columns(stage.plan.study))
        if stage.terms is not None:
            check_plan(stage.terms.study, Frame(frame), plan)
        whole = Frame(frame)
        frame = fitted_rows(plan.study, whole, self.name)
        table, design = plan.build(frame)
        objective = local_objective(self.name, table, plan.loss, plan.classes, plan.intercept)
        if stage.terms is not None:
            stage.terms.check_algorithm(algorithm_of(stage, objective.dim), objective.dim)
        gate = self.gate(envelope.run, stage, len(table.y))
        found = design_objections(gate.policy, plan, frame, design) if gate else []
        held = self._held(plan, whole, gate.policy if gate else None)
        found += [] if held is None or gate is None else held_objections(gate.policy, held)
        ledger = Leverage(len(table.y))
        if saved := self.kept(envelope.run, f"{envelope.stage.hex()}.leverage"):
            with suppress(CodecError):
                ledger.load(saved)
        return Built(
            objective, design_facts(plan, table, design), gate, found, ledger, held, tuple(design.names)
        )

    def _held(self, plan: DesignPlan, frame: Frame, policy: Policy | None) -> LinearModel | None:
        """The rows that the study holds out, if it does."""
        if plan.study.holdout is None:
            return None
        least = 1 if policy is None else max(policy.min_rows_per_class, policy.min_rows_per_level)
        table = held_table(plan, frame, self.name)
        return held_objective(self.name, table, plan.loss, plan.classes, plan.intercept, least)

    def _site(self, envelope: Envelope, stage: Play, built: Built) -> Site:
        part = part_of(envelope.part, stage, built.objective.dim, built.names)
        objective = built.held if part.held and built.held is not None else built.objective
        site = Site(self.name, objective.null() if part.null else objective, part.conversation)
        saved = self.kept(envelope.run, f"{envelope.stage.hex()}.{envelope.part}")
        if saved is not None:
            try:
                site.load(saved)
            except CodecError:
                log.warning("the cache of study %s is damaged and is not used", envelope.study.hex())
        return site


def opened_envelope(data: bytes) -> Envelope:
    """The envelope in these bytes."""
    check_items(data)
    try:
        envelope = _ENVELOPE.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a message of {len(data)} bytes is not an envelope: {error}") from error
    if len(envelope.key) != STUDY + RUN + STAGE:
        raise VersionError(
            "the envelope has another version of the protocol; "
            "install the same version of fedshed at both ends"
        )
    return envelope


def _stage(opening: bytes, envelope: Envelope) -> Stage:
    """The stage that came along, if it and its terms are those that the envelope names."""
    if digest(opening) != envelope.stage:
        raise ProtocolError("the stage in the message is not the one that the envelope names")
    check_items(opening)
    try:
        stage = _STAGE.decode(opening)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"the stage is unknown ({error}); install the same version of fedshed at both ends"
        ) from error
    if stage.terms is not None and stage.terms.digest != envelope.study:
        raise ProtocolError("the terms in the message are not those of the study that the envelope names")
    if stage.terms is not None and stage.terms.study.protected is not isinstance(stage, Protect):
        raise ProtocolError("masks must be used in a protected study, and only there")
    return stage


def design_facts(plan: DesignPlan, table: Table, design: Design) -> DesignFacts:
    """The facts of a plan and its design for the site's record, without columns that do not vary."""
    family = family_of(plan.study.loss)
    classes = len(plan.classes or ()) - 1 if family.classes in ("many", "ordered") else 0
    constant = set(scaling.constant(table))
    varying = tuple(name for j, name in enumerate(design.names) if j not in constant)
    return DesignFacts(
        plan=plan.digest,
        columns=(*varying, "intercept") if plan.intercept else varying,
        parameters=max(1, len(varying) + plan.intercept + classes),
        quadratic=family.quadratic,
        parameter=None if isinstance(plan.parameter, UnsetType) else plan.parameter,
    )
