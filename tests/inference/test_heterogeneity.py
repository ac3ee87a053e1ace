"""The score test of heterogeneity: that of a model with a theta for each site, and its distribution."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from scipy.stats import kstest

import fedshed
from fedshed import Federation
from fedshed.exchange.sites import LocalSites
from fedshed.inference.covariance import Curvatures
from fedshed.inference.heterogeneity import excess, score_test, site_tests
from fedshed.linalg.solve import inverse_root
from fedshed.solve.optimize import build_problem
from fedshed.solve.site_scores import whitened
from fedshed.solve.stages import inspect
from inference_problems import FAMILIES, LOSSES, SITES, codes, fitted, made, pooled


def omitted(model, codes, sites):
    """Columns of these sites alone, as many as add to the rank of the pooled design."""
    own = np.hstack([model.exog * (codes == i)[:, None] for i in sites])
    scale = np.linalg.norm(model.exog, axis=0)
    basis = np.linalg.qr(model.exog / scale)[0]
    rest = own / np.tile(scale, len(sites))
    rest = rest - basis @ (basis.T @ rest)
    _, R, order = scipy.linalg.qr(rest, mode="economic", pivoting=True)
    rank = int((np.abs(np.diag(R)) > 1e-9).sum())
    return own[:, order[:rank]]


@pytest.mark.parametrize("loss", FAMILIES)
def test_the_statistic_is_the_score_test_of_the_interacted_model(loss):
    """statsmodels' test of every column by site, left out; a site of one row, one of three, others larger."""
    sites = np.repeat(["a", "b", "c", "d"], [1, 3, 96, 200])
    X, y, weights, offset = made(loss)
    federation = Federation.from_arrays(X, y, sites, sample_weight=weights, offset=offset)
    ours, theirs, of = fitted(federation, loss)[2], pooled(federation, loss), codes(federation)
    every = omitted(theirs.model, of, range(4))
    statistic, p, df = theirs.model.score_test(theirs.params, exog_extra=every, observed=False)
    assert ours.heterogeneity.df == df == 1 + 3 + 4 + 4 - 4
    np.testing.assert_allclose(ours.heterogeneity.statistic, statistic, rtol=1e-6)
    np.testing.assert_allclose(ours.heterogeneity.p_value, p, rtol=1e-5)
    parts = [site.contribution for site in ours.sites.values()]
    np.testing.assert_allclose(sum(parts), ours.heterogeneity.statistic, rtol=1e-12)


@pytest.mark.parametrize("loss", FAMILIES)
def test_the_test_of_one_site_is_that_of_its_own_columns_left_out(loss):
    sites = np.repeat(["a", "b", "c", "d"], [1, 3, 96, 200])
    X, y, weights, offset = made(loss)
    federation = Federation.from_arrays(X, y, sites, sample_weight=weights, offset=offset)
    ours, theirs, of = fitted(federation, loss)[2], pooled(federation, loss), codes(federation)
    for i, site in enumerate(federation.sites):
        extra = omitted(theirs.model, of, [i])
        statistic, p, df = theirs.model.score_test(theirs.params, exog_extra=extra, observed=False)
        score = ours.sites[site].score
        assert score.df == df == min((of == i).sum(), 4)
        np.testing.assert_allclose(
            [score.statistic, score.p_value], np.concatenate([statistic, p]), rtol=1e-5
        )


@pytest.mark.parametrize("loss", LOSSES)
def test_sites_of_one_row_make_it_the_goodness_of_fit_test_of_pearson(loss):
    """sum_i s_i' I_i^+ s_i = chi2 on N - n degrees of freedom, times K - 1 for classes."""
    X, y, _, offset = made(loss, rows=60)
    federation = Federation.from_arrays(X, y, np.arange(60), offset=offset)
    ours = fitted(federation, loss)[2]
    each = 2 if loss == "multinomial" else 1
    assert ours.heterogeneity.df == 60 * each - 4 * each
    np.testing.assert_allclose(ours.heterogeneity.statistic, ours.pearson / ours.dispersion, rtol=1e-8)


@pytest.mark.parametrize("loss", ["least-squares", "multinomial"])
def test_a_ridge_is_taken_out_of_the_scores(loss):
    """Exactly for least squares, whose scores are linear; to first order elsewhere."""
    X, y, weights, _ = made(loss)
    federation = Federation.from_arrays(X / X.std(axis=0), y, SITES, sample_weight=weights)
    free = fitted(federation, loss)[2]
    for l2, rtol in ((1e-4, 1e-3), (1e-2, 0.1)):
        ridge = fitted(federation, loss, l2=l2)[2]
        assert ridge.heterogeneity.df == free.heterogeneity.df
        scaled = ridge.heterogeneity.statistic * ridge.dispersion / free.dispersion
        exact = loss == "least-squares"
        np.testing.assert_allclose(scaled, free.heterogeneity.statistic, rtol=1e-9 if exact else rtol)


def test_levels_and_columns_that_a_site_lacks_cost_it_degrees_of_freedom():
    """A column that varies at one site only cannot differ between sites."""
    X, y, *_ = made("poisson")
    X[:, 2] = np.where(SITES == "d", X[:, 2], 0.0)
    X[:, 1] = np.where(SITES == "c", 7.0, X[:, 1])  # constant there: collinear with the intercept
    ours = fitted(Federation.from_arrays(X, y, SITES), "poisson")[2]
    assert [site.score.df for site in ours.sites.values()] == [1, 3, 2, 3]
    assert ours.heterogeneity.df == (1 + 3 + 2 + 4) - 4


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_the_inverse_root_whitens_whatever_the_units(rank):
    factor = np.random.default_rng(rank).normal(size=(rank, 4)) * [1.0, 1e6, 1e-6, 1.0]
    H = factor.T @ factor
    R = inverse_root(H)
    assert R.shape == (4, rank)
    np.testing.assert_allclose(R.T @ H @ R, np.eye(rank), atol=1e-9)
    np.testing.assert_allclose(H @ R @ R.T @ H, H, rtol=1e-9)


# --- its distribution -------------------------------------------------------------------------------------


def judged(federation, loss):
    """The test at the optimum, without the null model."""
    theta, _ = fedshed.optimum(federation, loss=loss, l2=0.0, intercept=True)
    objectives, problem = build_problem(federation, loss, 0.0, intercept=True)
    sites, _ = inspect(LocalSites(objectives), problem, theta)
    root = inverse_root(Curvatures(problem, sites).information)
    own = {i: whitened(site, excess(sites, root)) for i, site in sites.items()}
    statistic, ranks = sum(one.statistic for one in own.values()), sum(len(one.u) for one in own.values())
    return score_test(statistic, ranks, root, 1.0), site_tests(own, root, 1.0)


def drawn(loss, rng, shift):
    """Unequal sites with one truth, but for an intercept that `shift` moves at the middle site."""
    sites = np.repeat(["a", "b", "c"], [80, 150, 400])
    X = rng.normal(size=(630, 2)) + (sites == "a")[:, None]
    z = X @ [0.5, -0.3] + 0.2 + shift * (sites == "b")
    y = rng.poisson(np.exp(z)) if loss == "poisson" else rng.random(630) < 1 / (1 + np.exp(-z))
    return Federation.from_arrays(X, y.astype(float), sites)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_p_values_are_uniform_where_the_sites_are_alike(loss):
    rng = np.random.default_rng(0)
    tests = [judged(drawn(loss, rng, 0.0), loss) for _ in range(200)]
    assert kstest([whole.p_value for whole, *_ in tests], "uniform").pvalue > 0.01
    for site in "abc":
        assert kstest([each[site].p_value for _, each in tests], "uniform").pvalue > 0.01
    assert {whole.df for whole, *_ in tests} == {6}


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_a_site_with_another_intercept_is_found(loss):
    whole, each = judged(drawn(loss, np.random.default_rng(1), 1.0), loss)
    assert whole.p_value < 1e-4
    assert min(each, key=lambda i: each[i].p_value) == "b"
