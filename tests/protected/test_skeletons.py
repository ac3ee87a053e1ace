"""What is not masked in an answer, its skeleton and its lengths, says nothing of a site's rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")

import fedshed
from fedshed import Study
from fedshed.protected.member import Member
from fedshed.protocol.codec import encode
from fedshed.solve.stages import FIT

MODEL = Study(
    family="logistic", formula="y ~ u + center(v) + C(w)", classes=(0, 1), l2=1e-2, protected=True,
    levels={"w": ("high", "low", "none")}, missing="drop", standardize=True, weight="k",
    weight_type="frequency", cluster="g",
)  # fmt: skip
ROWS = {"a": 20, "b": 30, "c": 40}


def tables(seed):
    """Three sites with rows of their own; weights are whole numbers."""
    rng = np.random.default_rng(seed)
    made = {}
    for site, rows in ROWS.items():
        X = rng.normal(size=(rows, 2))
        y = (X.sum(axis=1) + rng.logistic(size=rows) > 0).astype(int)
        w = rng.choice(["high", "low", "none"], rows)
        g = [f"{site}{k}" for k in rng.integers(0, 8, rows)]
        k = rng.integers(1, 3, rows).astype(float)
        made[site] = pd.DataFrame({"u": X[:, 0], "v": 5 + X[:, 1], "w": w, "y": y, "k": k, "g": g})
    return made


def odd_ones():
    """Other rows: a class, a level and most clusters are not at every site, values are missing at one."""
    made = tables(1)
    made["a"] = made["a"].assign(y=1, w="low", g="only")
    made["b"].loc[:4, "u"] = np.nan
    made["b"].loc[7, "w"] = None
    made["c"].loc[:2, "v"] = 1e6  # far from all others
    return made


@pytest.fixture
def open_parts(monkeypatch):
    """What each site shows of its answers to the first exchanges of a study."""

    def shown(rows):
        found, whole = {}, Member._body

        def body(self, now, ask, seed):
            made = whole(self, now, ask, seed)
            shape = made.shape.wide, made.shape.slim, made.shape.slots
            found.setdefault(self._site.name, []).append((ask.label, ask.exchange, made.public, shape))
            return made

        with monkeypatch.context() as patched:
            patched.setattr(Member, "_body", body)
            fedshed.fit(rows, MODEL, algorithm="newton", errors="cluster")
        return found

    return shown


def test_all_sites_show_the_same_whatever_they_hold(open_parts):
    shown = open_parts(odd_ones())
    assert shown["a"] == shown["b"] == shown["c"]
    assert len(shown["a"]) > 8


def test_what_sites_show_does_not_depend_on_their_rows(open_parts):
    """Up to the first step of the fit, and in the conversations beside it: its searches follow from sums."""
    one, other = (
        [(label, public, shape) for label, _, public, shape in open_parts(rows)["a"]]
        for rows in (tables(0), odd_ones())
    )
    assert one[:7] == other[:7]
    assert {label for label, _, _ in one[:7]} >= {-1, 0, FIT}
    assert {shown for shown in one if shown[0] != FIT} == {shown for shown in other if shown[0] != FIT}


def test_what_sites_show_holds_no_name_of_a_row(open_parts):
    """Clusters have names at the sites."""
    for shown in open_parts(odd_ones()).values():
        data = encode(shown)
        assert not any(name in data for name in (b"only", b"b0", b"c1"))
