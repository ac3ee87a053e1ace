"""The elastic net of R's glmnet, by the mapping of docs/selection.md."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from against_r import R, rows_of, tables_of
from fedshed import Study

TABLES = {
    "glmnet_birthwt": ("birthwt", "race", "bwt"),
    "glmnet_birthwt_ridge": ("birthwt", "race", "bwt"),
    "glmnet_swiss": ("swiss", "half", "Fertility"),
    "glmnet_low": ("birthwt", "race", "low"),
}


@pytest.mark.parametrize("name", TABLES)
def test_glmnets_lambda_and_alpha_are_l1_and_l2(name):
    """l1 = alpha lambda; l2 = (1 - alpha) lambda, divided by sd(y) for a linear model (divisor N)."""
    table, site, target = TABLES[name]
    theirs, rows = R[name], rows_of(table)
    names = theirs["names"][1:]
    family = "logistic" if target == "low" else "linear"
    sd = float(rows[target].std(ddof=0)) if family == "linear" else 1.0
    study = Study(
        family=family, target=target, columns=tuple(names), standardize=True,
        l1=theirs["lambda"] * theirs["alpha"], l2=theirs["lambda"] * (1 - theirs["alpha"]) / sd,
    )  # fmt: skip
    half = {"half": np.arange(len(rows)) % 3 > 0} if site == "half" else {}
    ours = fedshed.fit(tables_of(table, site, **half), study, tol=1e-12).coefficients
    expected = np.array(theirs["coef"])
    np.testing.assert_allclose([ours[name] for name in theirs["names"]], expected, rtol=3e-8, atol=3e-8)
    zeros = [name for name, value in zip(theirs["names"], expected, strict=True) if value == 0]
    assert all(ours[name] == 0 for name in zeros)
