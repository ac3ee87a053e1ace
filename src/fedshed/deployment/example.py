"""The example study: the rows of `fedshed example hospitals`, divided unequally among the sites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedshed._utils.files import write_atomically
from fedshed.datasets.examples import csv_text, tumours


def write_tables(paths: Mapping[str, Path]) -> None:
    """One CSV file per site, the i-th with a share of the rows proportional to i."""
    header, *rows = tumours()
    order = np.random.default_rng(0).permutation(len(rows))
    shares = np.cumsum(np.arange(1, len(paths) + 1))
    cuts = len(order) * shares[:-1] // shares[-1]
    for path, part in zip(paths.values(), np.split(order, cuts), strict=True):
        write_atomically(path, csv_text([header, *(rows[i] for i in part)]).encode())
