"""A node: the host that runs at a real site, with its files, its disclosure policy and its record."""

from __future__ import annotations

import logging
import threading
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from fedshed._utils.errors import DataError, Error
from fedshed.algorithms.channels import ByteRate
from fedshed.deployment import tables
from fedshed.deployment.config import SiteFile, read_site
from fedshed.deployment.store import Disk
from fedshed.fitting.host import Host
from fedshed.fitting.stages import Refusal
from fedshed.privacy.audit import Audit
from fedshed.privacy.policy import Gate
from fedshed.protocol.codec import encode
from fedshed.tables.frozen import freeze, thaw

log = logging.getLogger("fedshed")


class Node(Host):
    """A site at work, as its site.toml says; whatever happens, it answers and says nothing of its rows.

    With `keep` it remembers on disk, for an engine that starts a process for each message.
    """

    def __init__(self, site: SiteFile, folder: str | Path = ".", *, keep: bool = False) -> None:
        super().__init__(site.name)
        self._file, self._folder = site, Path(folder)
        self._marks = Disk(self._folder / site.state)
        self._disk = self._marks if keep else None
        self._frames: dict[bytes, Any] = {}
        self._busy = threading.Lock()

    @classmethod
    def at(cls, path: str | Path, *, keep: bool = False) -> Node:
        """The node of a site's file; what that names is looked for beside it."""
        return cls(read_site(path), Path(path).resolve().parent, keep=keep)

    def handle(self, data: bytes) -> bytes:
        """The reply to an envelope: an answer, or that the stage is unknown, or a refusal with its reason."""
        try:
            with self._busy, threadpool_limits(1):  # the same bits on any machine with this BLAS
                return super().handle(data)
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
        super().forget()
        self._frames.clear()

    def gate(self, study: bytes) -> Gate:
        """The site's policy, and its record of what has left."""
        return Gate(self._file.disclosure, self._audit, study.hex())

    def key(self) -> bytes:
        """A secret of this site, made once and kept among its files."""
        return self._marks.secret("key")

    def uplink(self) -> ByteRate | None:
        """As the site's file says."""
        return self._file.uplink.channel() if self._file.uplink else None

    def kept(self, study: bytes, name: str) -> bytes | None:
        """From the site's disk."""
        return self._disk.get(study, name) if self._disk else None

    def keep(self, study: bytes, name: str, data: bytes) -> None:
        """On the site's disk."""
        if self._disk:
            self._disk.put(study, name, data)

    def frame(self, study: bytes, text: tuple[str, ...] = ()) -> Any:
        """The site's table: read once a study, so that its rows cannot change under it."""
        if study not in self._frames:
            frozen = self.kept(study, "table")
            self._frames[study] = self._first_read(study, text) if frozen is None else thaw(frozen)
        return self._frames[study]

    @cached_property
    def _audit(self) -> Audit:
        return Audit(self._folder / self._file.audit)

    def _first_read(self, study: bytes, text: tuple[str, ...]) -> Any:
        """The table, if it is the one that the study began with: another process may have read it before."""
        frame = tables.read(self._file, self._folder, text)
        frozen = freeze(frame)
        name = f"mark-{sha256(repr(text).encode()).hexdigest()[:8]}" if text else "mark"
        mark, before = sha256(frozen).digest(), self._marks.get(study, name)
        if before not in (None, mark):
            raise DataError(
                f"site {self._file.name!r}: its rows are not those that study {study.hex()} began with; "
                "bring them back, or let the Master begin a new study (without results/checkpoint)"
            )
        self._marks.put(study, name, mark)
        self.keep(study, "table", frozen)
        return frame
