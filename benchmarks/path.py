"""A path of 100 penalties with 10 folds, breast cancer (30 standardised columns) over three hospitals.

Targets: at most 400 exchanges in all (the preparation, the path and the fit at the chosen penalty) at tol
1e-6, and the penalty that the pooled rows choose with the same folds, which glum computes here in a minute.
`--json` prints one object instead of the lines.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedshed
from fedshed.objectives.folds import fold_of_each

MOST, FOLDS = 400, 10
ROWS = {"north": 60, "south": 190, "west": 319}


def hospitals() -> tuple[dict[str, Any], Any, Any]:
    """The table of each hospital, and the site of each row."""
    frame = load_breast_cancer(as_frame=True).frame
    site = np.repeat(list(ROWS), list(ROWS.values()))
    return {name: frame[site == name] for name in ROWS}, frame, site


def folds_of(site: Any) -> Any:
    """The folds that the sites draw."""
    fold = np.empty(len(site), dtype=int)
    for name, rows in ROWS.items():
        drawn: Any = SimpleNamespace(y=np.zeros(rows), clusters=None)
        fold[site == name] = fold_of_each(drawn, name, FOLDS, 0)
    return fold


def pooled(frame: Any, fold: Any, sizes: list[float]) -> tuple[Any, Any]:
    """The mean deviance of rows left out at each penalty and its standard error, by glum on all rows."""
    from glum import GeneralizedLinearRegressor

    X, y = frame.drop(columns="target").to_numpy(), frame.target.to_numpy(dtype=float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    deviances, weights = [], []
    for k in range(1, FOLDS + 1):
        kept, left = fold != k, fold == k
        fit = GeneralizedLinearRegressor(
            alpha=sizes, alpha_search=True, l1_ratio=1.0, family="binomial", gradient_tol=1e-6, max_iter=1000
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit.fit(X[kept], y[kept])
        z = X[left] @ fit.coef_path_.T + fit.intercept_path_
        deviances.append(2 * (np.logaddexp(0, z) - y[left, None] * z).mean(axis=0))
        weights.append(left.mean())
    w, d = np.array(weights), np.array(deviances)
    means = w @ d
    return means, np.sqrt(w @ np.square(d - means) / (FOLDS - 1))


def measured() -> dict[str, Any]:
    """Exchanges, seconds and the choices of both."""
    tables, frame, site = hospitals()
    study = fedshed.Study(family="logistic", target="target", standardize=True)
    began = time.perf_counter()
    found = fedshed.select(tables, study, folds=FOLDS)
    seconds = time.perf_counter() - began
    assert found.model is not None
    means, errors = pooled(frame, folds_of(site), [step.penalty for step in found.steps])
    best = int(np.argmin(means))
    one_se = int(np.argmax(means <= means[best] + errors[best]))
    return {
        "path_exchanges": found.traffic.exchanges, "fit_exchanges": found.model.run.exchanges,
        "exchanges": found.traffic.exchanges + found.model.run.exchanges, "at_most": MOST,
        "bytes_up": found.traffic.uplink_bytes, "bytes_down": found.traffic.downlink_bytes,
        "seconds": seconds, "converged": found.model.converged,
        "minimum": [found.minimum, best], "one_se": [found.one_se, one_se],
        "largest_difference": float(np.abs(means - [step.cv_mean for step in found.steps]).max()),
    }  # fmt: skip


def main() -> None:
    """Print what was measured."""
    it = measured()
    if "--json" in sys.argv:
        print(json.dumps(it))
        return
    print(f"path: 100 penalties, {FOLDS} folds, 3 sites, 569 rows, 30 columns, tol 1e-6")
    print(
        f"  exchanges   {it['exchanges']} (path {it['path_exchanges']}, fit {it['fit_exchanges']}), at most {MOST}"
    )
    print(f"  bytes       {it['bytes_up']:,} up, {it['bytes_down']:,} down; {it['seconds']:.1f} s")
    print(f"  smallest deviance at penalty {it['minimum'][0]}, pooled {it['minimum'][1]}")
    print(f"  one standard error at penalty {it['one_se'][0]}, pooled {it['one_se'][1]}")
    print(f"  largest difference of the deviance of a row left out: {it['largest_difference']:.1e}")
    assert it["converged"]
    assert it["exchanges"] <= MOST, "too many exchanges"
    assert it["minimum"][0] == it["minimum"][1], "the pooled rows choose another penalty"
    assert it["one_se"][0] == it["one_se"][1], "the pooled rows choose another penalty"
