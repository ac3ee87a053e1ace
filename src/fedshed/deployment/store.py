"""What a node keeps about a study on the site's disk, because its process may end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from fedshed._utils.files import secret_file, write_atomically
from fedshed.fitting.stages import STUDY
from fedshed.privacy.audit import Audit
from fedshed.privacy.entry import WITNESSED

STALE = 24 * 3600.0  # seconds after which another study's files are removed
LONGEST = 3650 * 24 * 3600.0  # seconds for which a mark is kept: as long as an approval can hold


class Disk:
    """Files that only their owner can read, in one folder per study."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, run: bytes, name: str) -> bytes | None:
        """What was put under this name, if it is still there."""
        path = self._folder / run.hex() / name
        return path.read_bytes() if path.is_file() else None

    def put(self, run: bytes, name: str, data: bytes) -> None:
        """Keep it; earlier runs of the study, and what ended long ago, are removed when a new one begins."""
        folder = self._folder / run.hex()
        if not folder.is_dir():
            self._sweep(run)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # another process may have been first
        write_atomically(folder / name, data)

    def marked(self, place: bytes, name: str) -> bytes | None:
        """The mark of a study's rows, if they were read before."""
        path = self._mark(place, name)
        return path.read_bytes() if path.is_file() else None

    def mark(self, place: bytes, name: str, data: bytes) -> None:
        """Keep the mark of a study's rows; it outlives what is kept of a run."""
        path = self._mark(place, name)
        if not path.is_file():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in path.parent.iterdir():
                if _age(old) > LONGEST:
                    old.unlink(missing_ok=True)
        write_atomically(path, data)

    def _mark(self, place: bytes, name: str) -> Path:
        return self._folder / "marks" / sha256(place + name.encode()).hexdigest()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which no other process of the site answers a protected study."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(self._folder / "protected.lock", mode=0o600):
            yield

    def secret(self, name: str) -> bytes:
        """32 random bytes, made when they are asked for first; of two processes that make them one wins."""
        return secret_file(self._folder / name)

    def _sweep(self, run: bytes) -> None:
        study = run.hex()[: 2 * STUDY]
        for path in self._folder.glob("[0-9a-f]" * (2 * STUDY) + "*"):
            earlier = path.name.startswith(study) and len(path.name) > len(study)
            if earlier or _age(path) > STALE:
                shutil.rmtree(path, ignore_errors=True)


class KeptOnDisk:
    """What a protected study must not forget (`fedshed.protected.Store`)."""

    def __init__(self, disk: Disk, run: bytes) -> None:
        self._disk, self._run = disk, run

    def get(self, name: str) -> bytes | None:
        """What was kept under this name."""
        if name.startswith("study-"):
            return self._disk.marked(self._run[:STUDY], name)
        return self._disk.get(self._run, name)

    def put(self, name: str, data: bytes) -> None:
        """Keep it, flushed to the disk before anything else happens."""
        if name.startswith("study-"):
            self._disk.mark(self._run[:STUDY], name, data)
        else:
            self._disk.put(self._run, name, data)


class AuditWitness:
    """The site's record as a witness of how far a protected run has come (`fedshed.protected.Witness`)."""

    def __init__(self, audit: Audit, study: str, run: bytes) -> None:
        self._audit, self._study, self._run = audit, study, run.hex()

    def noted(self) -> int:
        """The number of the last record that was kept."""
        with self._audit.alone():
            return self._audit.ledger.witnessed.get(self._run, 0)

    def note(self, number: int) -> None:
        """Write into the record that one more was kept."""
        self._audit.append(self._study, WITNESSED, run=self._run, record=number)


def _age(path: Path) -> float:
    """Seconds since a file was changed; 0 if another process has removed it."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
