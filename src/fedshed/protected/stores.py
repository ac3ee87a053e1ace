"""Stores for the records that a protected study must not lose."""

from __future__ import annotations

from pathlib import Path

from fedshed._utils.files import write_atomically


class MemoryStore:
    """A store in memory, for a study whose sites exist only within this process."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        """What was kept under this name."""
        return self._kept.get(name)

    def put(self, name: str, data: bytes) -> None:
        """Keep it."""
        self._kept[name] = data


class FolderStore:
    """A store in files that only their owner can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> bytes | None:
        """What was kept under this name."""
        path = self._folder / name
        return path.read_bytes() if path.is_file() else None

    def put(self, name: str, data: bytes) -> None:
        """Keep it, flushed to the disk before anything else happens."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / name, data)
