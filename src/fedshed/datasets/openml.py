"""Image sets from OpenML, for machines with internet: fetched once, checked, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed._utils.files import write_atomically
from fedshed.datasets.checksums import SHA256
from fedshed.datasets.files import advice, cache, find, idx_header, plain, verified

NAMES = {"fashion_mnist": "Fashion-MNIST", "mnist": "mnist_784"}  # version 1; the training part comes first
TRAINING = 60_000
SILENCE = 10.0  # seconds without an answer after which the network counts as absent


def obtained(relative: str) -> bytes:
    """The checked bytes of a data file; its set is fetched first if no place has it and OpenML does."""
    try:
        find(relative)
    except DataError:
        if relative.partition("/")[0] not in NAMES or _offline():
            raise
        fetch(relative)
    return verified(relative, SHA256[relative])


def fetch(relative: str) -> None:
    """Put the files of the set that a data file belongs to into the user's cache, once all are checked."""
    folder = relative.partition("/")[0]
    try:
        files = _files(folder, _download(NAMES[folder]))
        for name, data in files.items():
            write_atomically(cache() / plain(name), data, private=False)
    except Exception as error:  # whatever a network, a proxy, a disk or a parser can raise
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise DataError(
            f"data file {relative} was not found, and OpenML's {NAMES[folder]} could not be fetched "
            f"({reason}): " + advice(relative)
        ) from error


def _download(name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels and labels, through scikit-learn's own cache inside ours."""
    from sklearn.datasets import fetch_openml

    parser = "pandas" if find_spec("pandas") else "liac-arff"
    home = str(cache() / "scikit-learn")
    with _impatient():
        bunch: Any = fetch_openml(
            name, version=1, data_home=home, as_frame=False, parser=parser, n_retries=1, delay=0.1
        )
    return _bytes(bunch.data), _bytes(bunch.target)


def _bytes(values: Any) -> NDArray[np.uint8]:
    """Numbers or their text as bytes; what does not fit is found out by the checksum."""
    with np.errstate(invalid="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.uint8)


def _files(folder: str, fetched: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> dict[str, bytes]:
    """The IDX files that the authors publish, made of what was fetched; refused unless they are the same."""
    pixels, labels = fetched
    made = {}
    for part, rows in (("train", slice(0, TRAINING)), ("t10k", slice(TRAINING, None))):
        made[f"{folder}/{part}-images-idx3-ubyte.gz"] = _idx(pixels[rows].reshape(-1, 28, 28))
        made[f"{folder}/{part}-labels-idx1-ubyte.gz"] = _idx(labels[rows])
    for name, data in made.items():
        if hashlib.sha256(data).hexdigest() not in SHA256[name]:
            raise DataError(f"its rows are not those of {name}")
    return made


def _idx(array: NDArray[np.uint8]) -> bytes:
    return idx_header(array.shape) + array.tobytes()


def _offline() -> bool:
    """Whether FEDSHED_OFFLINE forbids the network."""
    return os.environ.get("FEDSHED_OFFLINE", "") not in ("", "0")


@contextmanager
def _impatient() -> Iterator[None]:
    """New sockets time out, as those of urllib would not, and the one retry is not announced."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        socket.setdefaulttimeout(before)
