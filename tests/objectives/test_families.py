"""Every family on unequal sites: weights, offsets, classes; and the data for which there is no optimum."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from fedshed import ConfigError, DataError, Federation
from fedshed.objectives import contrasts
from made_rows import FAMILIES, response

SITES = np.repeat(["a", "b", "c", "d"], [1, 20, 179, 400])


def columns(loss, seed=0):
    """X, y, weights (some 0), offset: four sites, the first of one row."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(600, 4)) + 0.5 * (SITES == "c")[:, None]
    z = X @ [0.3, -0.5, 0.2, 0.0] + 0.5
    y = response(loss, z, rng)
    weights = rng.integers(0, 4, 600).astype(float)
    weights[0] = 1.0
    return X, y, weights, None if loss == "multinomial" else 0.2 * rng.normal(size=600)


@pytest.mark.parametrize("loss", FAMILIES)
@pytest.mark.parametrize("algorithm", ["auto", "newton", "fib-shed", "qn-shed", "pen", "lbfgs"])
def test_the_limit_is_the_optimum_of_the_repeated_rows(loss, algorithm):
    """A weight of 2 is the row twice, and p_i the share of the total weight."""
    X, y, weights, offset = columns(loss)
    times = weights.astype(int)
    repeated = Federation.from_arrays(
        np.repeat(X, times, 0), np.repeat(y, times),
        offset=None if offset is None else np.repeat(offset, times),
    )  # fmt: skip
    theta, _ = fedshed.optimum(repeated, loss=loss, l2=1e-3, intercept=True)
    federation = Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset)
    result = fedshed.optimize(federation, loss=loss, l2=1e-3, intercept=True, algorithm=algorithm)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, theta, atol=3e-8)


def test_contrasts_sum_to_zero_and_keep_lengths():
    Q = contrasts(5)
    np.testing.assert_allclose(Q.sum(axis=0), 0, atol=1e-15)
    np.testing.assert_allclose(Q.T @ Q, np.eye(4), atol=1e-15)


def test_the_ridge_of_a_column_is_that_of_each_of_its_contrasts():
    X, y, *_ = columns("multinomial")
    federation = Federation.from_arrays(X, y, SITES)
    theta, _ = fedshed.optimum(federation, loss="multinomial", l2=np.array([0.1, 1e-3, 1e-3, 1e9]))
    assert np.abs(theta.reshape(2, 4)[:, 3]).max() < 1e-8
    assert np.abs(theta.reshape(2, 4)[:, :3]).min() > 1e-4


@pytest.mark.parametrize(
    ("loss", "y", "sentence"),
    [
        ("poisson", -1.0, r"site 'b': the poisson loss needs a count or rate >= 0, but the target is -1"),
        ("gamma", 0.0, r"site 'b': the gamma loss needs an amount > 0, but the target is 0"),
    ],
)
def test_responses_that_a_family_cannot_have_are_refused(loss, y, sentence):
    X, good, *_ = columns("gamma")
    with pytest.raises(DataError, match=sentence):
        fedshed.optimize(Federation.from_arrays(X, np.where(np.arange(600) == 5, y, good), SITES), loss=loss)


def test_fractional_counts_are_rates_as_in_pooled_training():
    """Claims a year with the exposure as weight have the optimum of claims with log exposure as offset."""
    X, y, *_ = columns("poisson")
    exposure = np.random.default_rng(1).uniform(0.1, 1.0, 600)
    rates = Federation.from_arrays(X, y / exposure, SITES, sample_weight=exposure)
    counts = Federation.from_arrays(X, y, SITES, offset=np.log(exposure))
    one, _ = fedshed.optimum(rates, loss="poisson", l2=0.0, intercept=True)
    two, _ = fedshed.optimum(counts, loss="poisson", l2=0.0, intercept=True)
    np.testing.assert_allclose(one, two, rtol=1e-9)


def test_an_offset_for_classes_and_bad_weights_are_refused():
    X, y, *_ = columns("multinomial")
    with pytest.raises(ConfigError, match="multinomial loss has no offset"):
        fedshed.optimize(Federation.from_arrays(X, y, offset=np.ones(600)), loss="multinomial")
    with pytest.raises(DataError, match="sample_weight is negative in 600 rows"):
        Federation.from_arrays(X, y, sample_weight=-np.ones(600))
    with pytest.raises(DataError, match="site 'a': every sample_weight is 0; leave the site out"):
        Federation.from_arrays(X, y, SITES, sample_weight=SITES != "a")
    with pytest.raises(DataError, match="offset has 3"):
        Federation.from_arrays(X, y, SITES, offset=[1, 2, 3])
    with pytest.raises(DataError, match="'offset'"):
        Federation.from_arrays(X, y, SITES, offset=np.full(600, np.nan))


# --- separation ---------------------------------------------------------------------------------------


def separated(loss):
    """A level (column 3) whose rows are all of one class, or all without a count: quasi-complete."""
    X, y, *_ = columns(loss, seed=3)
    X[:, 3] = SITES == "b"
    y = np.array(y)
    y[SITES == "b"] = {"logistic": "yes", "poisson": 0, "multinomial": "mid"}[loss]
    return X, y


@pytest.mark.parametrize("loss", ["logistic", "poisson", "multinomial"])
@pytest.mark.parametrize("algorithm", ["newton", "auto", "lbfgs"])
def test_quasi_complete_separation_is_reported_with_its_column(loss, algorithm):
    X, y = separated(loss)
    federation = Federation.from_arrays(X, y, SITES)
    result = fedshed.optimize(federation, loss=loss, l2=0.0, intercept=True, algorithm=algorithm, tol=1e-8)
    assert not result.converged
    assert result.reason.startswith("separated: ")
    assert "x3" in result.reason
    assert "x0" not in result.reason
    penalised = fedshed.optimize(
        federation, loss=loss, l2=1e-4, intercept=True, algorithm=algorithm, tol=1e-8
    )
    assert penalised.converged


@pytest.mark.parametrize("loss", FAMILIES)
def test_ordinary_data_are_not_called_separated(loss):
    X, y, *_ = columns(loss)
    result = fedshed.optimize(Federation.from_arrays(X, y, SITES), loss=loss, l2=0.0, intercept=True)
    assert result.converged, result.reason


def test_counts_that_are_all_zero_have_no_optimum():
    X, *_ = columns("poisson")
    result = fedshed.optimize(Federation.from_arrays(X, np.zeros(600), SITES), loss="poisson", intercept=True)
    assert not result.converged
    assert "intercept" in result.reason


# --- the start ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", FAMILIES)
def test_the_null_start_is_the_optimum_without_columns(loss):
    """One exchange of sums; with offsets the log odds have no closed form, so logistic has none here."""
    X, y, weights, offset = columns(loss)
    offset = None if loss == "logistic" else offset
    federation = Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset)
    alone = Federation.from_arrays(0 * X[:, :1], y, SITES, sample_weight=weights, offset=offset)
    run = {"loss": loss, "intercept": True, "algorithm": "newton", "theta0": "null"}
    start = fedshed.optimize(federation, l2=1.0, max_iterations=0, **run)
    null, _ = fedshed.optimum(alone, loss=loss, l2=1.0, intercept=True)
    contrasts = 2 if loss == "multinomial" else 1
    np.testing.assert_allclose(start.theta.reshape(contrasts, 5)[:, 4], null.reshape(contrasts, 2)[:, 1])
    assert not start.theta.reshape(contrasts, 5)[:, :4].any()
    assert start.trace[0].exchanges == 2  # the sums, and the gradient there
    assert fedshed.optimize(federation, l2=1.0, **run).converged


def test_a_null_start_needs_an_intercept():
    X, y, *_ = columns("poisson")
    for options in ({"theta0": "null"}, {"theta0": "zero", "intercept": True}):
        with pytest.raises(ConfigError, match='give numbers, or "null" with intercept=True'):
            fedshed.optimize(Federation.from_arrays(X, y), loss="poisson", **options)
