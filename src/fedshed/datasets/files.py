"""Data files: where they are searched, and how they are checked before they are used."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import math
import os
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.datasets.checksums import SHA256

SYSTEM = {"fashion_mnist": Path("/usr/share/datasets/fashion-mnist")}  # Debian's dataset-fashion-mnist
ORIGINS = {
    "fashion_mnist": "`apt-get install dataset-fashion-mnist`, or github.com/zalandoresearch/fashion-mnist",
    "mnist": "storage.googleapis.com/cvdf-datasets/mnist has the files of yann.lecun.com/exdb/mnist",
    "emnist": "from gzip.zip of nist.gov/itl/products-and-services/emnist-dataset",
    "libsvm": "www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html",
    "heart": "archive.ics.uci.edu/dataset/45/heart+disease",
    "silos": "vincentarelbundock.github.io/Rdatasets",
}
GZIP = b"\x1f\x8b"


def find(relative: str) -> Path:
    """A data file such as `libsvm/w8a.bz2`, or its plain form `libsvm/w8a`, in the first place that has it.

    The places are $FEDSHED_DATA, the user's cache, and the folder of its Debian package.
    """
    folder, _, name = relative.partition("/")
    places = [root / form for root in _roots() for form in _forms(relative)]
    places += [SYSTEM[folder] / name] if folder in SYSTEM else []
    for place in places:
        if os.path.isfile(place):
            return place
    raise DataError(f"data file {relative} was not found: {advice(relative)}")


def first_complete(sets: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The first set of data files of which none is missing, or the first set if there is none."""
    return next((names for names in sets if all(map(_is_present, names))), sets[0])


def _is_present(relative: str) -> bool:
    try:
        find(relative)
    except DataError:
        return False
    return True


def advice(relative: str) -> str:
    """What to do to obtain a data file, as the end of a sentence."""
    origin = ORIGINS.get(relative.partition("/")[0], "docs/data.md says where to get it")
    return f"set FEDSHED_DATA to a folder that holds {relative} ({origin})"


def verified(relative: str, sha256: Collection[str]) -> bytes:
    """The bytes of a data file, refused unless their SHA-256 is a known one; none known: as they are."""
    path = find(relative)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"data file {path} cannot be read ({error.strerror}); check its permissions"
        ) from error
    if sha256 and hashlib.sha256(data).hexdigest() not in sha256:
        raise DataError(
            f"data file {path} is truncated or altered: its SHA-256 is not that of {relative}; get it again"
        )
    return data


def content(relative: str) -> bytes:
    """The checked bytes of a data file, unpacked if they are xz or bzip2."""
    data = verified(relative, SHA256[relative])
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.decompress(data)
    return bz2.decompress(data) if data.startswith(b"BZh") else data


def idx(name: str, data: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The uint8 array of the given shape in IDX bytes, gzipped or not, reading no further than it needs."""
    header = idx_header(shape)
    size = len(header) + math.prod(shape)
    try:
        plain = gzip.GzipFile(fileobj=io.BytesIO(data)) if data.startswith(GZIP) else io.BytesIO(data)
        content = plain.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"data file {name} is not a whole gzip file ({error}); get it again") from error
    if content[: len(header)] != header:
        raise DataError(f"data file {name} is not an IDX file of bytes of shape {shape}; get it again")
    if len(content) != size:
        raise DataError(f"data file {name} does not hold the {size} bytes of its shape {shape}; get it again")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def idx_header(shape: tuple[int, ...]) -> bytes:
    """What an IDX file of unsigned bytes starts with: two zeros, type 8, the number of sizes, the sizes."""
    return bytes((0, 0, 8, len(shape))) + np.array(shape, dtype=">u4").tobytes()


def cache() -> Path:
    """The user's cache folder of fedshed."""
    return (Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedshed").expanduser()


def plain(relative: str) -> str:
    """The name of a data file once it is unpacked."""
    stem, dot, suffix = relative.rpartition(".")
    return stem if dot and suffix in ("gz", "bz2", "xz") else relative


def _forms(relative: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((relative, plain(relative))))


def _roots() -> list[Path]:
    """$FEDSHED_DATA if set, then the user's cache."""
    given = os.environ.get("FEDSHED_DATA")
    return ([Path(given).expanduser()] if given else []) + [cache()]
