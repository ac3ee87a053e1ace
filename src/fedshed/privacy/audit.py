"""The audit file of a site: one JSON line for each answer that left it or was held back, chained by hashes.

Lines are only ever appended, and are on disk before the answer leaves.  Each holds the hash of the one
before, so a line that was changed, removed or put in shows; only the end of the file can be cut off
unnoticed, so note the last hash elsewhere now and then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec
from filelock import FileLock
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import DataError


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer: what it was, how large, and its SHA-256; `rule` says why it was held back, if it was."""

    time: str
    study: str
    what: str
    bytes: int
    scalars: int
    total: int  # scalars released in this study, this answer included
    message: str  # SHA-256 of the answer
    rule: str = ""
    detail: str = ""  # stays at the site
    previous: str = ""
    hash: str = ""

    def sealed(self, previous: str) -> Entry:
        """The entry as it follows the one with that hash."""
        entry = replace(self, previous=previous, hash="")
        return replace(entry, hash=sha256(msgspec.json.encode(entry)).hexdigest())


def entries(path: str | Path, start: int = 0, previous: str = "") -> Iterator[Entry]:
    """The entries of an audit file, in order, after those that end at `start`; DataError for a broken chain.

    A line that was only half written when the machine went down is passed over: its answer never left.
    """
    with Path(path).open("rb") as lines:
        lines.seek(start)
        for number, line in enumerate(lines, start=1):
            try:
                entry = msgspec.json.decode(line, type=Entry)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if entry != entry.sealed(previous):
                where = f"line {number}" + f" after byte {start}" * bool(start)
                raise DataError(f"{path}: {where} was changed, or lines before it are missing")
            previous = entry.hash
            yield entry


class Audit:
    """An audit file to append to; what it says of earlier answers still counts after a restart.

    Processes of one site may share it: each writes alone, after it has taken in what the others wrote.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.head, self._totals, self._size = "", dict[str, int](), 0
        self._open: int | None = None
        if self._path.exists():
            with self.alone():
                pass

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts no other process writes here."""
        with FileLock(f"{self._path}.lock", mode=0o600):
            self._open = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                self._take_in(self._open)
                yield
            finally:
                os.close(self._open)
                self._open = None

    def released(self, study: str) -> int:
        """Scalars released in a study so far."""
        return self._totals.get(study, 0)

    def append(
        self, study: str, what: str, message: bytes, scalars: int, rule: str = "", detail: str = ""
    ) -> Entry:
        """Write one entry, to disk; an answer that was held back releases nothing."""
        if self._open is None:
            with self.alone():
                return self.append(study, what, message, scalars, rule, detail)
        total = self.released(study) + (0 if rule else scalars)
        entry = Entry(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"), study=study, what=what,
            bytes=len(message), scalars=scalars, total=total, message=sha256(message).hexdigest(),
            rule=rule, detail=detail,
        ).sealed(self.head)  # fmt: skip
        self._write(self._open, msgspec.json.encode(entry) + b"\n")
        self.head, self._totals[study] = entry.hash, total
        return entry

    def _write(self, descriptor: int, line: bytes) -> None:
        if os.write(descriptor, line) < len(line):
            raise OSError(f"{self._path}: the disk took only a part of an entry")
        os.fsync(descriptor)
        self._size += len(line)

    def _take_in(self, descriptor: int) -> None:
        """What was written since the last look; a line without an end gets one."""
        size = os.fstat(descriptor).st_size
        if size < self._size:
            raise DataError(f"{self._path}: lines were removed at its end while the site was at work")
        if size == self._size:
            return
        for entry in entries(self._path, self._size, self.head):
            self.head, self._totals[entry.study] = entry.hash, entry.total
        os.lseek(descriptor, size - 1, os.SEEK_SET)
        if os.read(descriptor, 1) != b"\n":
            size += os.write(descriptor, b"\n")
        self._size = size
