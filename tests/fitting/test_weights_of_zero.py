"""Rows of weight 0: a fit is that of the tables without them, and says how many there were."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedshed
from fedshed import Study
from fedshed._utils.errors import DataError

COLUMNS = ("a", "b", "kind")


def tables():
    """Three sites; a level of `kind`, and values far from the others, are in rows of weight 0 alone."""
    rng, found = np.random.default_rng(5), {}
    for site in ("east", "north", "west"):
        X = rng.normal(size=(60, 2))
        table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": rng.choice(["u", "v"], 60)})
        table["y"] = X @ [1.0, -0.5] + rng.normal(size=60)
        table["w"] = rng.integers(0, 3, size=60).astype(float)
        table.loc[table.w == 0, "a"] = 1e6
        table.loc[table.w == 0, "kind"] = "never"
        found[site] = table
    return found


TABLES = tables()
WITHOUT = {site: table[table.w > 0].reset_index(drop=True) for site, table in TABLES.items()}


def study(**more):
    """A model with a spline, whose knots come from all rows, and with standardised columns."""
    formula = {} if "columns" in more else {"formula": "y ~ bs(a, df=4) + b + kind"}
    return Study(
        family="linear", target="y", weight="w", weight_type="frequency", standardize=True, **formula, **more
    )


@pytest.mark.parametrize(
    ("more", "options"),
    [({}, {}), ({"missing": "drop"}, {}), ({}, {"over": fedshed.ProcessSites()})],
    ids=["here", "drop", "processes"],
)
def test_a_fit_is_that_of_the_rows_with_a_weight(more, options):
    model, expected = fedshed.fit(TABLES, study(**more), **options), fedshed.fit(WITHOUT, study(**more))
    assert model.coefficients == expected.coefficients
    assert model.inference.std_err().tolist() == expected.inference.std_err().tolist()
    lost = {site: int((table.w == 0).sum()) for site, table in TABLES.items()}
    assert {site: count.dropped for site, count in model.rows.items()} == lost
    said = f"Rows with a missing value or a weight of 0 were dropped: {sum(lost.values())};"
    assert said in " ".join(str(model.summary()).split())


def test_a_protected_fit_is_that_of_the_rows_with_a_weight():
    protected = study(columns=COLUMNS, levels={"kind": ("u", "v")}, protected=True)
    model, expected = (fedshed.fit(tables, protected) for tables in (TABLES, WITHOUT))
    np.testing.assert_allclose(
        list(model.coefficients.values()), list(expected.coefficients.values()), rtol=1e-12, atol=1e-14
    )
    np.testing.assert_allclose(model.inference.std_err(), expected.inference.std_err(), rtol=1e-12)


def test_terms_are_left_out_one_by_one_of_the_same_rows():
    linear = study(columns=("a", "b"))
    found, expected = fedshed.drop_one(TABLES, linear), fedshed.drop_one(WITHOUT, linear)
    assert [one.statistic for one in found.tests] == [one.statistic for one in expected.tests]


def test_a_site_without_any_weight_is_refused():
    nothing = {**TABLES, "west": TABLES["west"].assign(w=0.0)}
    with pytest.raises(DataError, match="'w' is 0 in every row; leave the site out"):
        fedshed.fit(nothing, study())
