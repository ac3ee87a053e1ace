"""Studies played on one kind of processor and replayed on another.

`python -m tests.protected.elsewhere FILE --record` plays them, and writes down what was asked and summed;
without `--record` a site replays them from there.  The kinds of the libraries' kernels are printed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from tests.protected.plain_sums import played
from threadpoolctl import threadpool_info

from fedshed.privacy.addends import Totals
from fedshed.tables import Federation

STUDIES = [
    ("cancer raw", "newton-seldom", "logistic"),
    ("counts", "lbfgs", "poisson"),
]


def federation(data: str) -> Federation:
    """Three sites, standardised or as the columns come."""
    bunch = load_diabetes() if data == "counts" else load_breast_cancer()
    X, y = bunch.data[:, :10], bunch.target
    if "raw" not in data:
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = np.round(y / 20) if data == "counts" else y
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), 3)
    return Federation.from_sites({f"site{k}": (X[rows], y[rows]) for k, rows in enumerate(parts)})


def record() -> list[Any]:
    """Each study's exchanges."""
    studies = []
    for data, algorithm, loss in STUDIES:
        with played(federation(data), algorithm, loss) as play:
            _, sums = play()
        studies.append([(label, asked, public, _plain(totals)) for label, asked, public, totals in sums.log])
    return studies


def _plain(totals: Totals) -> tuple[list[float], list[float], list[bool]]:
    return totals.wide.tolist(), totals.slim.tolist(), totals.raised.tolist()


def replay(studies: list[Any]) -> None:
    """Replay each study at one site; a request that does not follow ends this with an error."""
    for (data, algorithm, loss), exchanges in zip(STUDIES, studies, strict=True):
        with played(federation(data), algorithm, loss) as play:
            step = play.sums.steps["site0"]
            for label, asked, public, (wide, slim, raised) in exchanges:
                step.check(label, asked)
                step.take(label, asked, public, Totals(np.array(wide), np.array(slim), np.array(raised)))


def main() -> None:
    """Record or replay."""
    path = Path(sys.argv[1])
    if "--record" in sys.argv:
        path.write_bytes(msgspec.msgpack.encode(record()))
    else:
        replay(msgspec.msgpack.decode(path.read_bytes()))
    print(sorted({lib.get("architecture") for lib in threadpool_info() if lib["internal_api"] == "openblas"}))


if __name__ == "__main__":
    main()
