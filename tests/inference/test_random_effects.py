"""Combined estimates of several sites: statsmodels, direct maximisation, and a published trial."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from against_r import R
from fedshed.inference.random_effects import (
    cochran,
    combine,
    dersimonian_laird,
    paule_mandel,
    reml,
    restricted_likelihood,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from statsmodels.stats.meta_analysis import combine_effects

# Vaccinated with and without tuberculosis, controls with and without (Colditz et al. 1994, JAMA 271, 698).
BCG = np.array([
    [4, 119, 11, 128], [6, 300, 29, 274], [3, 228, 11, 209], [62, 13536, 248, 12619], [33, 5036, 47, 5761],
    [180, 1361, 372, 1079], [8, 2537, 10, 619], [505, 87886, 499, 87892], [29, 7470, 45, 7232],
    [17, 1699, 65, 1600], [186, 50448, 141, 27197], [5, 2493, 3, 2338], [27, 16886, 29, 17825],
], dtype=float)  # fmt: skip


def bcg():
    """Log risk ratios and their variances."""
    a, b, c, d = BCG.T
    return np.log(a / (a + b) / (c / (c + d))), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)


def drawn(seed, k=7, tau=1.0):
    """Estimates that differ by so much that statsmodels, which does not stop at 0, has tau^2 > 0 too."""
    rng = np.random.default_rng(seed)
    v = rng.uniform(0.01, 1.0, k) ** 2
    return rng.normal(0.3, np.sqrt(v + tau**2)), v


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("method", "theirs"), [("dl", "dl"), ("pm", "iterated")])
def test_statsmodels_combines_alike(seed, method, theirs):
    y, v = drawn(seed)
    more = {"atol": 1e-12, "maxiter": 1000} if theirs == "iterated" else {}
    them = combine_effects(y, v, method_re=theirs, use_t=False, **more)
    fixed, ours = combine(y, v, "fixed"), combine(y, v, method, "normal")
    np.testing.assert_allclose(ours.tau2, them.tau2, rtol=1e-7, atol=1e-12)
    frame = them.summary_frame()
    for row, found in (("fixed effect", fixed), ("random effect", ours)):
        expected = frame.loc[row, ["eff", "sd_eff", "ci_low", "ci_upp"]].to_numpy(dtype=float)
        np.testing.assert_allclose(
            [found.estimate, found.std_err, found.low, found.high], expected, rtol=1e-7
        )
    np.testing.assert_allclose(ours.q, them.q, rtol=1e-10)
    np.testing.assert_allclose(ours.p_heterogeneity, them.test_homogeneity().pvalue, rtol=1e-8)
    np.testing.assert_allclose(fixed.i2, max(0.0, them.i2), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_hartung_and_knapp_as_statsmodels_have_it(seed):
    y, v = drawn(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # single sites have normal intervals, which are not looked at
        frame = combine_effects(y, v, method_re="dl", use_t=True).summary_frame()
    ours = combine(y, v, "dl")
    expected = frame.loc["random effect wls", ["eff", "sd_eff", "ci_low", "ci_upp"]].to_numpy(dtype=float)
    np.testing.assert_allclose([ours.estimate, ours.std_err, ours.low, ours.high], expected, rtol=1e-8)


@pytest.mark.parametrize("seed", range(8))
def test_reml_is_the_maximum_of_the_restricted_likelihood(seed):
    y, v = drawn(seed, k=3 + seed, tau=0.1 * seed)
    found = reml(y, v)
    best = restricted_likelihood(found, y, v)
    best_of_grid = max(restricted_likelihood(tau2, y, v) for tau2 in np.linspace(0, 5, 20001))
    assert best >= best_of_grid - 1e-12
    if found > 0:
        near = minimize_scalar(
            lambda t: -restricted_likelihood(t, y, v), bracket=(found / 2, found, 2 * found), tol=1e-14
        )
        np.testing.assert_allclose(found, near.x, rtol=1e-6)


def test_the_bcg_trials_as_published():
    """R metafor's vignette: tau^2 0.3132 (REML) and 0.3088 (DL), estimate -0.7145, Q 152.2330."""
    y, v = bcg()
    found = combine(y, v, "reml", "normal")
    assert f"{found.tau2:.4f}" == "0.3132"
    assert f"{found.estimate:.4f}" == "-0.7145"
    assert f"{found.std_err:.4f}" == "0.1798"
    assert f"{found.low:.4f} {found.high:.4f}" == "-1.0669 -0.3622"
    assert f"{found.q:.4f}" == "152.2330"
    assert f"{dersimonian_laird(y, v):.4f}" == "0.3088"


@pytest.mark.parametrize("name", ["meta_bcg", "meta_normand"])
@pytest.mark.parametrize("method", ["REML", "DL", "PM"])
def test_i2_belongs_to_the_tau2_beside_it_as_in_metafor(name, method):
    theirs = R[name]
    found = combine(np.array(theirs["yi"]), np.array(theirs["vi"]), method.lower())
    np.testing.assert_allclose(found.tau2, theirs[method]["tau2"], rtol=1e-4)  # metafor stops at 1e-5
    np.testing.assert_allclose(found.i2, theirs[method]["i2"], rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_paule_and_mandel_bring_q_to_its_expectation(seed):
    y, v = drawn(seed)
    assert cochran(y, v, paule_mandel(y, v)) == pytest.approx(len(y) - 1, rel=1e-9)


@pytest.mark.parametrize("method", ["fixed", "dl", "pm", "reml"])
def test_sites_that_agree_have_no_variance_between_them_and_one_site_none_at_all(method):
    y, v = np.full(4, 0.7), np.array([0.1, 0.2, 0.3, 5.0])
    found = combine(y, v, method)
    assert (found.tau2, found.i2) == (0, 0)
    assert found.estimate == pytest.approx(0.7)
    alone = combine(y[:1], v[:1], method, "normal")
    assert (alone.estimate, alone.std_err) == (pytest.approx(0.7), pytest.approx(np.sqrt(0.1)))
    assert np.isnan([alone.p_heterogeneity, alone.low_new]).all()
