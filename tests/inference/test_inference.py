"""Statistics over sites against statsmodels on the pooled rows, and against dense algebra."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import scipy.sparse
import statsmodels.api as sm
from msgspec.structs import replace
from scipy.special import softmax
from sklearn.datasets import load_digits

import fedshed
from embedded import embedded
from fedshed import ConfigError, Federation, ProtocolError
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.exchange.sites import LocalSites
from fedshed.inference import FewSitesWarning, Inference, infer, per_class, reference_class
from fedshed.objectives import contrasts, local_objectives
from fedshed.protocol.conversation import Problem
from fedshed.solve.inspection import Inspect, Inspection
from fedshed.solve.stages import inspect
from inference_problems import FAMILIES, LOSSES, SITES, claims, codes, fitted, made, pooled


def agrees(ours: Inference, theirs) -> None:
    """Every figure that both report."""
    np.testing.assert_allclose(ours.coef, theirs.params, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(ours.std_err(), theirs.bse, rtol=1e-6)
    errors = np.outer(ours.std_err(), ours.std_err())
    np.testing.assert_allclose(ours.covariance() / errors, theirs.cov_params() / errors, atol=1e-6)
    np.testing.assert_allclose(ours.p_values(distribution="normal"), theirs.pvalues, rtol=1e-5, atol=1e-300)
    np.testing.assert_allclose(
        ours.conf_int(0.9, distribution="normal"), theirs.conf_int(0.1), rtol=1e-6, atol=1e-9
    )
    for name in ("deviance", "null_deviance"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8)
    np.testing.assert_allclose(ours.pearson, theirs.pearson_chi2, rtol=1e-7)
    np.testing.assert_allclose([ours.dispersion, ours.df_resid], [theirs.scale, theirs.df_resid], rtol=1e-8)
    np.testing.assert_allclose([ours.log_likelihood, ours.aic], [theirs.llf, theirs.aic], rtol=1e-8)
    if ours.mcfadden is not None:
        np.testing.assert_allclose(ours.mcfadden, theirs.pseudo_rsquared("mcf"), rtol=1e-7)


EMBEDDED = [
    ("hospitals", "logistic"),
    ("marriages", "logistic"),
    ("visits", "poisson"),
    ("stays", "gamma"),
    ("firms", "least-squares"),
]
LARGER = [
    ("heart", "logistic"),
    ("medpar", "poisson"),
    ("medpar", "gamma"),
    ("contraception", "logistic"),
    ("exam", "least-squares"),
    ("fremtpl2", "poisson"),
]


def cases():
    """Embedded tables for everybody, and the larger data where they are."""
    yield from (pytest.param((embedded, *case), id="-".join(case)) for case in EMBEDDED)
    for name, loss in LARGER:
        load = (lambda _: claims()) if name == "fremtpl2" else fedshed.datasets.load
        yield pytest.param((load, name, loss), marks=pytest.mark.data(name), id=f"{name}-{loss}")


@pytest.fixture(scope="module", params=cases())
def real(request):
    """A real data set in its own sites, with our inference and theirs."""
    load, name, loss = request.param
    federation = load(name)
    return federation, loss, fitted(federation, loss)[2]


def clustered(it):
    """Robust errors, also of coefficients that too few sites inform for one to be shown."""
    return np.sqrt(np.diag(it.covariance(robust=True)))


def test_real_data_agree_with_statsmodels_on_the_pooled_rows(real):
    federation, loss, ours = real
    agrees(ours, pooled(federation, loss))


def test_robust_errors_are_those_of_statsmodels_clustered_by_site(real):
    federation, loss, ours = real
    theirs = pooled(federation, loss, cov_type="cluster", cov_kwds={"groups": codes(federation)})
    if len(federation.sites) < 10:
        with pytest.warns(FewSitesWarning, match=f"{len(federation.sites)} sites are few"):
            errors = clustered(ours)
    else:
        errors = clustered(ours)
    np.testing.assert_allclose(errors, theirs.bse, rtol=1e-6)


def test_r_squared_is_that_of_ordinary_least_squares():
    federation = embedded("firms")
    ours = fitted(federation, "least-squares")[2]
    table = federation.pooled()
    theirs = sm.OLS(table.y, np.column_stack([table.X, np.ones(len(table.y))])).fit()
    np.testing.assert_allclose(ours.std_err(), theirs.bse, rtol=1e-8)
    np.testing.assert_allclose(ours.deviance_explained, theirs.rsquared, rtol=1e-9)
    np.testing.assert_allclose([ours.log_likelihood, ours.aic], [theirs.llf, theirs.aic], rtol=1e-10)


@pytest.mark.parametrize("loss", FAMILIES)
def test_weights_and_offsets_agree_with_statsmodels(loss):
    X, y, weights, offset = made(loss)
    federation = Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset)
    agrees(fitted(federation, loss)[2], pooled(federation, loss))


def parties():
    """Voters by party, in four classes from strong Democrats to strong Republicans."""
    voters = embedded("voters")
    return Federation.from_sites({site: (table.X, table.y // 2) for site, table in voters.tables.items()})


def test_multinomial_agrees_with_statsmodels_mnlogit_against_a_reference_class():
    federation = parties()
    ours = fitted(federation, "multinomial")[2]
    table = federation.pooled()
    X = np.column_stack([table.X, np.ones(len(table.y))])
    theirs = sm.MNLogit(table.y, X).fit(method="newton", disp=0, maxiter=100, tol=1e-12)
    classes, columns = np.unique(table.y).tolist(), [*federation.columns, "intercept"]
    coded = reference_class(ours, classes, columns)
    np.testing.assert_allclose(coded.coef, theirs.params.T.ravel(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(coded.std_err(), theirs.bse.T.ravel(), rtol=1e-6)
    np.testing.assert_allclose(
        [ours.log_likelihood, ours.aic, ours.mcfadden], [theirs.llf, theirs.aic, theirs.prsquared], rtol=1e-8
    )
    robust = sm.MNLogit(table.y, X).fit(
        method="newton", disp=0, maxiter=100, tol=1e-12,
        cov_type="cluster", cov_kwds={"groups": codes(federation)},
    )  # fmt: skip
    with pytest.warns(FewSitesWarning, match="7 sites are few"):
        errors = clustered(coded)
    np.testing.assert_allclose(errors, robust.bse.T.ravel(), rtol=1e-6)


def test_classes_sum_to_zero_and_their_differences_are_the_reference_coding():
    federation = parties()
    ours = fitted(federation, "multinomial")[2]
    classes, columns = [0, 1, 2, 3], [*federation.columns, "intercept"]
    every = per_class(ours, classes, columns)
    assert len(every.names) == 4 * len(columns)
    over_classes = np.kron(np.ones((1, 4)), np.eye(len(columns)))
    np.testing.assert_allclose(over_classes @ every.coef, 0, atol=1e-12)
    np.testing.assert_allclose(over_classes @ every.covariance() @ over_classes.T, 0, atol=1e-12)
    against = np.kron([[1.0, 0, -1, 0], [0, 1, -1, 0], [0, 0, -1, 1]], np.eye(len(columns)))
    third = reference_class(ours, classes, columns, reference=2)
    np.testing.assert_allclose(against @ every.coef, third.coef, atol=1e-12)
    np.testing.assert_allclose(against @ every.covariance() @ against.T, third.covariance(), atol=1e-12)
    assert third.names[0].endswith("[0]")


def test_digits_with_a_ridge_agree_with_dense_algebra():
    """H_l2^-1 H_0 H_l2^-1 of the ten classes, from the probabilities of the pooled rows."""
    X, y = load_digits(return_X_y=True)
    X, y, l2 = X[:500] / 16, y[:500], 1e-3
    federation = Federation.from_arrays(X, y, np.repeat(["a", "b", "c"], [20, 80, 400]))
    theta, problem, ours = fitted(federation, "multinomial", l2)
    X, Q = np.column_stack([X, np.ones(len(y))]), contrasts(10)
    P = softmax(X @ theta.reshape(9, -1).T @ Q.T, axis=1)
    blocks = [[X.T @ (X * (P * Q[:, a] * Q[:, b]).sum(1)[:, None]) for b in range(9)] for a in range(9)]
    means = P @ Q
    rows = (means[:, :, None] * X[:, None, :]).reshape(len(y), -1)
    H0 = np.block(blocks) - rows.T @ rows
    A = np.linalg.inv(H0 + len(y) * np.diag(problem.l2))
    np.testing.assert_allclose(ours.covariance(), A @ H0 @ A, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.parameters, np.trace(A @ H0), rtol=1e-8)
    np.testing.assert_allclose(ours.deviance, -2 * np.log(P[np.arange(len(y)), y]).sum(), rtol=1e-10)


@pytest.mark.parametrize("loss", FAMILIES)
def test_a_ridge_is_in_both_covariances(loss):
    """Against sandwiches of the pooled rows; the cluster's scores take their share of the ridge."""
    X, y, weights, offset = made(loss)
    federation = Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset)
    theta, problem, ours = fitted(federation, loss, l2=0.01)
    model, W = pooled(federation, loss).model, weights.sum()
    ridge = W * np.diag(problem.l2)
    H0 = -model.hessian(theta, scale=1.0, observed=False)
    A = np.linalg.inv(H0 + ridge)
    expected = ours.dispersion * A @ H0 @ A
    np.testing.assert_allclose(ours.covariance(), expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())
    scores = model.score_obs(theta, scale=1.0) - weights[:, None] * (problem.l2 * theta)
    S = np.array([scores[codes(federation) == i].sum(axis=0) for i in range(4)])
    B = np.linalg.inv(-model.hessian(theta, scale=1.0, observed=True) + ridge)
    expected = B @ S.T @ S @ B * 4 / 3 * (W - 1) / (W - np.trace(A @ H0))
    with pytest.warns(FewSitesWarning):
        robust = ours.covariance(robust=True)
    np.testing.assert_allclose(robust, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


def test_ridge_errors_are_those_of_repeated_samples():
    """The standard deviation of the ridge estimate over new responses, to the error of 2000 of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    federation = Federation.from_arrays(X, X @ [1.0, 2.0, -1.0] + rng.normal(size=80), SITES[150:230])
    _, problem, ours = fitted(federation, "least-squares", l2=0.3)
    full = np.column_stack([X, np.ones(80)])
    Y = (X @ [1.0, 2.0, -1.0])[:, None] + np.sqrt(ours.dispersion) * rng.normal(size=(80, 2000))
    estimates = np.linalg.solve(full.T @ full + 80 * np.diag(problem.l2), full.T @ Y)
    np.testing.assert_allclose(estimates.std(axis=1), ours.std_err(), rtol=4 / np.sqrt(2 * 2000))


# --- what must not matter ---------------------------------------------------------------------------------


def figures(it: Inference):
    """All that pooled rows determine."""
    names = (
        "dispersion",
        "weight",
        "df_resid",
        "deviance",
        "null_deviance",
        "pearson",
        "log_likelihood",
        "aic",
    )
    return np.concatenate([it.coef, it.covariance().ravel(), [getattr(it, name) for name in names]])


@pytest.mark.parametrize("loss", LOSSES)
def test_splitting_sites_changes_nothing_but_robust_errors_and_the_reports(loss):
    X, y, weights, offset = made(loss)
    one = Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset)
    finer = np.char.add(SITES, (np.arange(300) % 7).astype(str))
    many = Federation.from_arrays(X, y, finer, sample_weight=weights, offset=offset)
    theta, problem, few = fitted(one, loss)
    objectives = local_objectives(many, loss, intercept=True)
    problem = replace(problem, weights={i: o.weight for i, o in objectives.items()})
    split = infer(LocalSites(objectives), problem, theta, "frequency")
    np.testing.assert_allclose(figures(split), figures(few), rtol=1e-9, atol=1e-14)
    with pytest.warns(FewSitesWarning):
        coarse = clustered(few)
    assert np.abs(clustered(split) / coarse - 1).min() > 1e-3


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_of_two_is_the_row_twice(loss):
    X, y, weights, offset = made(loss)
    times = weights.astype(int)
    weighted = Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset)
    repeated = Federation.from_arrays(
        np.repeat(X, times, axis=0), np.repeat(y, times), np.repeat(SITES, times),
        offset=None if offset is None else np.repeat(offset, times),
    )  # fmt: skip
    one, two = fitted(weighted, loss, 1e-3)[2], fitted(repeated, loss, 1e-3)[2]
    np.testing.assert_allclose(figures(one), figures(two), rtol=1e-7, atol=1e-12)
    with pytest.warns(FewSitesWarning):
        np.testing.assert_allclose(clustered(one), clustered(two), rtol=1e-7)
    assert one.heterogeneity.df == two.heterogeneity.df
    np.testing.assert_allclose(one.heterogeneity.statistic, two.heterogeneity.statistic, rtol=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
def test_any_transport_gives_the_same_inference(loss):
    X, y, weights, offset = made(loss)
    federation = Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset)

    def faulty(sites):
        return Faulty(InProcess(sites), seed=1, lose=0.3, delay=0.2, repeat=0.2, forget=0.2)

    calm = fitted(federation, loss)[2]
    assert fitted(federation, loss, connect=Stateless)[2] == calm
    shaken = fitted(federation, loss, connect=faulty)[2]
    assert shaken.traffic.exchanges > calm.traffic.exchanges
    bare = replace(shaken, traffic=calm.traffic, null_deviance=calm.null_deviance)
    assert bare == calm
    np.testing.assert_allclose(shaken.null_deviance, calm.null_deviance, rtol=1e-10)


@pytest.mark.parametrize("loss", FAMILIES)
def test_standardised_columns_give_the_same_errors_on_the_original_scale(loss):
    X, y, weights, offset = made(loss)
    mean, scale = X.mean(axis=0), X.std(axis=0)
    raw, unit = (
        Federation.from_arrays(Z, y, SITES, sample_weight=weights, offset=offset)
        for Z in (X, (X - mean) / scale)
    )
    A = np.diag(np.append(1 / scale, 1.0))
    A[-1, :-1] = -mean / scale
    one, two = fitted(raw, loss)[2], fitted(unit, loss)[2]
    two = two.transformed(A, one.names)
    np.testing.assert_allclose(two.std_err(), one.std_err(), rtol=1e-8)
    with pytest.warns(FewSitesWarning):
        np.testing.assert_allclose(clustered(two), clustered(one), rtol=1e-7)
    np.testing.assert_allclose(two.heterogeneity.statistic, one.heterogeneity.statistic, rtol=1e-7)


# --- the exchange, its result, and its borders --------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_one_exchange_carries_a_gradient_and_a_packed_matrix_from_each_site(loss):
    X, y, weights, offset = made(loss)
    federation = Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset)
    theta, problem, _ = fitted(federation, loss)
    objectives = local_objectives(federation, loss, intercept=True)
    answers, traffic = inspect(LocalSites(objectives), problem, theta)
    n = len(theta)
    matrices = 2 if loss == "gamma" else 1  # the expected information is not the Hessian
    assert list(answers) == list(federation.sites)
    assert (traffic.exchanges, traffic.hessians) == (1, 4)
    assert traffic.uplink_vectors == pytest.approx(4 * (1 + matrices * (n + 1) / 2))
    assert traffic.uplink_bytes < 4 * (8 * n * (1 + matrices * (n + 1) / 2) + 120)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_null_model_costs_one_more_exchange_where_it_has_a_closed_form(loss):
    X, y, weights, offset = made(loss)
    ours = fitted(Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset), loss)[2]
    assert (ours.traffic.exchanges == 2) == (loss != "logistic")  # whose offsets leave it none
    assert ours.traffic.exchanges <= 5


@pytest.mark.parametrize("loss", LOSSES)
def test_sparse_rows_give_what_dense_ones_give(loss):
    X, y, weights, offset = made(loss)
    X[X < 0] = 0.0
    dense, sparse = (
        fitted(Federation.from_arrays(Z, y, SITES, sample_weight=weights, offset=offset), loss)[2]
        for Z in (X, scipy.sparse.csr_array(X))
    )
    np.testing.assert_allclose(figures(sparse), figures(dense), rtol=1e-8, atol=1e-13)
    np.testing.assert_allclose(sparse.heterogeneity.statistic, dense.heterogeneity.statistic, rtol=1e-8)


def test_an_answer_of_another_kind_is_refused():
    federation = Federation.from_arrays(*made("logistic")[:2], SITES)
    theta, problem, _ = fitted(federation, "logistic")
    objectives = local_objectives(federation, "logistic", intercept=True)

    class Echo(Inspection, frozen=True, tag=True):
        def respond(self, agent, cache, part, own_part):
            return cache, Inspect(part.theta)

    class Echoing(LocalSites):
        def open(self, stage):
            return super().open(replace(stage, conversation=Echo()))

    with pytest.raises(ProtocolError, match="answered Inspect with"):
        inspect(Echoing(objectives), problem, theta)


@pytest.mark.parametrize("loss", LOSSES)
def test_json_holds_an_inference_to_the_last_bit(loss):
    X, y, weights, offset = made(loss)
    ours = fitted(Federation.from_arrays(X, y, SITES, sample_weight=weights, offset=offset), loss)[2]
    assert msgspec.json.decode(msgspec.json.encode(ours), type=Inference) == ours


def test_the_certificate_says_how_far_theta_is():
    X, y, *_ = made("gamma")
    federation = Federation.from_arrays(X / X.std(axis=0), y, SITES)
    theta, problem, best = fitted(federation, "gamma")
    objectives = local_objectives(federation, "gamma", intercept=True)

    def cost(at):
        return sum(problem.p[i] * objectives[i].at(at).value for i in problem.agents)

    off = theta + 1e-3
    certificate = infer(LocalSites(objectives), problem, off).certificate
    assert best.certificate.grad_norm < 1e-10
    assert certificate.bound is None
    np.testing.assert_allclose(certificate.estimate, cost(off) - cost(theta), rtol=0.01)
    ridge = replace(problem, l2=np.full(4, 0.1))
    certificate = infer(LocalSites(objectives), ridge, theta).certificate
    assert certificate.estimate < certificate.bound == pytest.approx(certificate.grad_norm**2 / 0.2)


def test_as_many_coefficients_as_rows_leave_no_errors_and_say_so():
    rng = np.random.default_rng(0)
    ours = fitted(
        Federation.from_arrays(rng.normal(size=(4, 3)), rng.normal(size=4), list("aabb")), "least-squares"
    )[2]
    assert ours.dispersion is None
    assert np.isnan(ours.std_err()).all()
    assert "leave no degrees of freedom" in ours.notes[0]
    assert ours.heterogeneity.p_value is None


def test_a_singular_information_is_named_and_not_inverted():
    X, y, *_ = made("poisson")
    X[:, 2] = X[:, 0]
    federation = Federation.from_arrays(X, y, SITES)
    objectives = local_objectives(federation, "poisson", intercept=True)
    problem = Problem(np.zeros(4), {i: o.weight for i, o in objectives.items()}, "poisson", tuple("abcd"))
    ours = infer(LocalSites(objectives), problem, np.zeros(4))
    assert np.isnan(ours.std_err()).all()
    assert len(ours.notes) == 1
    assert "a, c are collinear" in ours.notes[0]
    assert ours.deviance > 0


def test_robust_errors_of_one_site_are_refused():
    X, y, *_ = made("poisson")
    ours = fitted(Federation.from_arrays(X, y), "poisson")[2]
    with pytest.raises(ConfigError, match="at least two sites"):
        ours.std_err(robust=True)
    assert ours.heterogeneity.df == 0
    with pytest.raises(ConfigError, match="2 x 4, not 2 x 3"):
        ours.transformed(np.ones((2, 3)), ["a", "b"])
    with pytest.raises(ConfigError, match="level must lie between 0 and 1"):
        ours.conf_int(95)
