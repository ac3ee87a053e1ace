"""Named data sets, read from scikit-learn or from checked files, and dealt to simulated agents."""

from __future__ import annotations

import bz2
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.datasets.federation import Federation, Matrix2D
from fedshed.datasets.files import find, idx, verified
from fedshed.datasets.partitions import PARTITIONS, check_target, check_whole
from fedshed.errors import ConfigError
from fedshed.names import closest

__all__ = ["DATASETS", "SHA256", "Dataset", "find", "load", "names"]

# Two hashes: the file as its authors publish it, and as Debian packs the same bytes again.
SHA256: Mapping[str, tuple[str, ...]] = {
    "fashion_mnist/train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    ),
    "fashion_mnist/train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    ),
    "libsvm/w8a.bz2": ("d7fe0ec5079fb8fb0901f85ecbbf87e05698600dc0326e0edbe222426b438801",),
}


@dataclass(frozen=True)
class Dataset:
    """What a data set is, where it comes from, and how it is dealt if nothing else is asked."""

    name: str
    description: str
    loss: str
    rows: int
    columns: int
    classes: tuple[int, ...]
    agents: int
    partition: str
    target: int
    citation: str
    licence: str
    folder: str | None  # under $FEDSHED_DATA; None: embedded in scikit-learn
    read: Callable[[], tuple[Matrix2D, NDArray[Any], list[str]]] = field(repr=False)  # X, classes, columns


def names() -> tuple[str, ...]:
    """The names that `load` knows."""
    return tuple(DATASETS)


def load(
    name: str, *, agents: int | None = None, partition: str | None = None, seed: int = 0, target: Any = None
) -> Federation:
    """A data set dealt to agents, y = +1 for the target class and -1 for the rest; None: its own default."""
    dataset = DATASETS[_known("data set", name, DATASETS)]
    deal = PARTITIONS[_known("partition", dataset.partition if partition is None else partition, PARTITIONS)]
    count = dataset.agents if agents is None else agents
    chosen = dataset.target if target is None else target
    check_whole("agents", count, 1)
    check_whole("seed", seed, 0)
    check_target(chosen, dataset.classes)
    X, classes, columns = dataset.read()
    y = np.where(classes == chosen, 1, -1)
    sites = {
        _agent(i, count): (X[rows], y[rows]) for i, rows in enumerate(deal(classes, count, seed, chosen))
    }
    return Federation.from_sites(sites, columns=columns, name=name)


def _agent(i: int, agents: int) -> str:
    """`agent-07`: padded with zeros, so that the order of names is the order of numbers."""
    return f"agent-{i:0{max(2, len(str(agents - 1)))}d}"


def _known(kind: str, name: str, known: Iterable[str]) -> str:
    """The name, or an error that lists the known ones and guesses which was meant."""
    if name not in known:
        raise ConfigError(f"unknown {kind} {name!r}{closest(str(name), known)}")
    return name


def _digits() -> tuple[Matrix2D, NDArray[Any], list[str]]:
    """Handwritten digits of 8 x 8 pixels, 17 grey levels rescaled to [0, 1]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.data / 16.0, digits.target, list(digits.feature_names)


def _fashion_mnist() -> tuple[Matrix2D, NDArray[Any], list[str]]:
    """Fashion-MNIST's training images in [0, 1], on 300 principal directions without centring."""
    images = _idx("fashion_mnist/train-images-idx3-ubyte.gz", (60_000, 28, 28)).reshape(60_000, 784)
    classes = _idx("fashion_mnist/train-labels-idx1-ubyte.gz", (60_000,)).astype(np.int64)
    X = principal_coordinates(images, 300)
    return X, classes, [f"pc{j:03d}" for j in range(1, 301)]


def _w8a() -> tuple[Matrix2D, NDArray[Any], list[str]]:
    """Web pages by 300 keywords that they hold or not, in CSR."""
    from sklearn.datasets import load_svmlight_file

    text = bz2.decompress(verified("libsvm/w8a.bz2", SHA256["libsvm/w8a.bz2"]))
    X, y = load_svmlight_file(io.BytesIO(text), n_features=300)
    return X, y.astype(np.int64), [f"keyword{j:03d}" for j in range(1, 301)]


def _idx(relative: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return idx(relative, verified(relative, SHA256[relative]), shape)


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


DATASETS: Mapping[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
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
            folder=None,
            read=_digits,
        ),
        Dataset(
            name="fashion-mnist",
            description="pictures of clothes on 300 principal directions: one class against the others",
            loss="logistic",
            rows=60_000,
            columns=300,
            classes=tuple(range(10)),
            agents=28,
            partition="two-class",
            target=1,
            citation="Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747 (training part)",
            licence="MIT",
            folder="fashion_mnist",
            read=_fashion_mnist,
        ),
        Dataset(
            name="w8a",
            description="web pages by 300 keywords, sparse: one category against the rest",
            loss="logistic",
            rows=49_749,
            columns=300,
            classes=(-1, 1),
            agents=62,
            partition="two-class",
            target=1,
            citation="Platt 1998, Fast training of SVMs using SMO; LIBSVM data page",
            licence="none given",
            folder="libsvm",
            read=_w8a,
        ),
    )
}
