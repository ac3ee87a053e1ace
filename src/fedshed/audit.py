"""The audit file of a site: one JSON line for each answer that left it or was held back, chained by hashes.

Lines are only ever appended, and are on disk before the answer leaves.  Each holds the hash of the one
before, so a line that was changed, removed or put in shows; only the end of the file can be cut off
unnoticed, so note the last hash elsewhere now and then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fedshed.errors import DataError


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


def entries(path: str | Path) -> Iterator[Entry]:
    """The entries of an audit file, in order; DataError where the chain is broken.

    A line that was only half written when the machine went down is passed over: its answer never left.
    """
    previous = ""
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                entry = msgspec.json.decode(line, type=Entry)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if entry != entry.sealed(previous):
                raise DataError(f"{path}: line {number} was changed, or lines before it are missing")
            previous = entry.hash
            yield entry


class Audit:
    """An audit file to append to; what it says of earlier answers still counts after a restart."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.head, self._totals = "", dict[str, int]()
        if self._path.exists():
            for entry in entries(self._path):
                self.head, self._totals[entry.study] = entry.hash, entry.total
            self._end_torn_line()
        self._size = self._path.stat().st_size if self._path.exists() else 0

    def released(self, study: str) -> int:
        """Scalars released in a study so far."""
        return self._totals.get(study, 0)

    def append(
        self, study: str, what: str, message: bytes, scalars: int, rule: str = "", detail: str = ""
    ) -> Entry:
        """Write one entry, to disk; an answer that was held back releases nothing."""
        total = self.released(study) + (0 if rule else scalars)
        entry = Entry(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"), study=study, what=what,
            bytes=len(message), scalars=scalars, total=total, message=sha256(message).hexdigest(),
            rule=rule, detail=detail,
        ).sealed(self.head)  # fmt: skip
        self._write(msgspec.json.encode(entry) + b"\n")
        self.head, self._totals[study] = entry.hash, total
        return entry

    def _write(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size != self._size:
                raise DataError(f"{self._path}: another process writes here; one site needs one audit file")
            os.write(descriptor, line)
            os.fsync(descriptor)
            self._size += len(line)
        finally:
            os.close(descriptor)

    def _end_torn_line(self) -> None:
        with self._path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
