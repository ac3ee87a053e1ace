"""Pictures: small digits, and sets of 28 x 28 pixels as principal components, as in the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.datasets.design import rescaled
from fedshed.datasets.files import first_complete, idx
from fedshed.datasets.openml import obtained
from fedshed.datasets.records import Content, Dataset

ROWS, DIRECTIONS = 60_000, 300  # Section 6: rows used, and n


@dataclass(frozen=True)
class Pictures:
    """Pictures and their labels in two IDX files, the number of rows, and what results on them must say."""

    images: str
    labels: str
    rows: int
    note: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of both files."""
        return self.images, self.labels


def read_digits() -> Content:
    """Handwritten digits of 8 x 8 pixels, 17 grey levels rescaled to [0, 1]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Content(digits.data / 16.0, digits.target, tuple(digits.feature_names))


def read_pictures(sources: tuple[Pictures, ...], preprocessing: str) -> Content:
    """The first 60,000 pictures of the first source that is complete, as 300 principal components."""
    chosen = first_complete([source.files for source in sources])
    source = next(source for source in sources if source.files == chosen)
    pixels = idx(source.images, obtained(source.images), (source.rows, 28, 28))[:ROWS].reshape(ROWS, 784)
    classes = idx(source.labels, obtained(source.labels), (source.rows,))[:ROWS].astype(np.int64)
    columns = tuple(f"pc{j:03d}" for j in range(1, DIRECTIONS + 1))
    return Content(PREPROCESSINGS[preprocessing](pixels, DIRECTIONS), classes, columns, note=source.note)


def principal_coordinates(images: NDArray[np.uint8], directions: int) -> NDArray[np.float64]:
    """Images in [0, 1] times the leading eigenvectors of X'X, which is not centred."""
    return _coordinates(images, _gram(images), directions)


def rescaled_components(images: NDArray[np.uint8], directions: int) -> NDArray[np.float64]:
    """The leading principal components of images in [0, 1], each rescaled to [0, 1]."""
    sums = images.sum(axis=0, dtype=np.float64)
    # N^2 times the covariance: of integers below 2^53, so it has no rounding error either.
    scatter = len(images) * _gram(images) - np.outer(sums, sums)
    # The coordinates are not centred: that would only shift them, and rescaling undoes a shift.
    return rescaled(_coordinates(images, scatter, directions))


def _gram(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """X'X of bytes: sums of integers that float64 holds exactly, so it is the same on every machine."""
    gram = np.zeros((images.shape[1], images.shape[1]))
    for values in (block.astype(np.float64) for block in _blocks(images)):
        gram += values.T @ values
    return gram


def _coordinates(
    images: NDArray[np.uint8], matrix: NDArray[np.float64], directions: int
) -> NDArray[np.float64]:
    """Images in [0, 1] times the leading eigenvectors of a matrix, each with its largest entry positive."""
    vectors = np.linalg.eigh(matrix).eigenvectors[:, ::-1][:, :directions]
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(directions)]
    basis = vectors * np.sign(largest)
    return np.concatenate([(block / 255.0) @ basis for block in _blocks(images)])


def _blocks(images: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    return np.array_split(images, max(1, len(images) // 2000))


PREPROCESSINGS: Mapping[str, Callable[[NDArray[np.uint8], int], NDArray[np.float64]]] = {
    "pca-uncentred": principal_coordinates,  # the default of `load`
    "pca-rescaled": rescaled_components,
}


def _pictures(*sources: Pictures, **about: Any) -> Dataset:
    """The record of a set of 28 x 28 pixels, distributed as the paper distributes them."""
    readers: dict[str, Callable[[], Content]] = {
        name: partial(read_pictures, sources, name) for name in PREPROCESSINGS
    }
    return Dataset(
        loss="logistic", rows=ROWS, columns=DIRECTIONS, classes=tuple(range(10)), agents=28,
        partition="two-class", target=1, files=sources[0].files, read=readers["pca-uncentred"],
        substitutes={source.note: source.files for source in sources[1:]}, preprocessings=readers, **about,
    )  # fmt: skip


FASHION_MNIST = Pictures(
    "fashion_mnist/train-images-idx3-ubyte.gz", "fashion_mnist/train-labels-idx1-ubyte.gz", 60_000
)
MNIST = Pictures("mnist/train-images-idx3-ubyte.gz", "mnist/train-labels-idx1-ubyte.gz", 60_000)
EMNIST = Pictures(
    "emnist/emnist-digits-train-images-idx3-ubyte.gz",
    "emnist/emnist-digits-train-labels-idx1-ubyte.gz",
    240_000,
)
EMNIST_SUBSET = Pictures(
    "emnist/emnist-subset-digits-train-images-idx3-ubyte.gz",
    "emnist/emnist-subset-digits-train-labels-idx1-ubyte.gz",
    114_906,
    note="a subset of 114,906 EMNIST digits",
)

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
        FASHION_MNIST,
        name="fashion-mnist",
        description="pictures of clothes as 300 principal components: one class against the others",
        citation="Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747 (training part)",
        licence="MIT",
    ),
    _pictures(
        MNIST,
        name="mnist",
        description="handwritten digits as 300 principal components: one digit against the others",
        citation="LeCun, Cortes, Burges, the MNIST database of handwritten digits (training part)",
        licence="CC BY-SA 3.0",
    ),
    _pictures(
        EMNIST,
        EMNIST_SUBSET,
        name="emnist-digits",
        description="the first 60,000 handwritten digits of EMNIST as 300 principal components: one digit "
        "against the others; of a subset of 114,906 digits where the official files are absent",
        citation="Cohen, Afshar, Tapson, van Schaik 2017, arXiv:1702.05373 (digits, training part)",
        licence="public domain",
    ),
)
