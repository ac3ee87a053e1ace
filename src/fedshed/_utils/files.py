"""Writing files so that none is ever left half-written, and identifying them by a hash."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_bytes
from tempfile import NamedTemporaryFile


def write_atomically(path: str | Path, data: bytes, *, private: bool = True) -> Path:
    """Write to a temporary file beside `path`, flush it to disk, rename it, and flush the folder.

    Only the owner can read the file, from its first byte on, unless `private` is false: results, logs and
    reports may describe people; certificates and public data do not.
    """
    path = Path(path)
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(temporary, data, 0o600 if private else 0o666)
        temporary.replace(path)
        flush_folder(path.parent)
    except OSError as error:  # name the file, whichever step failed
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def _write(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append_whole(path: str | Path, data: bytes) -> None:
    """Append all of the data to a file or none of it, also when the disk fills up."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        if os.write(descriptor, data) < len(data):
            os.ftruncate(descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


_WORDS = {
    errno.ENOSPC: "the disk is full; free some space, or name another place",
    errno.EDQUOT: "the disk quota is used up; free some space, or name another place",
    errno.EROFS: "the file system is read-only; name another place",
    errno.EACCES: "permission is denied; name another place, or ask for access",
    errno.EPERM: "permission is denied; name another place, or ask for access",
    errno.ENOENT: "there is no such file",
    errno.EISDIR: "it is a folder, not a file; name a file",
    errno.EEXIST: "a part of this path is a file, not a folder; name another place",
    errno.ENOTDIR: "a part of this path is a file, not a folder; name another place",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


def secret_file(path: Path) -> bytes:
    """32 random bytes that only their owner can read, created at the first call."""
    if not path.is_file():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(token_bytes(32))
        try:
            os.link(file.name, path)  # if two processes create it, the first one wins
        except FileExistsError:
            pass
        except OSError:  # this file system has no links
            os.replace(file.name, path)
            return path.read_bytes()
        os.unlink(file.name)
    return path.read_bytes()


@cache
def user_secret() -> bytes:
    """A secret of the current user in their state folder, or of this process if none can be stored there."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    try:
        return secret_file(Path(home) / "fedshed" / "key")
    except (OSError, RuntimeError):
        return token_bytes(32)


def in_words(error: OSError) -> str:
    """One sentence that says what went wrong with a file and what to do."""
    said = _WORDS.get(error.errno or 0) or error.strerror or str(error)
    return said if error.filename is None else f"{error.filename}: {said}"


def file_hash(path: str | Path) -> str:
    """The SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_folder(folder: Path) -> None:
    """Make a rename survive a power failure, on systems where folders can be flushed."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_secret(path: str | Path, data: bytes) -> Path:
    """Write a file that only its owner can read."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return path
