"""Pictures: small digits, and sets of 28 x 28 pixels on their principal directions as in the paper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.datasets.files import idx
from fedshed.datasets.openml import obtained
from fedshed.datasets.records import Content, Dataset

ROWS, DIRECTIONS = 60_000, 300  # Section 6: rows used, and n


def read_digits() -> Content:
    """Handwritten digits of 8 x 8 pixels, 17 grey levels rescaled to [0, 1]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Content(digits.data / 16.0, digits.target, tuple(digits.feature_names))


def read_pictures(images: str, labels: str, rows: int) -> Content:
    """The first 60,000 of `rows` pictures in [0, 1], on 300 principal directions without centring."""
    pixels = idx(images, obtained(images), (rows, 28, 28))[:ROWS].reshape(ROWS, 784)
    classes = idx(labels, obtained(labels), (rows,))[:ROWS].astype(np.int64)
    columns = tuple(f"pc{j:03d}" for j in range(1, DIRECTIONS + 1))
    return Content(principal_coordinates(pixels, DIRECTIONS), classes, columns)


def principal_coordinates(images: NDArray[np.uint8], directions: int) -> NDArray[np.float64]:
    """Images in [0, 1] times the leading eigenvectors of X'X, each with its largest entry positive."""
    blocks = np.array_split(images, max(1, len(images) // 2000))
    # Sums of products of bytes are integers that float64 holds exactly: X'X is the same on every machine.
    gram = np.zeros((images.shape[1], images.shape[1]))
    for values in (block.astype(np.float64) for block in blocks):
        gram += values.T @ values
    vectors = np.linalg.eigh(gram).eigenvectors[:, ::-1][:, :directions]
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(directions)]
    basis = vectors * np.sign(largest)
    return np.concatenate([(block / 255.0) @ basis for block in blocks])


def _pictures(folder: str, prefix: str, rows: int, **about: Any) -> Dataset:
    """The record of a set of 28 x 28 pixels in two IDX files, dealt as the paper deals them."""
    files = (f"{folder}/{prefix}-images-idx3-ubyte.gz", f"{folder}/{prefix}-labels-idx1-ubyte.gz")
    read: Callable[[], Content] = partial(read_pictures, *files, rows)
    return Dataset(
        loss="logistic", rows=ROWS, columns=DIRECTIONS, classes=tuple(range(10)), agents=28,
        partition="two-class", target=1, files=files, read=read, **about,
    )  # fmt: skip


DATASETS = (
    Dataset(
        name="digits",
        description="handwritten digits, 8 x 8 pixels: one digit against the others",
        loss="logistic",
        rows=1797,
        columns=64,
        classes=tuple(range(10)),
        agents=20,
        partition="two-class",
        target=1,
        citation="Alpaydin, Kaynak 1998, Optical Recognition of Handwritten Digits, UCI, "
        "doi 10.24432/C50P49 (test part)",
        licence="CC BY 4.0",
        files=(),
        read=read_digits,
    ),
    _pictures(
        "fashion_mnist",
        "train",
        60_000,
        name="fashion-mnist",
        description="pictures of clothes on 300 principal directions: one class against the others",
        citation="Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747 (training part)",
        licence="MIT",
    ),
    _pictures(
        "mnist",
        "train",
        60_000,
        name="mnist",
        description="handwritten digits on 300 principal directions: one digit against the others; "
        "a substitute for the EMNIST digits of the paper",
        citation="LeCun, Cortes, Burges, the MNIST database of handwritten digits (training part)",
        licence="CC BY-SA 3.0",
    ),
    _pictures(
        "emnist",
        "emnist-digits-train",
        240_000,
        name="emnist-digits",
        description="the first 60,000 handwritten digits of EMNIST on 300 principal directions: "
        "one digit against the others; its files are checked by shape only, because no checksum is known",
        citation="Cohen, Afshar, Tapson, van Schaik 2017, arXiv:1702.05373 (digits, training part)",
        licence="none given",
    ),
)
