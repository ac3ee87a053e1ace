"""The study that runs unedited: scikit-learn's breast-cancer rows, dealt out unequally."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedshed.files import write_atomically

TARGET = "benign"
COLUMNS = 10  # the means: few enough for the smallest of three sites to keep its rows to itself


def write_tables(paths: Mapping[str, Path]) -> None:
    """One CSV a site, the i-th with a share of the rows proportional to i."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    header = [*(name.replace(" ", "_") for name in data.feature_names[:COLUMNS]), TARGET]
    order = np.random.default_rng(0).permutation(len(data.target))
    shares = np.cumsum(np.arange(1, len(paths) + 1))
    cuts = len(order) * shares[:-1] // shares[-1]
    for path, rows in zip(paths.values(), np.split(order, cuts), strict=True):
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([*data.data[i, :COLUMNS].tolist(), int(data.target[i])] for i in rows)
        write_atomically(path, out.getvalue().encode())
