"""The audit file of a site: one JSON line for each answer that left it or was held back, chained by hashes.

Lines are only ever appended, and are on disk before the answer leaves.  Each holds the hash of the one
before, so a line that was changed, removed or inserted is found; only the end of the file can be cut off
unnoticed, so note the last hash elsewhere now and then (`fedshed site audit` prints it).

A file that has grown large is set aside under the next free number (audit.1.jsonl, ...), and the new file
begins with one line that carries the sums over and holds the hash of the last line set aside.  That line is
on disk before it takes the place of the old file, so a crash never loses the sums; a file that does not begin
with it, although others were set aside, is an error.
"""

from __future__ import annotations

import logging
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
from fedshed._utils.files import flush_folder, in_words, write_atomically
from fedshed.privacy.entry import CARRIED, TURNED_AWAY, Entry, now
from fedshed.privacy.ledger import Ledger

log = logging.getLogger("fedshed")
LARGEST = 16 << 20  # bytes of an audit file before it is set aside


def entries(path: str | Path, start: int = 0, previous: str | None = None) -> Iterator[Entry]:
    """The entries of an audit file, in order, after those that end at `start`; DataError for a broken chain.

    A line that was only half written when the machine went down is passed over: its answer never left.
    Without `previous` the first line says what it follows.
    """
    with Path(path).open("rb") as lines:
        lines.seek(start)
        for number, line in enumerate(lines, start=1):
            if (entry := _decoded(line)) is None:
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


def set_aside(path: str | Path) -> list[tuple[int, Path]]:
    """The files that were set aside as an audit file grew, with their numbers, the oldest first.

    A link to the file itself is none of them: a crash left it before the new file had begun.
    """
    path = Path(path)
    pattern = re.compile(rf"{re.escape(path.stem)}\.(\d+){re.escape(path.suffix)}")
    found = [
        (int(match[1]), file)
        for file in (path.parent.iterdir() if path.parent.is_dir() else ())
        if (match := pattern.fullmatch(file.name)) and not (path.exists() and path.samefile(file))
    ]
    return sorted(found)


def check_whole(path: str | Path) -> None:
    """DataError if files were set aside and this one does not carry on from the last of them."""
    path, aside = Path(path), set_aside(path)
    if aside and _follows(path) != _last_hash(aside[-1][1]):
        last = aside[-1][1].name
        raise DataError(
            f"{path} does not begin where {last} ends, so the record of what has left is not complete; "
            f"restore {path.name} from a backup, or, if the machine went down while {last} was set aside, "
            "rename that back"
        )


def _follows(path: Path) -> str | None:
    """The hash that a file carries on from; None without a whole first line that says so."""
    if not path.exists():
        return None
    with path.open("rb") as lines:
        first = _decoded(lines.readline())
    return first.previous if first is not None and first.what == CARRIED else None


def _last_hash(path: Path) -> str:
    """The hash of the last entry of a file that was set aside."""
    lines = reversed(path.read_bytes().splitlines())
    return next((entry.hash for line in lines if (entry := _decoded(line)) is not None), "")


def _decoded(line: bytes) -> Entry | None:
    """The entry of a line, or None for one that was only half written."""
    try:
        return msgspec.json.decode(line, type=Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def all_entries(path: str | Path) -> Iterator[Entry]:
    """The entries of an audit file and of all that were set aside before it; DataError for a broken chain."""
    check_whole(path)
    previous = ""
    for file in [*(file for _, file in set_aside(path)), Path(path)]:
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
        if self._path.exists() or set_aside(self._path):
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
            self._open = self._opened()
            try:
                self._take_in(self._open)
                yield
            finally:
                os.close(self._open)
                self._open = None
            if self._size > self._largest:
                self._rotate()

    def _opened(self) -> int:
        """The file to append to; once it was read it must not disappear."""
        if not self._path.exists():
            check_whole(self._path)
            if self._file:
                raise DataError(f"{self._path}: the file was removed while the site was running; restore it")
        return os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

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
            raise OSError(f"{self._path}: only a part of an entry was written; free some space on the disk")
        os.fsync(self._open)
        self._size += len(line)
        self.head = entry.hash
        self.ledger.take(entry)
        return entry

    def _rotate(self) -> None:
        """Set the file aside and begin a new one, which carries the sums over.

        Where that fails the file stays as it is, and grows until the next try.
        """
        carried = msgspec.json.decode(msgspec.json.encode(self.ledger), type=Ledger)
        for table in carried.tables.values():
            table.answers.clear()  # one that leaves again counts again
        entry = Entry(time=now(), study="", what=CARRIED, detail=msgspec.json.encode(carried).decode())
        entry = entry.sealed(self.head)
        line = msgspec.json.encode(entry) + b"\n"
        try:
            self._replaced(line)
        except OSError as error:
            log.error("the audit file has grown large and could not be set aside: %s", in_words(error))
            return
        self.ledger, self.head = carried, entry.hash
        self._size, self._file = len(line), os.stat(self._path).st_ino

    def _replaced(self, line: bytes) -> None:
        """Keep the file under the next number, then put one with this line in its place, all at once."""
        number = max((number for number, _ in set_aside(self._path)), default=0) + 1
        aside = self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")
        aside.unlink(missing_ok=True)  # a link to this file, which a crash left
        try:
            os.link(self._path, aside)
        except OSError:  # a disk without links
            self._path.rename(aside)
        flush_folder(self._path.parent)
        try:
            write_atomically(self._path, line)
        except OSError:
            aside.replace(self._path)  # of a link to the same file this changes nothing
            raise

    def _check_carried(self) -> None:
        """DataError if a file that was put in the place of the one that was read carries nothing over."""
        if _follows(self._path) is None:
            raise DataError(
                f"{self._path}: another file was put in its place while the site was running; restore the "
                "old one, or start the site again"
            )

    def _take_in(self, descriptor: int) -> None:
        """What was written since the last look; a line without an end gets one."""
        size, file = os.fstat(descriptor).st_size, os.fstat(descriptor).st_ino
        if self._file not in (0, file):  # another process has set aside the file that was read
            self._check_carried()
            self._begin()
        if self._size == 0:
            check_whole(self._path)
        self._file = file
        if size < self._size:
            raise DataError(
                f"{self._path}: lines were removed at its end while the site was running; restore the file"
            )
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
