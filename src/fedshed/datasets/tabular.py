"""Tables without natural sites: sparse two-class sets, and the paper's least-squares problems."""

from __future__ import annotations

import io
from functools import partial

import numpy as np
from scipy.sparse import csr_array

from fedshed.datasets.design import read_csv, rescaled
from fedshed.datasets.files import content
from fedshed.datasets.records import Content, Dataset

NEWS = "news/OnlineNewsPopularity.csv.xz"
MSD = ("msd/msd_random5000.csv.xz", "msd/msd_random2000.csv.xz", "msd/msd_first1176.csv.xz")


def read_libsvm(relative: str, features: int, prefix: str) -> Content:
    """A file in svmlight format as CSR; the number of features is told, since the last ones may be empty."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(io.BytesIO(content(relative)), n_features=features)
    columns = tuple(f"{prefix}{j:03d}" for j in range(1, features + 1))
    return Content(csr_array(X), y.astype(np.int64), columns)


def read_news() -> Content:
    """58 numbers about an article and the times it was shared, all in [0, 1]; url and timedelta are left out.

    One row is left out too: its n_unique_tokens, a rate that is at most 1 elsewhere, is 701.
    """
    header = content(NEWS).partition(b"\n")[0].decode().split(",")
    kept = [name for name in header if name not in ("url", "timedelta")]
    table = read_csv(NEWS, **dict.fromkeys(kept, "f8"))
    rows = table["n_unique_tokens"] <= 1
    values = rescaled(np.column_stack([table[name][rows] for name in kept]))
    at = kept.index("shares")
    return Content(np.delete(values, at, axis=1), values[:, at], tuple(kept[:at] + kept[at + 1 :]))


def read_msd() -> Content:
    """90 numbers about the timbre of a song and its year, all in [0, 1]: the distinct rows of three files."""
    lines = dict.fromkeys(line for name in MSD for line in content(name).decode().splitlines())
    values = rescaled(np.loadtxt(list(lines), delimiter=","))
    names = [f"timbre_mean{j:02d}" for j in range(1, 13)] + [f"timbre_cov{j:02d}" for j in range(1, 79)]
    return Content(values[:, 1:], values[:, 0], tuple(names))


DATASETS = (
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
        files=("libsvm/w8a.bz2",),
        read=partial(read_libsvm, "libsvm/w8a.bz2", 300, "keyword"),
    ),
    Dataset(
        name="a9a",
        description="UCI Adult in 123 binary features, sparse: income above 50,000 dollars or not",
        loss="logistic",
        rows=32_561,
        columns=123,
        classes=(-1, 1),
        agents=40,
        partition="two-class",
        target=1,
        citation="Becker, Kohavi 1996, Adult, UCI, doi 10.24432/C5XW20; Platt 1998; LIBSVM data page",
        licence="CC BY 4.0",
        files=("libsvm/a9a.bz2",),
        read=partial(read_libsvm, "libsvm/a9a.bz2", 123, "feature"),
    ),
    Dataset(
        name="news",
        description="how often an article of Mashable was shared (Online News Popularity), all in [0, 1]",
        loss="least-squares",
        rows=39_643,
        columns=58,
        classes=(),
        agents=30,
        partition="iid",
        target=None,
        citation="Fernandes, Vinagre, Cortez 2015, doi 10.24432/C5NS3V",
        licence="CC BY 4.0",
        files=(NEWS,),
        read=read_news,
        per_agent=500,
    ),
    Dataset(
        name="msd",
        description="the year of a song from its timbre (YearPredictionMSD, 1M Songs), all in [0, 1]: "
        "a subset of 8,162 rows of 515,345",
        loss="least-squares",
        rows=8162,
        columns=90,
        classes=(),
        agents=20,
        partition="iid",
        target=None,
        citation="Bertin-Mahieux, Ellis, Whitman, Lamere 2011, doi 10.24432/C50K61",
        licence="CC BY 4.0",
        files=MSD,
        read=read_msd,
    ),
)
