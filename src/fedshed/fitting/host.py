"""A host: a site's end of a study.  It opens the stages it is told of, each on its own rows."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import msgspec

from fedshed._utils.errors import CodecError, ProtocolError
from fedshed._utils.files import user_secret
from fedshed.algorithms.channels import ByteRate
from fedshed.algorithms.registry import BUILT_IN
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.exchange.sites import Stage
from fedshed.fitting.stages import (
    NAME,
    PROTOCOL,
    Answer,
    Envelope,
    Greeting,
    Play,
    Prepare,
    Unknown,
    digest,
    same_protocol,
)
from fedshed.objectives import LinearModel
from fedshed.objectives.build import local_objective
from fedshed.preparation.cells import design_objections
from fedshed.preparation.describe import text_columns
from fedshed.preparation.guarded import GuardedPreparer
from fedshed.preparation.site import Preparer, asked_study
from fedshed.privacy.leverage import Leverage
from fedshed.privacy.policy import Gate, Objection
from fedshed.protocol.codec import Decoder, encode
from fedshed.solve.stages import BESIDE_THE_FIT, FIT, fit_stage

log = logging.getLogger("fedshed")
_ENVELOPE = msgspec.msgpack.Decoder(Envelope)
_STAGE: msgspec.msgpack.Decoder[Prepare | Play] = msgspec.msgpack.Decoder(Prepare | Play)


class Answering(Protocol):
    """What answers the payloads of one part of a stage."""

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request."""
        ...


class Host:
    """A site's table, and what is computed on it, whatever carries the bytes.

    Subclasses say where the table is, what may leave (`gate`), and what must outlive a process (`keep`).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._stages: dict[bytes, Prepare | Play] = {}
        self._answering: dict[tuple[bytes, int], tuple[Answering, Site | None]] = {}
        self._objectives: dict[bytes, LinearModel] = {}
        self._ledgers: dict[bytes, Leverage] = {}  # of all parts of a stage together
        self._found: dict[bytes, list[Objection]] = {}  # what the policy has against a plan

    def frame(self, study: bytes, text: tuple[str, ...] = ()) -> Any:
        """The site's table, the same throughout a study; `text` are columns whose numbers are codes."""
        raise NotImplementedError

    def gate(self, study: bytes) -> Gate | None:
        """What decides what leaves the site; None: all that is asked for."""
        return None

    def key(self) -> bytes:
        """The site's secret, with which it marks its rows."""
        return user_secret()

    def uplink(self) -> ByteRate | None:
        """What the site's link carries, if that is limited."""
        return None

    def kept(self, study: bytes, name: str) -> bytes | None:
        """What an earlier process of this site kept under a name."""
        return None

    def keep(self, study: bytes, name: str, data: bytes) -> None:
        """Keep something for a later process of this site, where each message has its own."""

    def handle(self, data: bytes) -> bytes:
        """The reply to an envelope."""
        return encode(self.answer(data))

    def forget(self) -> None:
        """Lose all that is in memory, as a restarted process would."""
        for memory in (self._stages, self._answering, self._objectives, self._found, self._ledgers):
            memory.clear()

    def answer(self, data: bytes) -> Answer | Unknown:
        """An answer, or that the stage is unknown."""
        envelope = _envelope(data)
        stage = self._stage(envelope)
        if stage is None:
            return Unknown()
        which = envelope.key, envelope.part
        if which not in self._answering:
            self._answering[which] = self._opened(envelope, stage)
        answering, site = self._answering[which]
        payload = answering.handle(envelope.payload)
        if site is not None:
            self.keep(envelope.study, f"{envelope.stage.hex()}.{envelope.part}", site.save())
        return Answer(payload, Greeting(self.name, self.uplink(), PROTOCOL) if envelope.opening else None)

    def _stage(self, envelope: Envelope) -> Prepare | Play | None:
        """The stage of an envelope: known, or told now, or kept by an earlier process of this site."""
        if envelope.key not in self._stages:
            kept = self.kept(envelope.study, envelope.stage.hex())
            opening = envelope.opening or kept
            if opening is None:
                return None
            self._stages[envelope.key] = _stage(opening, envelope.stage)
            if kept is None:
                self.keep(envelope.study, envelope.stage.hex(), opening)
        return self._stages[envelope.key]

    def _opened(self, envelope: Envelope, stage: Prepare | Play) -> tuple[Answering, Site | None]:
        """What answers a part of a stage, and the site whose cache is to be kept."""
        gate = self.gate(envelope.study)
        if isinstance(stage, Prepare):
            same_protocol("the Master", stage.protocol)
            text = text_columns(asked_study(envelope.payload))
            preparer = Preparer(self.name, self.frame(envelope.study, text), key=self.key())
            return (preparer if gate is None else GuardedPreparer(preparer, gate)), None
        site = self._site(envelope, stage)
        if gate is None:
            return site, site
        whole = self._objectives[envelope.key]
        ledger = self._ledgers.setdefault(envelope.key, Leverage(len(whole.y)))
        alike = site.objective is whole  # not the model without columns
        return Guarded(site, gate, self._found[envelope.key], ledger if alike else None), site

    def _site(self, envelope: Envelope, stage: Play) -> Site:
        if envelope.key not in self._objectives:
            plan = stage.plan
            frame = self.frame(envelope.study, text_columns(plan.study))
            table, design = plan.build(frame)
            if gate := self.gate(envelope.study):
                self._found[envelope.key] = design_objections(gate.policy, plan, frame, design)
            self._objectives[envelope.key] = local_objective(
                self.name, table, plan.study.loss, plan.classes, plan.intercept
            )
        objective = self._objectives[envelope.key]
        part = _part(envelope.part, stage, objective.dim)
        site = Site(self.name, objective.null() if part.null else objective, part.conversation)
        saved = self.kept(envelope.study, f"{envelope.stage.hex()}.{envelope.part}")
        if saved is not None:
            try:
                site.load(saved)
            except CodecError:
                log.warning("the cache of study %s is damaged and left aside", envelope.study.hex())
        return site


def _envelope(data: bytes) -> Envelope:
    try:
        envelope = _ENVELOPE.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"{len(data)} bytes are no envelope: {error}") from error
    if len(envelope.key) != 2 * NAME:
        raise ProtocolError(f"study and stage are named by {2 * NAME} bytes, not {len(envelope.key)}")
    return envelope


def _stage(opening: bytes, name: bytes) -> Prepare | Play:
    if digest(opening) != name:
        raise ProtocolError("the stage that came along is not the one the envelope names")
    try:
        return _STAGE.decode(opening)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an unknown stage ({error}); do both ends run the same fedshed?") from error


def _part(number: int, stage: Play, n: int) -> Stage:
    """What is played in a part: the study's own algorithm in the fit, what both ends know in the others."""
    if number == FIT:
        return fit_stage(Decoder(BUILT_IN, n)(bytes(stage.algorithm)))
    if number not in BESIDE_THE_FIT:
        raise ProtocolError(f"no part of a stage is numbered {number}; do both ends run the same fedshed?")
    return BESIDE_THE_FIT[number]
