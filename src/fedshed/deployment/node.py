"""A node: the host that runs at a real site, with its files, its approvals, its policy and its record."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

from fedshed._utils.errors import ConfigError, DataError, DisclosureError, Error, UnreadableError
from fedshed.algorithms.channels import ByteRate
from fedshed.deployment import tables
from fedshed.deployment.approval import A_DAY, NOT_APPROVED, Approval, approval_of
from fedshed.deployment.config import SiteFile, read_site
from fedshed.deployment.simulations import refuse_simulations
from fedshed.deployment.store import AuditWitness, Disk, KeptOnDisk
from fedshed.exchange.site import FAILED
from fedshed.fitting.host import Host, opened_envelope
from fedshed.fitting.parts import algorithm_of
from fedshed.fitting.stages import STUDY, Envelope, Play, Protect, Refusal, Stage, VersionError
from fedshed.privacy.audit import Audit
from fedshed.privacy.entry import TURNED_AWAY, now
from fedshed.privacy.gate import Gate, Scope
from fedshed.protected.journal import Store, Witness
from fedshed.protocol.codec import encode
from fedshed.tables.frozen import freeze, frozen_hash, thaw

log = logging.getLogger("fedshed")
SILENCE = b""
UNFIT = "its table does not fit the study; the site's own log says why"
UNREADABLE = "the request cannot be read, or is not one of the approved study; the site's own log says why"
TROUBLE = "the site cannot read its own files at the moment; the site's own log says why"


class TurnedAwayError(Error):
    """A request of a study that the site does not answer."""


class Node(Host):
    """The running site of a site.toml; whatever happens, it answers and reveals nothing about its rows.

    It answers the studies that its file approves.  With `keep` it keeps what it needs on disk, for an engine
    that starts a process for each message.
    """

    def __init__(
        self, site: SiteFile, folder: str | Path = ".", *, keep: bool = False, path: Path | None = None
    ) -> None:
        refuse_simulations()
        super().__init__(site.name)
        self._file, self._folder, self._path = site, Path(folder), path
        self._read_at = _changed(path)
        self._marks = Disk(self._folder / site.state)
        self._disk, self.lasting = self._marks if keep else None, keep
        self._frames: dict[bytes, Any] = {}
        self._hashes: dict[bytes, str] = {}
        self._mapped_at = 0, 0  # when the file whose rows stay there was changed
        self._busy = threading.Lock()

    @classmethod
    def at(cls, path: str | Path, *, keep: bool = False) -> Node:
        """The node of a site's file; paths in the file are relative to its folder."""
        place = Path(path).resolve()
        return cls(read_site(path), place.parent, keep=keep, path=place)

    def handle(self, data: bytes) -> bytes:
        """The reply to an envelope: an answer, a message that the stage is unknown, or a refusal.

        A refusal is one of a few fixed sentences; the site's own log has the reason.  If nothing can be
        recorded, nothing is answered.
        """
        with self._busy, self._threads.limit(limits=1):  # the same bits on any machine with this BLAS
            try:
                return self._opened_and_handled(data)
            except Exception:
                log.exception("nothing was answered: the site's record cannot be read or written")
                return SILENCE

    def _opened_and_handled(self, data: bytes) -> bytes:
        try:
            envelope = opened_envelope(data)
        except Error as error:
            return self._turned_away("", error, str(error) if isinstance(error, VersionError) else UNREADABLE)
        return self._handled(envelope)

    def _handled(self, envelope: Envelope) -> bytes:
        try:
            self._admit(envelope)
            self._check_mapped()
            with self._alone(envelope):
                return encode(self.answer(envelope))
        except TurnedAwayError as error:
            return self._turned_away(self._study(envelope.run), error, str(error))
        except DisclosureError as error:  # which is on record, and names the rule
            log.error("%s", error)
            return encode(Refusal(str(error)))
        except VersionError as error:
            return self._refused(envelope, error, str(error))
        except UnreadableError as error:  # whatever was asked: no refusal of the study
            log.error("%s", error)
            return self._turned_away(self._study(envelope.run), error, TROUBLE)
        except DataError as error:  # its text may quote the site's rows: it stays here
            return self._refused(envelope, error, UNFIT)
        except Error as error:
            return self._refused(envelope, error, UNREADABLE)
        except Exception as error:  # of a library, whose text may quote them too: an engine would send it on
            log.exception("a request could not be answered")
            return self._refused(envelope, error, FAILED)

    def forget(self) -> None:
        """Forget everything in memory, as a restarted process would."""
        super().forget()
        self._frames.clear()

    def gate(self, run: bytes, stage: Stage, rows: int) -> Gate:
        """The site's policy, its record of what has left, and what the approval of the study allows."""
        approval, terms = self._approval(run), stage.terms
        points = None
        if terms is not None and isinstance(stage, Play):
            points = terms.most_points(algorithm_of(stage, 1))
        scope = Scope(
            self._study(run),
            table=self._hash(run),
            rows=rows,
            model="" if terms is None else terms.in_words(),
            pinned=approval is not None,
            points=points,
            budget=1.0 if approval is None else approval.budget,
            plan="" if approval is None else approval.plan,
        )
        return Gate(self._file.disclosure, self._audit, scope)

    def key(self) -> bytes:
        """A secret of this site, which is made once and kept in its folder."""
        return self._marks.secret("key")

    def identity(self) -> bytes:
        """The site's key for protected studies, which `fedshed site join` made."""
        path = self._folder / self._file.identity
        if not path.is_file():
            raise UnreadableError(f"{path} does not exist; `fedshed site join` makes it, and it must be kept")
        return path.read_bytes()

    def store(self, run: bytes) -> Store:
        """A store on the site's disk, so that it survives a restart of the process."""
        return KeptOnDisk(self._marks, run)

    def witness(self, run: bytes) -> Witness:
        """The site's record, from which nothing can be removed."""
        return AuditWitness(self._audit, self._study(run), run)

    def uplink(self) -> ByteRate | None:
        """What the site's link carries, as its file says."""
        return self._file.uplink.channel() if self._file.uplink else None

    def kept(self, run: bytes, name: str) -> bytes | None:
        """What was kept under a name on the site's disk."""
        return self._disk.get(run, name) if self._disk else None

    def keep(self, run: bytes, name: str, data: bytes) -> None:
        """Keep data under a name on the site's disk."""
        if self._disk:
            self._disk.put(run, name, data)

    def frame(self, run: bytes, text: tuple[str, ...] = ()) -> Any:
        """The site's table, which is read once for each study, so that its rows cannot change during it."""
        if run not in self._frames:
            frozen = self.kept(run, "table")
            self._frames = {run: self._first_read(run, text) if frozen is None else thaw(frozen)}
        return self._frames[run]

    def _admit(self, envelope: Envelope) -> None:
        """Turn away a study that is not approved, or that was refused too often."""
        self._refresh()
        if not self._file.any_study and self._approval(envelope.run) is None:
            raise TurnedAwayError(NOT_APPROVED)
        scope = Scope(self._study(envelope.run), pinned=self._approval(envelope.run) is not None)
        if ended := Gate(self._file.disclosure, self._audit, scope).ended:
            raise TurnedAwayError(ended)
        stage = self._stage(envelope)
        if stage is not None and stage.terms is None and not self._file.any_study:
            raise TurnedAwayError(NOT_APPROVED)
        if isinstance(stage, Protect) and self._approval(envelope.run) is None:
            raise TurnedAwayError(NOT_APPROVED)  # its sites are trusted because the steward knows their keys

    def _alone(self, envelope: Envelope) -> AbstractContextManager[Any]:
        """Make sure that in a protected study no other process of the site answers at the same time.

        Each could find that the other has not opened an exchange yet, and open it in another attempt.
        """
        return self._marks.alone() if isinstance(self._stage(envelope), Protect) else nullcontext()

    def _refresh(self) -> None:
        """Read the site's file again if it has changed, for instance by an approval or a revocation."""
        try:
            if self._path is not None and (changed := _changed(self._path)) != self._read_at:
                self._file, self._read_at = read_site(self._path), changed
        except (ConfigError, OSError) as error:  # while it is being edited
            raise UnreadableError(str(error)) from error

    def _approval(self, run: bytes) -> Approval | None:
        return approval_of(run[:STUDY].hex(), self._file.studies, self._file.revoked)

    def _study(self, run: bytes) -> str:
        """The name of a study in the record: its terms and, if any study is answered, its run."""
        return run.hex()[:16] if self._approval(run) is not None else f"{run.hex()[:16]}-{run[STUDY:].hex()}"

    def _refused(self, envelope: Envelope, error: Exception, said: str) -> bytes:
        """A refusal, which is recorded first, because it is an answer too."""
        log.error("%s", error)
        scope = Scope(self._study(envelope.run), table=self._hash(envelope.run))
        gate = Gate(self._file.disclosure, self._audit, scope)
        gate.refuse("request", said, str(error))
        return encode(Refusal(said))

    def _turned_away(self, study: str, error: Error, said: str) -> bytes:
        """One fixed sentence for the first few requests of a day, and no answer after them."""
        today = now()[:10]
        with self._audit.alone():
            if self._audit.ledger.away.get(today, 0) >= A_DAY:
                return SILENCE
            self._audit.append(study, TURNED_AWAY, rule=said, detail=str(error))
        log.error("study %s was turned away: %s", study or "?", said)
        return encode(Refusal(said))

    @cached_property
    def _threads(self) -> ThreadpoolController:
        """The libraries that compute, which take long to find."""
        import scipy.linalg  # noqa: F401  brings its own

        return ThreadpoolController()

    @cached_property
    def _audit(self) -> Audit:
        return Audit(self._folder / self._file.audit)

    def _hash(self, run: bytes) -> str:
        """The SHA-256 of the table that a run of a study began with; empty before it was read."""
        if run not in self._hashes and (kept := self.kept(run, "hash")):
            self._hashes = {run: kept.decode()}
        return self._hashes.get(run, "")

    def _first_read(self, run: bytes, text: tuple[str, ...]) -> Any:
        """The table, if it is the one with which the study began; another process may have read it before."""
        self._mapped_at = self._mapped_now()
        frame = self._read(text)
        name = f"mark-{sha256(repr(text).encode()).hexdigest()[:8]}" if text else "mark"
        mark, place = frozen_hash(frame), self._place(run)
        if self._marks.marked(place, name) not in (None, mark):
            raise DataError(
                f"site {self._file.name!r}: its rows are not those with which the study began; restore "
                "them, or approve the study again (fedshed site approve)"
            )
        self._marks.mark(place, name, mark)
        self._hashes = {run: tables.table_hash(self._file, self._folder, frame)}
        self.keep(run, "hash", self._hashes[run].encode())
        if self._mapped is None and self.lasting:
            self.keep(run, "table", freeze(frame))
        return frame

    @property
    def _mapped(self) -> Path | None:
        """The file whose rows stay there, if the table is one."""
        return None if self._file.table.arrow is None else self._folder / self._file.table.arrow

    def _check_mapped(self) -> None:
        """Read the table again where its file was written to, so that other rows are refused."""
        if self._frames and self._mapped_now() != self._mapped_at:
            self.forget()

    def _mapped_now(self) -> tuple[int, int]:
        """When the file whose rows stay there was changed, and its size."""
        try:
            return _changed(self._mapped)
        except OSError as error:
            raise tables.unreadable(self._file.name, self._file.table, self._folder, error) from error

    def _read(self, text: tuple[str, ...]) -> Any:
        """The table as it is now; an error in the site's own files is not told to the Master."""
        try:
            return tables.read(self._file, self._folder, text)
        except ConfigError as error:
            raise UnreadableError(str(error)) from error

    def _place(self, run: bytes) -> bytes:
        """Where the mark of a study's rows is kept: one for each approval, or for each run without one."""
        approval = self._approval(run)
        return (
            run if approval is None else sha256(run[:STUDY] + approval.approved.isoformat().encode()).digest()
        )


def _changed(path: Path | None) -> tuple[int, int]:
    """When a file was last changed, and its size."""
    if path is None:
        return 0, 0
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size
