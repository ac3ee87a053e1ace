"""Fast kernels change nothing that a run shows: the same rounds, bytes and theta as the textbook's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from msgspec.structs import replace

import fedshed
from conftest import make_federation
from fedshed.algorithms.qn_shed import QnShed
from fedshed.algorithms.renewal import GradientNorm
from fedshed.algorithms.shed import Shed
from fedshed.exchange import InProcess, Stateless
from fedshed.exchange.site import Site
from fedshed.linalg import Automatic, Lanczos, Subspace, Textbook, Tridiagonal
from fedshed.linalg import solve as solving
from fedshed.objectives import local_objectives
from fedshed.protocol.precision import Exact

SHEDS = [name for name, entry in fedshed.ALGORITHMS.items() if isinstance(entry.algorithm, Shed)]
# Another basis of an eigenspace rounds to other bits: q-shed has its own tests.
LOGISTIC = [
    name
    for name in SHEDS
    if fedshed.ALGORITHMS[name].algorithm.losses is None and not name.startswith("q-shed")
]


def few_columns():
    """Binary columns of which each site uses some, two of them equal; as w8a is, and made up."""
    rng = np.random.default_rng(0)
    odds, tables = np.geomspace(0.3, 0.01, 60), {}
    for site in "abcd":
        X = (rng.random((200, 60)) < odds).astype(float)
        X[:, 7] = X[:, 5]
        y = np.where(X[:, :20] @ rng.normal(size=20) + rng.logistic(size=200) > 0, 1, -1)
        tables[site] = (scipy.sparse.csr_array(X), y)
    return fedshed.Federation.from_sites(tables)


@pytest.fixture(
    scope="module", params=["digits", "few columns", pytest.param("w8a", marks=pytest.mark.data("w8a"))]
)
def federation(request):
    """Rows, dense and sparse: 64 columns of images, and binary ones of which each site uses some."""
    if request.param == "few columns":
        return few_columns()
    agents = 4 if request.param == "digits" else 40
    whole = fedshed.datasets.load(request.param, agents=agents, partition="iid")
    return fedshed.Federation.from_sites({s: whole.tables[s] for s in whole.sites[:4]})


def trace_of(federation, name, **parts):
    algorithm = replace(fedshed.ALGORITHMS[name].algorithm, **parts)
    result = fedshed.optimize(federation, algorithm=algorithm, l2=1e-3, tol=1e-10, max_iterations=25)
    rows = [(row.rounds, row.uplink_bytes, row.downlink_bytes, row.hessians, row.eta) for row in result.trace]
    return result.theta, rows


@pytest.mark.parametrize("name", LOGISTIC)
def test_the_trace_is_that_of_the_textbook_kernels(federation, name, monkeypatch):
    """QN-SHED with exact pairs too: its approximate ones are another algorithm."""
    exact = {"precision": Exact()} if name.startswith("qn-shed") else {}
    theta, rows = trace_of(federation, name, kernel=Automatic(), **exact)
    monkeypatch.setattr(solving.LowRankPlusDiagonal, "method", "dense")
    expected, textbook = trace_of(federation, name, kernel=Textbook(), **exact)
    assert rows == textbook
    np.testing.assert_allclose(theta, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", [Subspace(), Lanczos()], ids=lambda kernel: type(kernel).__name__)
def test_other_kernels_reach_the_same_optimum_in_about_as_many_rounds(federation, kernel):
    theta, rows = trace_of(federation, "qn-shed", kernel=kernel)
    expected, textbook = trace_of(federation, "qn-shed", kernel=Textbook())
    assert len(rows) <= 1.25 * len(textbook) + 2
    np.testing.assert_allclose(theta, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", [Tridiagonal(), Subspace(), Automatic()], ids=lambda k: type(k).__name__)
def test_agents_that_forget_draw_the_same_bits_however_often_pairs_were_extended(kernel):
    """Where renewals wait for the gradient nobody knows how many pairs will be asked for."""
    federation = make_federation("logistic", n=48, sizes={"a": 30, "b": 200})
    algorithm = Shed(
        renewal=GradientNorm(b=-1e9), kernel=replace_look_ahead(kernel), channel=fedshed.Constant(2)
    )
    here, there = (
        fedshed.optimize(federation, algorithm=algorithm, l2=1e-2, max_iterations=30, transport=transport)
        for transport in (InProcess, Stateless)
    )
    assert np.array_equal(here.theta, there.theta)
    assert here.trace[-1].q_max > 4
    assert [row.uplink_bytes for row in here.trace] == [row.uplink_bytes for row in there.trace]
    assert here.trace[-1].hessians == 1  # drawn from again, but taken once


def replace_look_ahead(kernel):
    """The same kernel, which looks ahead one round: pairs must be extended again and again."""

    class Short(type(kernel), frozen=True):
        look_ahead = 1

    return Short()


def test_the_kernel_is_seen_in_the_agents_cache():
    federation = make_federation("logistic", n=80, sizes={"a": 300})
    objective = local_objectives(federation, "logistic")["a"]
    seen = []
    for algorithm in (Shed(), QnShed(), Shed(kernel=Lanczos())):
        transport = InProcess({"a": Site("a", objective, algorithm)})
        fedshed.optimize(
            federation, algorithm=algorithm, max_iterations=2, transport=lambda _, t=transport: t
        )
        seen.append(transport.sites["a"].kernel)
    assert seen == ["Tridiagonal", "Subspace", "Lanczos"]


def test_a_resumed_run_solves_with_the_same_near_factor(tmp_path, monkeypatch):
    """Conjugate gradients at the Master: the same rounds as dense, and bit for bit the same after a stop."""
    monkeypatch.setattr(solving, "MANY_COLUMNS", 10)
    federation = make_federation("logistic", n=12, sizes={f"agent-{i}": 40 for i in range(6)})
    options = {"algorithm": "fib-shed", "l2": 1e-3, "tol": 1e-10}
    never = fedshed.optimize(federation, **options)
    fedshed.optimize(federation, **options, max_iterations=9, checkpoint=tmp_path / "run.ckpt")
    resumed = fedshed.resume(tmp_path / "run.ckpt", federation, max_iterations=500)
    assert np.array_equal(resumed.theta, never.theta)
    monkeypatch.setattr(solving, "MANY_COLUMNS", 10**9)
    dense = fedshed.optimize(federation, **options)
    assert not np.array_equal(dense.theta, never.theta), "conjugate gradients were not used"
    assert len(dense.trace) == len(never.trace)
    np.testing.assert_allclose(dense.theta, never.theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("workers", [2, 5])
def test_any_number_of_workers_gives_the_same_bits(workers):
    federation = make_federation("logistic", n=20, sizes={f"agent-{i}": 30 + i for i in range(12)})
    one, many = (
        fedshed.optimize(
            federation, algorithm="qn-shed", l2=1e-3, transport=lambda s, w=w: InProcess(s, workers=w)
        )
        for w in (1, workers)
    )
    assert np.array_equal(one.theta, many.theta)
    assert [row.uplink_bytes for row in one.trace] == [row.uplink_bytes for row in many.trace]


def test_there_is_at_least_one_worker():
    with pytest.raises(fedshed.ConfigError, match="workers"):
        InProcess({}, workers=0)


def test_the_trace_says_which_kernels_were_used():
    rng = np.random.default_rng(0)
    sites = {f"s{i}": (rng.normal(size=(60, 40)), rng.random(60) < 0.5) for i in range(3)}
    federation = fedshed.Federation.from_sites({**sites, "small": (np.eye(40)[:9], np.arange(9) % 2)})

    def used(algorithm):
        return fedshed.optimize(federation, algorithm=algorithm, l2=1e-2, max_iterations=3).trace.kernels

    assert used("fib-shed") == {"Tridiagonal": 4}
    assert used(Shed(kernel=Textbook())) == {"Textbook": 4}
    assert used("lbfgs") == {}
