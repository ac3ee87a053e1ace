"""Agents on a device give what they give here, to rounding.

The device is one of array_api_strict's that is not its default: it refuses to mix devices, and knows no
function that the standard does not.  FEDSHED_DEVICE=torch:cuda runs the same tests on a GPU.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from benchmarks import gpu
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.sparse import csr_array

import fedshed
from fedshed import ConfigError, Federation
from fedshed.algorithms.qn_shed import QnShed
from fedshed.exchange import InProcess
from fedshed.linalg import Automatic, Lanczos, Subspace, Textbook, Tridiagonal, leading
from fedshed.linalg.columns import Batched, narrowed
from fedshed.linalg.device import LIBRARIES, by_eigh, by_svd, device_named
from fedshed.linalg.rows import gram
from fedshed.objectives import LeastSquares, LinearModel, Poisson, batch, local_objectives
from fedshed.objectives.batch import on_device
from fedshed.tables import Table
from made_rows import FAMILIES, response

DEVICE = os.environ.get("FEDSHED_DEVICE", "array_api_strict:device1")
ROWWISE = [loss for loss in FAMILIES if loss != "multinomial"]
QUICK = settings(deadline=None, max_examples=30)


@pytest.fixture(autouse=True)
def _installed():
    for package in ("array_api_compat", DEVICE.partition(":")[0]):
        pytest.importorskip(package, reason=f"{package} is not installed (pip install 'fedshed[dev]')")


def made(loss, count, N, n, seed=0, beside=False, sparse=()):
    """Sites of one shape, some of them sparse."""
    rng = np.random.default_rng(seed)
    tables = {}
    for i in range(count):
        X = rng.normal(size=(N, n)) * np.geomspace(2, 0.1, n)
        y = response(loss, X.sum(axis=1) / n, rng)
        y[0] = ("yes", "no")[i % 2] if loss == "logistic" else y[0]
        extra = {"weights": rng.random(N) + 0.5} if beside else {}
        if beside and loss != "gamma":
            extra["offset"] = rng.normal(size=N)
        tables[f"s{i}"] = Table(csr_array(X) if i in sparse else X, y, **extra)
    return Federation.from_sites(tables)


def models_on_device(tables):
    """Least-squares models of given rows, on the device: a Hessian X'X/N that does not depend on theta."""
    models = {str(i): LeastSquares(X, np.zeros(len(X))) for i, X in enumerate(tables)}
    return list(on_device(models, device_named(DEVICE)).values())


@pytest.mark.parametrize("beside", [False, True], ids=["plain", "weights and offsets"])
@pytest.mark.parametrize("loss", ROWWISE)
def test_costs_gradients_and_searches_are_those_of_the_cpu(loss, beside):
    here = local_objectives(made(loss, 5, 30, 7, beside=beside), loss)
    there = on_device(here, device_named(DEVICE))
    rng = np.random.default_rng(1)
    theta, direction, etas = rng.normal(size=7) / 5, rng.normal(size=7), 0.5 ** np.arange(6)
    for i, model in here.items():
        one, other = model.at(theta), there[i].at(theta)
        np.testing.assert_allclose(other.value, one.value, rtol=1e-12)
        np.testing.assert_allclose(other.gradient, one.gradient, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(gram(other.factor), gram(one.factor), rtol=1e-12, atol=1e-14)
        for name in ("along", "slopes_along"):
            expected = getattr(model, name)(theta, direction, etas)
            found = getattr(there[i], name)(theta, direction, etas)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.fixture(params=[by_eigh, by_svd], ids=["eigh", "svd"], scope="module")
def _routine(request):
    """Eigenpairs by either routine, whichever the library would take."""
    name = DEVICE.partition(":")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LIBRARIES, name, replace(LIBRARIES[name], eigenpairs=request.param))
        yield


@pytest.mark.usefixtures("_routine")
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 10**6))
@QUICK
def test_eigenpairs_are_those_of_the_dense_textbook(count, N, n, rank, seed):
    """Whatever the rank, the shorter side, the columns in use and equal ones; n = 1 and one row included."""
    rng = np.random.default_rng(seed)
    tables = [rng.normal(size=(N, min(rank, n))) @ rng.normal(size=(min(rank, n), n)) for _ in range(count)]
    for X in tables:
        X[:, rng.random(n) < 0.2] = 0.0
        X[:, rng.integers(n)] = X[:, rng.integers(n)]
    for model in models_on_device(tables):
        point = model.at(np.zeros(n))
        found, expected = (
            leading(point.narrow, n, Automatic()),
            leading(narrowed(point.factor), n, Textbook()),
        )
        assert found.kernel == "Batched"
        assert (found.q, found.complete) == (expected.q, expected.complete)
        top = expected.spectrum[0]
        np.testing.assert_allclose(found.spectrum, expected.spectrum, atol=n * 4e-16 * top)
        np.testing.assert_array_equal(found.spectrum == 0, expected.spectrum == 0)
        V, values, rho = found.vectors, found.values[: found.q], found.values[-1]
        np.testing.assert_allclose(V @ V.T, np.eye(found.q), atol=1e-7)
        H = (V.T * (values - rho)) @ V + rho * np.eye(n)
        np.testing.assert_allclose(H, gram(point.factor), atol=1e-12 * max(top, 1e-300))


SHAPES = [(6, 6), (12, 6), (4, 9), (90, 40), (38, 60)]  # torch has another routine from 33 columns on


def hard_matrices(m, rng):
    """Full rank, rank 5, rank 0, a column not in use, all eigenvalues alike, a spectrum down to 1e-18."""
    full = rng.normal(size=(2 * m, m))
    low, zero, unused = full[:, :5] @ rng.normal(size=(5, m)), np.zeros((2 * m, m)), full.copy()
    unused[:, m // 2] = 0.0
    alike, falling = np.linalg.qr(full)[0], full * np.geomspace(1, 1e-9, m)
    F = np.stack([full, low, zero, unused, alike, falling, 1e140 * full, 1e-140 * full])
    return F.transpose(0, 2, 1) @ F


@pytest.mark.parametrize("m", [5, 33, 64])
def test_eigenpairs_of_many_matrices_by_either_routine(m):
    """S v = lambda v to rounding, an orthonormal basis, values as LAPACK finds them, falling."""
    S = hard_matrices(m, np.random.default_rng(0))
    device = device_named(DEVICE)
    size = np.maximum(np.abs(S).max(axis=(1, 2), keepdims=True), 1e-300)
    for found in (device.eigenpairs(device.asarray(S)), by_svd(device.xp, device.asarray(S))):
        values, V = map(device.host, found)
        np.testing.assert_allclose(V @ V.transpose(0, 2, 1) - np.eye(m), 0.0, atol=1e-13)
        residual = (S / size) @ V.transpose(0, 2, 1) - (values / size[:, 0])[:, None, :] * V.transpose(
            0, 2, 1
        )
        np.testing.assert_allclose(residual, 0.0, atol=m * 4e-15)
        np.testing.assert_allclose(values / size[:, 0], np.linalg.eigvalsh(S / size)[:, ::-1], atol=m * 1e-15)
        assert (np.diff(values / size[:, 0]) <= m * 1e-15).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_repeated_eigenvalues(shape):
    """A Hessian with one eigenvalue many times: an orthonormal basis, in part and in whole."""
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(max(shape), min(shape))))[0]
    X = Q if shape[0] >= shape[1] else Q.T
    for model in models_on_device([X, 3 * X]):
        point = model.at(np.zeros(shape[1]))
        first, whole = (leading(point.narrow, count, Automatic()) for count in (2, shape[1]))
        joined = first.followed_by(whole)
        np.testing.assert_allclose(joined.vectors @ joined.vectors.T, np.eye(joined.q), atol=1e-12)
        np.testing.assert_allclose(whole.values[: whole.q], gram(point.factor).trace() / min(shape))


def test_what_an_agent_gets_does_not_depend_on_what_others_asked_for():
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(3, 5, 8))
    quiet, busy = models_on_device(tables), models_on_device(tables)
    for count in (1, 2, 5):
        busy[0].at(np.zeros(8)).narrow.pairs(count)
    for one, other in zip(quiet, busy, strict=True):
        for a, b in zip(
            one.at(np.zeros(8)).narrow.pairs(2), other.at(np.zeros(8)).narrow.pairs(2), strict=True
        ):
            np.testing.assert_array_equal(a, b)
            assert len(a) == 2


@pytest.mark.parametrize("kernel", [Textbook(), Tridiagonal(), Subspace(), Lanczos()])
def test_a_kernel_of_ones_own_gets_the_factor(kernel):
    model = models_on_device([np.random.default_rng(0).normal(size=(80, 60)) * np.geomspace(1, 1e-4, 60)])[0]
    point = model.at(np.zeros(60))
    assert isinstance(point.narrow, Batched)
    found, expected = leading(point.narrow, 4, kernel), leading(narrowed(point.factor), 4, kernel)
    assert found.kernel == type(kernel).__name__
    np.testing.assert_array_equal(found.vectors, expected.vectors)


def test_an_agent_whose_numbers_overflow_does_not_spoil_the_others():
    X = np.random.default_rng(0).normal(size=(3, 10, 4))
    X[1] *= 1e4
    models = {str(i): Poisson(x, np.ones(10)) for i, x in enumerate(X)}
    with np.errstate(all="ignore"):
        points = [model.at(np.ones(4)) for model in on_device(models, device_named(DEVICE)).values()]
        with pytest.raises(FloatingPointError, match="not finite"):
            leading(points[1].narrow, 4, Automatic())
        for k in (0, 2):
            found = leading(points[k].narrow, 4, Automatic()).values
            np.testing.assert_allclose(found, np.linalg.eigvalsh(gram(points[k].factor))[::-1], rtol=1e-12)


EXACT_PAIRS = QnShed(kernel=Automatic())  # on a device all pairs are


@pytest.mark.parametrize("name", ["fib-shed", "qn-shed", "newton", "pen"])
def test_a_run_takes_the_same_iterations_to_the_same_theta(name):
    federation = fedshed.datasets.load("digits", agents=10, partition="iid", seed=0)
    algorithms = EXACT_PAIRS if name == "qn-shed" else name, name
    here, there = (
        fedshed.optimize(federation, algorithm=algorithm, l2=1e-3, tol=1e-9, device=device)
        for algorithm, device in zip(algorithms, (None, DEVICE), strict=True)
    )
    assert here.converged
    assert there.converged
    coded = name in ("qn-shed", "pen")  # what is coded may round otherwise, to about as many bytes
    assert abs(len(here.trace) - len(there.trace)) <= coded
    np.testing.assert_allclose(there.theta, here.theta, atol=1e-9 / 1e-3)  # tol / l2: what both promise
    if not coded:
        np.testing.assert_allclose(there.trace.column("f"), here.trace.column("f"), atol=1e-12)
        for column in ("uplink_bytes", "hessians", "q_max"):
            np.testing.assert_array_equal(there.trace.column(column), here.trace.column(column))


def test_nothing_of_a_run_is_computed_partly_here(monkeypatch):
    """The eigenpairs are the device's, and no agent forms its margins itself."""

    def forbidden(*_):
        raise AssertionError("an agent's product was computed here")

    monkeypatch.setattr(LinearModel, "linear", forbidden)
    kept = {}
    fedshed.optimize(
        made("logistic", 6, 30, 5), algorithm="fib-shed", l2=1e-2, device=DEVICE, max_iterations=4,
        transport=lambda sites: InProcess(kept.setdefault("sites", sites)),
    )  # fmt: skip
    assert {site.kernel for site in kept["sites"].values()} == {"Batched"}


def test_a_resumed_run_is_one_that_never_stopped(tmp_path):
    federation = made("logistic", 6, 12, 20)
    options = {"algorithm": "fib-shed", "l2": 1e-3, "device": DEVICE}
    whole = fedshed.optimize(federation, **options, max_iterations=12)
    fedshed.optimize(federation, **options, max_iterations=5, checkpoint=tmp_path / "run")
    resumed = fedshed.resume(tmp_path / "run", federation, max_iterations=12, device=DEVICE)
    np.testing.assert_array_equal(resumed.theta, whole.theta)


@pytest.mark.parametrize("algorithm", ["gn-shed", "qn-shed"])
def test_workers_change_nothing_and_parts_no_more_than_rounding(algorithm, monkeypatch):
    federation = made("poisson", 7, 20, 6)

    def run(workers):
        transport = lambda sites: InProcess(sites, workers=workers)  # noqa: E731
        return fedshed.optimize(
            federation, loss="poisson", algorithm=algorithm, l2=1e-3, device=DEVICE, transport=transport
        ).theta

    one = run(1)
    np.testing.assert_array_equal(run(3), one)
    monkeypatch.setattr(batch, "BYTES", 3 * batch._bytes(20, 6))
    np.testing.assert_allclose(run(1), one, rtol=1e-12)  # a GPU's products may depend on how many there are


def test_what_does_not_fit_stays_here_and_the_run_is_the_same(monkeypatch):
    """Sparse sites, odd ones and large ones beside those that are moved."""
    federation = made("logistic", 5, 30, 4, sparse=(1, 3))
    tables = dict(federation.tables)
    rng = np.random.default_rng(3)
    for name, rows in {"odd": 9, "large": 90}.items():
        X = rng.normal(size=(rows, 4))
        tables[name] = Table(X, response("logistic", X.sum(axis=1), rng))
    federation = Federation.from_sites(tables)
    monkeypatch.setattr(batch, "BYTES", 4 * batch._bytes(10, 4))
    moved = on_device(local_objectives(federation, "logistic"), device_named(DEVICE))
    there = [name for name, model in moved.items() if isinstance(model.at(np.zeros(4)).narrow, Batched)]
    assert there == ["odd", "s0", "s2", "s4"]
    here, mixed = (
        fedshed.optimize(federation, algorithm="fib-shed", l2=1e-3, device=d) for d in (None, DEVICE)
    )
    np.testing.assert_allclose(mixed.theta, here.theta, atol=1e-8)
    assert len(here.trace) == len(mixed.trace)


def test_multinomial_models_stay_here():
    federation = made("multinomial", 3, 60, 3)
    here, there = (
        fedshed.optimize(federation, loss="multinomial", algorithm="newton", l2=1e-3, device=device)
        for device in (None, DEVICE)
    )
    np.testing.assert_array_equal(there.theta, here.theta)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tourch:cuda", "did you mean 'torch'"),
        ("array_api_strict:attic", "attic"),
        (7, "unknown device 7"),
        ("", "known: array_api_strict, torch"),
    ],
)
def test_a_device_that_is_none_is_refused(name, says):
    with pytest.raises(ConfigError, match=says):
        fedshed.optimize(made("logistic", 2, 20, 3), device=name)


def test_a_library_that_is_not_installed_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr("fedshed.linalg.device.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs array_api_compat and torch: pip install 'fedshed\[gpu\]'"):
        device_named("torch:cuda")


def test_the_benchmark_runs_and_both_ways_agree(capsys):
    gpu.main(DEVICE, repeats=1, sizes=[(4, 5, 20)])
    *_, here, there = (line.split("|") for line in capsys.readouterr().out.splitlines())
    assert [here[2].strip(), there[2].strip()] == ["CPU", DEVICE]
    assert float(there[-2]) <= 1e-8
