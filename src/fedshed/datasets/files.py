"""Data files: where they are looked for, and how they are checked before they are believed."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedshed.errors import DataError

SYSTEM = {"fashion_mnist": Path("/usr/share/datasets/fashion-mnist")}  # Debian's dataset-fashion-mnist
PACKAGES = {"fashion_mnist": "dataset-fashion-mnist"}


def find(relative: str) -> Path:
    """A data file such as `libsvm/w8a.bz2` in $FEDSHED_DATA, the user's cache, or its Debian package."""
    folder, _, name = relative.partition("/")
    places = [root / relative for root in _roots()]
    places += [SYSTEM[folder] / name] if folder in SYSTEM else []
    for place in places:
        if os.path.isfile(place):
            return place
    package = f" or run `apt-get install {PACKAGES[folder]}`" if folder in PACKAGES else ""
    raise DataError(
        f"data file {relative} not found: set FEDSHED_DATA to a folder that holds {relative}{package}"
    )


def verified(relative: str, sha256: Collection[str]) -> bytes:
    """The bytes of a data file, refused unless their SHA-256 is a known one."""
    path = find(relative)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"data file {path} cannot be read ({error.strerror}); check its permissions"
        ) from error
    if hashlib.sha256(data).hexdigest() not in sha256:
        raise DataError(
            f"data file {path} is truncated or altered: its SHA-256 is not that of {relative}; get it again"
        )
    return data


def idx(name: str, data: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The uint8 array of the given shape in gzipped IDX bytes, reading no further than it needs."""
    header = bytes((0, 0, 8, len(shape))) + np.array(shape, dtype=">u4").tobytes()
    size = len(header) + math.prod(shape)
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(data)).read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"data file {name} is not a whole gzip file ({error}); get it again") from error
    if content[: len(header)] != header:
        raise DataError(f"data file {name} is not an IDX file of bytes of shape {shape}; get it again")
    if len(content) != size:
        raise DataError(f"data file {name} does not hold the {size} bytes of its shape {shape}; get it again")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def _roots() -> list[Path]:
    """$FEDSHED_DATA if set, then the user's cache."""
    given = os.environ.get("FEDSHED_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedshed"
    return [Path(root).expanduser() for root in ([given] if given else []) + [str(cache)]]
