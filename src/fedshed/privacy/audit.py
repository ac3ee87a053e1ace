"""The audit file of a site: one JSON line for each answer that left it or was held back, chained by hashes.

Lines are only ever appended, and are on disk before the answer leaves.  Each holds the hash of the one
before, so a line that was changed, removed or inserted is found; only the end of the file can be cut off
unnoticed, so note the last hash elsewhere now and then (`fedshed site audit` prints it).

A file that has grown large is set aside under the next free number (audit.1.jsonl, ...), and the new file
begins with one line that carries the sums over and holds the hash of the last line set aside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock
from msgspec.structs import replace

from fedshed._utils.errors import DataError
from fedshed.privacy.entry import CARRIED, TURNED_AWAY, Entry, now
from fedshed.privacy.ledger import Ledger

LARGEST = 16 << 20  # bytes of an audit file before it is set aside


def entries(path: str | Path, start: int = 0, previous: str | None = None) -> Iterator[Entry]:
    """The entries of an audit file, in order, after those that end at `start`; DataError for a broken chain.

    A line that was only half written when the machine went down is passed over: its answer never left.
    Without `previous` the first line says what it follows.
    """
    with Path(path).open("rb") as lines:
        lines.seek(start)
        for number, line in enumerate(lines, start=1):
            try:
                entry = msgspec.json.decode(line, type=Entry)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if previous is None:
                previous = entry.previous if entry.what == CARRIED else ""
            if entry != entry.sealed(previous):
                where = f"line {number}" + f" after byte {start}" * bool(start)
                raise DataError(
                    f"{path}: {where} was changed, lines before it are missing, or another version of "
                    "fedshed wrote it; keep the file, find out why, and name a new one (audit = ...)"
                )
            previous = entry.hash
            yield entry


def set_aside(path: str | Path) -> list[Path]:
    """The files that were set aside as an audit file grew, the oldest first."""
    path = Path(path)
    pattern = re.compile(rf"{re.escape(path.stem)}\.(\d+){re.escape(path.suffix)}")
    found = [
        (int(match[1]), file)
        for file in path.parent.glob(f"{path.stem}.*")
        if (match := pattern.fullmatch(file.name))
    ]
    return [file for _, file in sorted(found)]


def all_entries(path: str | Path) -> Iterator[Entry]:
    """The entries of an audit file and of all that were set aside before it; DataError for a broken chain."""
    previous = ""
    for file in [*set_aside(path), Path(path)]:
        if file.exists():
            for entry in entries(file, previous=previous):
                previous = entry.hash
                yield entry


class Audit:
    """An audit file to append to; what it says of earlier answers still counts after a restart.

    Processes of one site may share it: each writes alone, after it has taken in what the others wrote.
    """

    def __init__(self, path: str | Path, largest: int = LARGEST) -> None:
        self._path, self._largest = Path(path), largest
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._begin()
        self._open: int | None = None
        if self._path.exists():
            with self.alone():
                pass

    def _begin(self) -> None:
        """Nothing of the file has been read."""
        self.head, self.ledger, self._size, self._file = "", Ledger(), 0, 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts no other process writes here."""
        if self._open is not None:  # this one does already
            yield
            return
        with FileLock(f"{self._path}.lock", mode=0o600):
            self._open = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                self._take_in(self._open)
                yield
                if self._size > self._largest:
                    self._rotate()
            finally:
                os.close(self._open)
                self._open = None

    def released(self, study: str) -> int:
        """Numbers released in a study so far."""
        return self.ledger.study(study).numbers

    def append(
        self, study: str, what: str, message: bytes = b"", scalars: int = 0, rule: str = "", detail: str = "",
        **facts: Any,
    ) -> Entry:  # fmt: skip
        """Write one entry, to disk; an answer that was held back releases one number: that it was."""
        if self._open is None:
            with self.alone():
                return self.append(study, what, message, scalars, rule, detail, **facts)
        digest = sha256(message).hexdigest() if message else ""
        scalars = 1 if rule and what != TURNED_AWAY else scalars
        entry = Entry(
            time=now(), study=study, what=what, bytes=len(message), scalars=scalars, message=digest,
            rule=rule, detail=detail, **facts,
        )  # fmt: skip
        return self._written(replace(entry, total=self.released(study) + scalars))

    def _written(self, entry: Entry) -> Entry:
        assert self._open is not None
        entry = entry.sealed(self.head)
        line = msgspec.json.encode(entry) + b"\n"
        if os.write(self._open, line) < len(line):
            raise OSError(f"{self._path}: the disk took only a part of an entry")
        os.fsync(self._open)
        self._size += len(line)
        self.head = entry.hash
        self.ledger.take(entry)
        return entry

    def _rotate(self) -> None:
        """Set the file aside and begin a new one, which carries the sums over."""
        aside = set_aside(self._path)
        number = int(aside[-1].name.split(".")[-2]) + 1 if aside else 1
        self._path.rename(self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}"))
        assert self._open is not None
        os.close(self._open)
        self._open = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._file, self._size = os.fstat(self._open).st_ino, 0
        for table in self.ledger.tables.values():
            table.answers.clear()  # one that leaves again counts again
        carried = msgspec.json.encode(self.ledger).decode()
        ledger, self.ledger = self.ledger, Ledger()
        self._written(Entry(time=now(), study="", what=CARRIED, detail=carried))
        self.ledger = ledger

    def _take_in(self, descriptor: int) -> None:
        """What was written since the last look; a line without an end gets one."""
        size, file = os.fstat(descriptor).st_size, os.fstat(descriptor).st_ino
        if self._file not in (0, file):  # another process has set aside the file that was read
            self._begin()
        self._file = file
        if size < self._size:
            raise DataError(f"{self._path}: lines were removed at its end while the site was at work")
        if size == self._size:
            return
        for entry in entries(self._path, self._size, self.head or None):
            self.head = entry.hash
            if entry.what == CARRIED:
                self.ledger = msgspec.json.decode(entry.detail, type=Ledger)
            else:
                self.ledger.take(entry)
        os.lseek(descriptor, size - 1, os.SEEK_SET)
        if os.read(descriptor, 1) != b"\n":
            size += os.write(descriptor, b"\n")
        self._size = size


def digests(values: Sequence[bytes]) -> tuple[str, ...]:
    """Short names of values, in which each differs from the others."""
    return tuple(sha256(value).hexdigest()[:32] for value in values)
