"""Fields of a study that are NumPy values, arrays or text are taken, or refused by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

import fedshed
from fedshed import ConfigError, DataError, Study
from fedshed.protocol.codec import encode

PLAIN = Study(
    family="logistic", target="ill", columns=("age", "ward"), positive=(2, 3), l2={"age": 0.5}, l1=0.25,
    references={"ward": 7}, levels={"ward": (7, 8)}, max_levels=9, intercept=False,
)  # fmt: skip


@pytest.mark.parametrize("kind", [list, np.array, pd.Index, pl.Series])
def test_values_of_numpy_pandas_and_polars_are_plain_data(kind):
    """`np.unique(y)` as positive, an Index as columns, np.float64 as penalty: the same bytes."""
    study = Study(
        family=np.str_("logistic"), target=np.str_("ill"), columns=kind(["age", "ward"]),
        positive=np.unique([3, 2, 3]),
        l2={np.str_("age"): np.float64(0.5)}, l1=np.float64(0.25), references={"ward": np.int64(7)},
        levels={"ward": np.array([7, 8])}, max_levels=np.int32(9), intercept=np.bool_(False),
    )  # fmt: skip
    assert study == PLAIN
    assert encode(study) == encode(PLAIN)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"columns": "age"}, r"columns is a list, not text; write columns = \['age'\]"),
        ({"positive": "yes"}, r"positive is a list, not text; write positive = \['yes'\]"),
        ({"columns": {"age", "ward"}}, "columns is a set, which has no order"),
        ({"max_levels": "many"}, "max_levels cannot be 'many'"),
        ({"l2": "weak"}, "l2 cannot be 'weak'"),
        ({"positive": np.array(["2001-01-01"], dtype="M8[D]")}, "positive cannot be"),
    ],
)
def test_what_no_field_can_be_is_refused_with_its_name(fields, words):
    with pytest.raises(ConfigError, match=words):
        Study(family="logistic", target="ill", **fields)


@pytest.mark.parametrize("huge", [1e300, -1e61])
@pytest.mark.parametrize("column", ["x", "y", "w"])
def test_a_column_of_huge_numbers_is_refused_by_its_name(huge, column):
    rng = np.random.default_rng(0)
    frames = {s: {"x": rng.normal(size=30), "y": rng.normal(size=30), "w": np.ones(30)} for s in ("a", "b")}
    frames["a"][column] = np.full(30, huge)
    with pytest.raises(
        DataError, match=f"site 'a': .*'{column}' is (beyond 1e\\+60|negative) in 30 of 30 rows"
    ):
        fedshed.fit(frames, Study(family="linear", target="y", columns=("x",), weight="w"))


def test_an_estimator_refuses_huge_numbers_too():
    X = np.random.default_rng(0).normal(size=(30, 2))
    X[3, 1] = 1e300
    with pytest.raises(DataError, match=r"numbers beyond 1e\+60 in X, column .* \(1 row\); change the unit"):
        fedshed.Federation.from_sites({"a": (X, np.arange(30.0))})
