"""A node: what runs at a site.  Bytes in, bytes out, whatever engine carries them."""

from __future__ import annotations

import logging
import threading
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import msgspec
from threadpoolctl import threadpool_limits

from fedshed._utils.errors import CodecError, DataError, DisclosureError, Error, ProtocolError
from fedshed.algorithms.registry import BUILT_IN
from fedshed.deployment import tables
from fedshed.deployment.config import SiteFile, read_site
from fedshed.deployment.envelope import (
    FIT,
    INSPECT,
    LEAST,
    NAME,
    START,
    Answer,
    Envelope,
    Greeting,
    Play,
    Prepare,
    Refusal,
    Stage,
    Unknown,
    digest,
)
from fedshed.deployment.store import Disk
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.objectives.build import local_objective
from fedshed.preparation import Preparer
from fedshed.preparation.describe import rarest
from fedshed.preparation.messages import CODEC, Refused, Schema
from fedshed.privacy.audit import Audit
from fedshed.privacy.policy import Gate, Objection, objections, scalars
from fedshed.protocol.codec import Decoder, encode
from fedshed.protocol.conversation import Conversation
from fedshed.solve.inspection import NULL, Inspection
from fedshed.solve.null_start import NullStart
from fedshed.tables.frames import Frame
from fedshed.tables.stored import Table

log = logging.getLogger("fedshed")
BESIDE: dict[int, Conversation] = {START: NullStart(), INSPECT: Inspection(), LEAST: NULL}
_ENVELOPE = msgspec.msgpack.Decoder(Envelope)
_STAGE: msgspec.msgpack.Decoder[Stage] = msgspec.msgpack.Decoder(Prepare | Play)


class Service(Protocol):
    """What answers the payloads of one part of a stage."""

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request."""
        ...


class Node:
    """A site at work: it opens the stages it is told of, each on its own rows, and answers their payloads.

    With `keep` it remembers on disk, for an engine that starts a process for each message.
    """

    def __init__(self, site: SiteFile, folder: str | Path = ".", *, keep: bool = False) -> None:
        self._site, self._folder = site, Path(folder)
        self._marks = Disk(self._folder / site.state)
        self._disk = self._marks if keep else None
        self._stages: dict[bytes, Stage] = {}
        self._services: dict[tuple[bytes, int], tuple[Service, Site | None]] = {}
        self._frames: dict[bytes, Any] = {}
        self._tables: dict[bytes, Table] = {}
        self._busy = threading.Lock()

    @classmethod
    def at(cls, path: str | Path, *, keep: bool = False) -> Node:
        """The node of a site's file; what that names is looked for beside it."""
        return cls(read_site(path), Path(path).resolve().parent, keep=keep)

    def handle(self, data: bytes) -> bytes:
        """The reply to an envelope: an answer, or that the stage is unknown, or a refusal with its reason."""
        try:
            with self._busy, threadpool_limits(1):  # the same bits on any machine with this BLAS
                return encode(self._answer(_envelope(data)))
        except DataError as error:  # its text may quote the site's rows: it stays here
            log.error("%s", error)
            return encode(Refusal("its table does not fit the study; the site's own log says why"))
        except Error as error:
            log.error("%s", error)
            return encode(Refusal(str(error)))
        except Exception:  # of a library, whose text may quote them too: an engine would send it on
            log.exception("a request could not be answered")
            return encode(Refusal("it failed to answer; the site's own log says why"))

    def forget(self) -> None:
        """Lose all that is in memory, as a restarted process would."""
        for kept in (self._stages, self._services, self._frames, self._tables):
            kept.clear()

    def _answer(self, envelope: Envelope) -> Answer | Unknown:
        stage = self._stage(envelope)
        if stage is None:
            return Unknown()
        which = envelope.key, envelope.part
        if which not in self._services:
            self._services[which] = self._service(envelope, stage)
        service, site = self._services[which]
        payload = service.handle(envelope.payload)
        if site is not None and self._disk:
            self._disk.put(envelope.study, f"{envelope.stage.hex()}.{envelope.part}", site.save())
        return Answer(payload, self._greeting if envelope.opening else None)

    @property
    def _greeting(self) -> Greeting:
        return Greeting(self._site.name, self._site.uplink.channel() if self._site.uplink else None)

    def _stage(self, envelope: Envelope) -> Stage | None:
        """The stage of an envelope: known, or told now, or kept by an earlier process of this site."""
        if envelope.key not in self._stages:
            kept = self._disk.get(envelope.study, envelope.stage.hex()) if self._disk else None
            opening = envelope.opening or kept
            if opening is None:
                return None
            self._stages[envelope.key] = _stage(opening, envelope.stage)
            if self._disk and kept is None:
                self._disk.put(envelope.study, envelope.stage.hex(), opening)
        return self._stages[envelope.key]

    def _service(self, envelope: Envelope, stage: Stage) -> tuple[Service, Site | None]:
        """What answers a part of a stage, and the site whose cache is to be kept."""
        gate = Gate(self._site.disclosure, self._audit, envelope.study.hex())
        if isinstance(stage, Prepare):
            return _Preparing(self._site.name, self.frame(envelope.study), gate), None
        site = self._playing(envelope, stage)
        return Guarded(site, gate), site

    @cached_property
    def _audit(self) -> Audit:
        return Audit(self._folder / self._site.audit)

    def _playing(self, envelope: Envelope, stage: Play) -> Site:
        plan = stage.plan
        if envelope.key not in self._tables:
            self._tables[envelope.key] = plan.table(self.frame(envelope.study))
        table = self._tables[envelope.key]
        objective = local_objective(self._site.name, table, plan.study.loss, plan.classes, plan.intercept)
        objective = objective.null() if envelope.part == LEAST else objective
        site = Site(self._site.name, objective, _algorithm(envelope.part, stage, objective.dim))
        name = f"{envelope.stage.hex()}.{envelope.part}"
        saved = self._disk.get(envelope.study, name) if self._disk else None
        if saved is not None:
            try:
                site.load(saved)
            except CodecError:
                log.warning("the cache of study %s is damaged and left aside", envelope.study.hex())
        return site

    def frame(self, study: bytes) -> Any:
        """The site's table: read once a study, so that its rows cannot change under it."""
        if study not in self._frames:
            frozen = self._disk.get(study, "table") if self._disk else None
            self._frames[study] = self._first_read(study) if frozen is None else tables.thaw(frozen)
        return self._frames[study]

    def _first_read(self, study: bytes) -> Any:
        """The table, if it is the one that the study began with: another process may have read it before."""
        frame = tables.read(self._site, self._folder)
        frozen = tables.freeze(frame)
        mark, before = sha256(frozen).digest(), self._marks.get(study, "mark")
        if before not in (None, mark):
            raise DataError(
                f"site {self._site.name!r}: its rows are not those that study {study.hex()} began with; "
                "bring them back, or let the Master begin a new study (without results/checkpoint)"
            )
        self._marks.put(study, "mark", mark)
        if self._disk:
            self._disk.put(study, "table", frozen)
        return frame


class _Preparing:
    """A site in the preparation, behind its gate: the rules hold for what is described and summed up too.

    So a study that leaves few rows of a large table, or names a column's values, is refused before anything
    of them leaves.
    """

    def __init__(self, name: str, frame: Any, gate: Gate) -> None:
        self._name, self._gate, self._frame = name, gate, Frame(frame)
        self._preparer = Preparer(name, frame)
        least, rows = gate.policy.min_rows, self._frame.rows
        self._few = [Objection(f"at least {least} rows (min_rows)", f"there are {rows}")] * (rows < least)

    def handle(self, payload: bytes) -> bytes:
        """The reply, once it is on record."""
        reply = b"" if self._few else self._preparer.handle(payload)
        parts = CODEC.decode_reply(reply).parts if reply else []
        asked = CODEC.decode_request(payload).parts[: len(parts)]
        found = (self._objections(*pair) for pair in zip(asked, parts, strict=True))
        broken = [*self._few, *chain.from_iterable(found)]
        what = "+".join(type(part).__name__ for part in parts) or "preparation"
        try:
            return self._gate.release(what, reply, sum(map(scalars, parts)), broken)
        except DisclosureError as error:
            raise DisclosureError(f"site {self._name!r}: {error}") from None

    def _objections(self, asked: Any, answer: Any) -> list[Objection]:
        """What the policy has against an answer; a refusal says nothing of the rows."""
        policy = self._gate.policy
        if isinstance(answer, Refused):
            return []
        if isinstance(answer, Schema):
            return policy.unnameable(rarest(asked.study, self._frame, answer), asked.study.target)
        plan = asked.plan
        table = self._preparer.table(plan)
        objective = local_objective(self._name, table, plan.study.loss, plan.classes, plan.intercept)
        return objections(policy, objective)


def _envelope(data: bytes) -> Envelope:
    try:
        envelope = _ENVELOPE.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"{len(data)} bytes are no envelope: {error}") from error
    if len(envelope.key) != 2 * NAME:
        raise ProtocolError(f"study and stage are named by {2 * NAME} bytes, not {len(envelope.key)}")
    return envelope


def _stage(opening: bytes, name: bytes) -> Stage:
    if digest(opening) != name:
        raise ProtocolError("the stage that came along is not the one the envelope names")
    try:
        return _STAGE.decode(opening)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an unknown stage ({error}); do both ends run the same fedshed?") from error


def _algorithm(part: int, stage: Play, n: int) -> Conversation:
    """What is played in a part: the study's own algorithm in the fit, what both ends know in the others."""
    if part == FIT:
        chosen: Conversation = Decoder(BUILT_IN, n)(bytes(stage.algorithm))
        return chosen
    if part not in BESIDE:
        raise ProtocolError(f"no part of a stage is numbered {part}; do both ends run the same fedshed?")
    return BESIDE[part]
