"""Checkpoints: a run as plain data, written atomically, read back by type (no pickle)."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import msgspec
from msgspec import Struct

from fedshed._utils.errors import CodecError, ConfigError
from fedshed._utils.files import in_words, write_atomically
from fedshed.algorithms.base import AnyAlgorithm, Info
from fedshed.algorithms.registry import BUILT_IN
from fedshed.exchange.contacts import Contact
from fedshed.exchange.groups import Group
from fedshed.exchange.wire import Traffic
from fedshed.linalg.arrays import Vector
from fedshed.protocol.codec import Decoder, encode, raw
from fedshed.solve.engine import Progress
from fedshed.solve.goal import Goal
from fedshed.solve.trace import Row

VERSION = 3
KEPT = ("traffic", "rows", "info", "rounds", "seconds", "sites")  # of a run's progress, besides its state


class Settings(Struct, frozen=True, omit_defaults=True):
    """What `optimize` was called with, as far as a resumed run needs it."""

    loss: str
    l2: Vector
    intercept: bool
    goal: Goal
    l1: Vector | None = None
    groups: tuple[Group, ...] = ()


class Saved(Struct, frozen=True):
    """The file: what depends on the algorithm is kept as encoded, and decoded by its type."""

    version: int
    n: int
    data: str  # fingerprint of the federation
    algorithm: msgspec.Raw
    settings: msgspec.Raw
    state: msgspec.Raw
    traffic: Traffic
    rows: list[Row]
    info: Info | None
    rounds: int
    seconds: float
    sites: dict[str, Contact] = {}


class Checkpoint:
    """Where a run is saved: at most once in `every` seconds, and when it ends or is interrupted."""

    def __init__(
        self, path: str | Path, algorithm: AnyAlgorithm, settings: Settings, data: str, every: float = 2.0
    ) -> None:
        self._path, self._every, self._data = Path(path), every, data
        self._n, self._algorithm, self._settings = len(settings.l2), raw(algorithm), raw(settings)
        self._saved = time.monotonic() - every  # the first round is saved at once

    def offer(self, progress: Progress) -> None:
        """Save, unless the last save was a moment ago."""
        if time.monotonic() - self._saved >= self._every:
            self.save_if_possible(progress)

    def save_if_possible(self, progress: Progress) -> None:
        """Save what there is to save; a full disk must not destroy the result."""
        self._saved = time.monotonic()
        try:
            self.save(progress)
        except OSError as error:
            warnings.warn(f"the checkpoint {self._path} could not be written: {error}", stacklevel=2)

    def save(self, progress: Progress) -> None:
        """Save now."""
        rest = {name: getattr(progress, name) for name in KEPT}
        saved = Saved(
            VERSION, self._n, self._data, self._algorithm, self._settings, raw(progress.state), **rest
        )
        write_atomically(self._path, encode(saved))  # it holds each site's curvature


def load(
    path: str | Path, data: str, algorithm: AnyAlgorithm | None = None
) -> tuple[AnyAlgorithm, Settings, Progress]:
    """A saved run; `algorithm` is needed only for one that is not part of fedshed."""
    try:
        saved = msgspec.msgpack.decode(Path(path).read_bytes(), type=Saved)
    except OSError as error:
        raise ConfigError(in_words(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"{path} is not a fedshed checkpoint: {error}") from error
    if saved.version != VERSION:
        raise ConfigError(
            f"{path} has format {saved.version}, but this fedshed reads {VERSION}; start the run again, or "
            "resume with the version of fedshed that wrote it"
        )
    if saved.data != data:
        raise ConfigError(f"{path} was saved on other data; resume with the federation it was started with")
    if algorithm is None:
        try:
            algorithm = Decoder(BUILT_IN, saved.n)(bytes(saved.algorithm))
        except CodecError as error:
            raise ConfigError(
                f"{path} holds an algorithm that is not part of fedshed; pass it as algorithm= ({error})"
            ) from error
    elif encode(algorithm) != bytes(saved.algorithm):
        raise ConfigError(
            f"{path} was saved with another algorithm or other parameters than {algorithm!r}; pass the same"
        )
    state = Decoder(algorithm.state, saved.n)(bytes(saved.state))
    progress = Progress(state, **{name: getattr(saved, name) for name in KEPT})
    return algorithm, Decoder(Settings, saved.n)(bytes(saved.settings)), progress
