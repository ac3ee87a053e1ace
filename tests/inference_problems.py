"""Problems with an inference for each, and the pooled models of statsmodels they are compared with."""

from __future__ import annotations

import numpy as np
import statsmodels.api as sm

import fedshed
from fedshed import Federation
from fedshed.datasets.claims import read_fremtpl2
from fedshed.exchange import InProcess
from fedshed.exchange.sites import LocalSites
from fedshed.inference import infer
from fedshed.solve.optimize import build_problem

FAMILIES = {
    "least-squares": sm.families.Gaussian(),
    "logistic": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}
LOSSES = [*FAMILIES, "multinomial"]
SITES = np.repeat(["a", "b", "c", "d"], [1, 20, 79, 200])


def fitted(federation, loss, l2=0.0, connect=InProcess):
    """theta, the problem, and the inference of an intercept model."""
    result = fedshed.optimize(
        federation, loss=loss, l2=l2, intercept=True, algorithm="newton", tol=1e-11, max_iterations=60
    )
    objectives, problem = build_problem(federation, loss, l2, intercept=True)
    return result.theta, problem, infer(LocalSites(objectives, connect), problem, result.theta, "frequency")


def made(loss, seed=0, rows=300):
    """X, y, whole weights, offset."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)) * [1.0, 100.0, 0.01] + [0.0, 50.0, 0.0]
    z = X @ [0.4, -0.004, 30.0] + 0.5
    y = {
        "least-squares": lambda: z + rng.normal(size=rows),
        "logistic": lambda: (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(z)).astype(float),
        "gamma": lambda: rng.gamma(2.0, np.exp(z) / 2),
        "multinomial": lambda: np.digitize(z + rng.logistic(size=rows), [0, 1]),
    }[loss]()
    weights = rng.integers(1, 4, rows).astype(float)
    return X, y, weights, None if loss == "multinomial" else 0.2 * rng.normal(size=rows)


def pooled(federation, loss, **fit):
    """statsmodels' GLM on all rows, with an intercept, weights and offsets."""
    table = federation.pooled()
    X = np.column_stack([table.X, np.ones(len(table.y))])
    y = table.y == np.unique(table.y)[-1] if loss == "logistic" else table.y
    model = sm.GLM(y.astype(float), X, FAMILIES[loss], freq_weights=table.weights, offset=table.offset)
    return model.fit(tol=1e-14, maxiter=100, **fit)


def codes(federation):
    """The number of each row's site, in the order of `pooled`."""
    return np.repeat(np.arange(len(federation.sites)), list(federation.rows.values()))


def claims(rows=20_000):
    """A part of the French motor claims: 22 regions, exposure as offset, columns that vary."""
    data = read_fremtpl2()
    some = np.sort(np.random.default_rng(0).permutation(len(data.y))[:rows])
    X = data.X[some]
    varied = X.std(axis=0) > 0
    return Federation.from_arrays(X[:, varied], data.y[some], data.sites[some], offset=data.offset[some])
