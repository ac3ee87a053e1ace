"""An estimate is as near to the pooled one as its errors can tell, whatever tol was."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

import fedshed
from fedshed import Study

RNG = np.random.default_rng(5)
X = RNG.normal(size=(900, 3))
SITE = RNG.integers(0, 3, 900)
Z = X @ [0.4, -0.3, 0.2]
CASES = {
    "linear": (Z + RNG.normal(size=900), sm.families.Gaussian()),
    "logistic": ((RNG.random(900) < 1 / (1 + np.exp(-Z))).astype(float), sm.families.Binomial()),
    "poisson": (RNG.poisson(np.exp(Z)).astype(float), sm.families.Poisson()),
    "gamma": (RNG.gamma(2.0, np.exp(Z) / 2), sm.families.Gamma(sm.families.links.Log())),
}


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("algorithm", ["newton", "fib-shed", "qn-shed", "pen"])
def test_a_coarse_tolerance_costs_an_exchange_or_two_and_no_digits(family, algorithm):
    y, theirs = CASES[family]
    tables = {str(i): {**{f"x{j}": X[i == SITE, j] for j in range(3)}, "y": y[i == SITE]} for i in range(3)}
    model = fedshed.fit(tables, Study(family=family, target="y"), tol=1e-4, algorithm=algorithm)
    pooled = sm.GLM(y, np.column_stack([X, np.ones(900)]), theirs).fit(tol=1e-14, maxiter=100)
    assert model.converged
    far = np.abs((model.inference.coef - pooled.params) / pooled.bse).max()
    assert far < 1e-6
    np.testing.assert_allclose(model.inference.std_err(), pooled.bse, rtol=1e-6)


def test_every_exchange_of_the_steps_is_counted():
    y, _ = CASES["poisson"]
    tables = {str(i): {"x": X[i == SITE, 0], "y": y[i == SITE]} for i in range(3)}
    study = Study(family="poisson", target="y")
    coarse, fine = (fedshed.fit(tables, study, tol=tol, algorithm="newton") for tol in (1e-2, 1e-9))
    last = [model.trace[-1].exchanges for model in (coarse, fine)]
    assert last[0] < last[1]
    assert coarse.run.exchanges - last[0] > fine.run.exchanges - last[1]
    assert coarse.inference.distance < 1e-6
