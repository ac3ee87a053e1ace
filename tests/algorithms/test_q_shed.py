"""Q-SHED: bits are allocated as the derivation says, and vectors in any number of rounds are the same."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from conftest import make_federation
from fedshed import Exact, Fused
from fedshed.algorithms.rivals.q_shed import LocalRefined, QShed, Refine, Refinement
from fedshed.algorithms.rivals.q_shed_coding import (
    MOST_BITS,
    EqualBits,
    WaterFilling,
    allocation_error,
    fill_bits,
    planes,
    refine_cells,
    scales_of,
    unit_vectors,
    upright,
)
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.exchange.site import Site
from fedshed.linalg import leading_eigenpairs
from fedshed.objectives import local_objectives
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Update
from fedshed.solve.engine import Progress, iterate
from fedshed.solve.goal import Goal

L2 = 1e-3
QUICK = settings(deadline=None, max_examples=25)
NONE = np.zeros(0, dtype=np.int64)


def counts(*bits):
    return np.array(bits, dtype=np.int64)


def spectrum(n, seed):
    """Eigenvalues that fall by factors of their own."""
    return np.cumprod(np.random.default_rng(seed).uniform(0.2, 0.95, size=n))


def decoded(vectors, old, new, cells=None):
    cells = np.zeros(vectors.shape) if cells is None else cells
    return refine_cells(cells, planes(vectors, old, new), old, new)


# --- the allocation ---------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(0, 7))
@QUICK
def test_no_other_allocation_of_whole_bits_has_a_smaller_error(seed, total):
    """Every way to add `total` bits to three vectors, some of which were sent before."""
    rng = np.random.default_rng(seed)
    values, start = spectrum(5, seed), rng.integers(0, 4, size=3)
    best = allocation_error(values, fill_bits(values[:3] - values[3], start, total))
    for more in product(range(total + 1), repeat=3):
        if sum(more) == total:
            assert best <= allocation_error(values, start + counts(*more)) * (1 + 1e-12)


@given(st.integers(0, 10**6), st.integers(20, 60))
@QUICK
def test_bits_grow_with_the_logarithm_of_lambda_minus_rho(seed, total):
    """b_k - b_l = log2((lambda_k - rho)/(lambda_l - rho)) up to one bit, where neither is at a bound."""
    excess = spectrum(6, seed)
    bits = fill_bits(excess, np.zeros(6, dtype=np.int64), total)
    assert bits.sum() == total
    inner = (bits > 0) & (bits < MOST_BITS)
    level = bits[inner] - np.log2(excess[inner])
    assert np.ptp(level) <= 1 + 1e-12 if inner.any() else bits.max() == MOST_BITS


@given(st.integers(0, 10**6), st.integers(0, 30), st.integers(0, 30))
@QUICK
def test_bits_of_two_rounds_are_those_of_one(seed, first, second):
    excess, nothing = spectrum(6, seed), np.zeros(6, dtype=np.int64)
    twice = fill_bits(excess, fill_bits(excess, nothing, first), second)
    assert np.array_equal(twice, fill_bits(excess, nothing, first + second))


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 6))
@QUICK
def test_the_error_is_at_most_that_of_equal_bits(seed, width, vectors):
    values, total = spectrum(40, seed), width * vectors
    water, equal = (a(values, NONE, total, 39) for a in (WaterFilling(), EqualBits(width)))
    assert water.sum() <= total
    assert equal.tolist() == [width] * vectors
    assert allocation_error(values, water) <= allocation_error(values, equal) * (1 + 1e-12)


def test_later_rounds_refine_vectors_and_begin_new_ones():
    values = 0.5 ** np.arange(30)
    sent = NONE
    for _ in range(6):
        more = WaterFilling()(values, sent, 10, 29)
        assert more.sum() == sent.sum() + 10
        assert (more[: len(sent)] >= sent).all()
        assert (more >= 1).all()
        sent = more
    assert len(sent) > 4
    assert sent[0] > 6


def test_nothing_is_left_to_send_when_all_vectors_have_all_bits():
    values, full = 0.5 ** np.arange(5), np.full(4, MOST_BITS)
    assert np.array_equal(WaterFilling()(values, full, 50, 4), full)
    assert np.array_equal(EqualBits(16)(values, full, 50, 4), full)


# --- planes of bits ---------------------------------------------------------------------------------


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 10**6))
@QUICK
def test_bits_sent_in_two_rounds_are_those_sent_in_one(n, rows, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rows, n)) * (rng.random((rows, n)) < 0.7)
    nothing, some = np.zeros(rows, dtype=np.int64), rng.integers(0, 9, size=rows)
    all_bits = some + rng.integers(0, 8, size=rows)
    twice = decoded(vectors, some, all_bits, decoded(vectors, nothing, some))
    assert np.array_equal(twice, decoded(vectors, nothing, all_bits))
    assert len(planes(vectors, nothing, all_bits)) == all_bits.sum() * ((n + 7) // 8)


@given(st.integers(2, 30), st.integers(1, MOST_BITS), st.integers(0, 10**6))
@QUICK
def test_an_entry_is_within_half_a_cell(n, bits, seed):
    """|u - u_hat| <= 2^-b for u = sign(v) sqrt(|v|/s), before vectors are made unit."""
    v = np.random.default_rng(seed).normal(size=(1, n))
    v /= np.linalg.norm(v)
    width, scale = counts(bits), scales_of(v)
    unit = unit_vectors(decoded(v, counts(0), width), scale, width)
    u = np.sign(v) * np.sqrt(np.abs(v) / scale)
    cells = (2 * decoded(v, counts(0), width) + 1) / 2.0**bits - 1
    assert np.abs(u - cells).max() <= 2.0**-bits * (1 + 1e-9)
    assert np.linalg.norm(unit) == pytest.approx(1.0)
    assert (
        np.linalg.norm(unit - v) <= 4 * 2.0**-bits * np.sqrt(scale[0] * np.abs(v).sum()) + 8 * 4.0**-bits * n
    )


def test_the_model_of_the_error_holds_for_normal_entries():
    """||v v' - v_hat v_hat'||_F^2 is about ERROR 4^-b: within a factor of 2, from 3 bits on."""
    rng, n = np.random.default_rng(0), 300
    v = rng.normal(size=(20, n))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    for bits in (3, 5, 8):
        width = np.full(20, bits)
        unit = unit_vectors(decoded(v, np.zeros(20, dtype=np.int64), width), scales_of(v), width)
        error = np.mean(2 * (1 - np.sum(v * unit, axis=1) ** 2))
        assert 0.5 <= error / (6.0 * 4.0**-bits) <= 2


def test_the_sign_of_a_vector_does_not_matter():
    V = np.random.default_rng(0).normal(size=(3, 5))
    assert np.array_equal(upright(V), upright(-V))
    assert (upright(V).max(axis=1) == np.abs(V).max(axis=1)).all()


# --- runs -------------------------------------------------------------------------------------------

FEW = [QShed(bits=9), QShed(bits=9, allocation=EqualBits(3))]
few = pytest.mark.parametrize("algorithm", FEW, ids=["allocated", "equal"])


def run(algorithm, federation=None, **options):
    return fedshed.optimize(federation or make_federation("logistic"), algorithm=algorithm, l2=L2, **options)


def faulty(seed):
    return lambda sites: Faulty(InProcess(sites), lose=0.2, delay=0.15, repeat=0.2, forget=0.2, seed=seed)


@few
@pytest.mark.parametrize("seed", [0, 1])
def test_the_masters_vectors_are_the_agents_rounded_once_after_any_history(algorithm, seed):
    """Row by row b_k bits of the eigenvectors of one true Hessian."""
    objectives = local_objectives(make_federation("logistic"), "logistic")
    problem = Problem(np.full(6, L2), {i: o.weight for i, o in objectives.items()}, "logistic")
    transport = faulty(seed)({i: Site(i, o, algorithm) for i, o in objectives.items()})
    start, refined = Progress(algorithm.start(problem, np.zeros(6)), rows=[]), 0
    for progress in iterate(algorithm, problem, transport, start, Goal(tol=1e-12, max_iterations=25)):
        for i, known in progress.state.known.items():
            held = known.curvature
            values, vectors = leading_eigenpairs(objectives[i].at(held.theta_k).factor)
            V, bits = upright(vectors[: held.q]), counts(*held.bits)
            cells = decoded(V, np.zeros(held.q, dtype=np.int64), bits)
            np.testing.assert_allclose(held.vectors, unit_vectors(cells, scales_of(V), bits), atol=1e-4)
            np.testing.assert_allclose(held.values, values[: held.q], rtol=1e-9)
            assert held.rho == pytest.approx(values[held.q], abs=1e-12)
            refined += len(set(held.bits)) > 1
    assert bool(refined) == isinstance(algorithm.allocation, WaterFilling)


@few
def test_any_transport_a_resume_and_either_search_give_the_same_bits(algorithm, tmp_path):
    path = tmp_path / "run.ckpt"
    here, there = run(algorithm), run(algorithm, transport=Stateless)
    run(algorithm, max_iterations=4, checkpoint=path)
    resumed = fedshed.resume(path, make_federation("logistic"), max_iterations=1000)
    for other in (there, resumed, run(algorithm, line_search=Fused())):
        assert np.array_equal(here.theta, other.theta)
    assert here.trace[-1].uplink_bytes == there.trace[-1].uplink_bytes == resumed.trace[-1].uplink_bytes


@few
def test_lost_late_and_forgotten_heal_to_the_pooled_optimum(algorithm):
    result = run(algorithm, transport=faulty(1), tol=1e-9, max_iterations=600)
    assert result.converged, result.reason
    np.testing.assert_allclose(
        result.theta, fedshed.optimum(make_federation("logistic"), l2=L2)[0], atol=1e-6
    )


def test_with_all_bits_at_once_the_first_step_is_newtons_but_for_the_rounding():
    algorithm = QShed(bits=1024, precision=Exact())
    one, two = (run(a, max_iterations=1).theta for a in (algorithm, "newton"))
    np.testing.assert_allclose(one, two, rtol=0, atol=2e-3)


def test_bytes_are_those_of_the_bits():
    """A bit an entry more, of a federation with 40 columns, is 5 bytes more; a new pair is 17 more."""
    federation = make_federation("least-squares", n=40, sizes={"a": 60, "b": 90})
    options = {"loss": "least-squares", "max_iterations": 0}
    sizes = [
        run(QShed(bits=b, allocation=EqualBits(5)), federation, **options).trace[-1].uplink_bytes / 2
        for b in (5, 10, 15)
    ]
    assert np.allclose(np.diff(sizes), 5 * 5 + 17, atol=2)


def test_a_link_that_carries_nothing_still_goes_down_on_rho_alone():
    result = run("q-shed", budget=0, max_iterations=60)
    assert (np.diff(result.trace.column("f")) <= 1e-15).all()
    assert result.trace[-1].q_max == 0
    assert result.trace[-1].grad_norm < 0.1 * result.trace[0].grad_norm


# --- messages ---------------------------------------------------------------------------------------

_ok = {"k": 1, "start": b"", "bits": b"\3", "values": np.ones(1), "scales": np.ones(1), "code": bytes(3),
       "rho": 0.5, "last": False}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"bits": b"\3\3"},
        {"bits": b"\x11"},
        {"bits": b"\0"},
        {"start": b"\4", "values": np.zeros(0), "scales": np.zeros(0)},
        {"scales": -np.ones(1)},
        {"rho": 2.0},
        {"rho": -1.0},
    ],
    ids=["a value missing", "17 bits", "no bit", "fewer than before", "scale", "rises", "negative"],
)
def test_a_refinement_that_makes_no_sense_is_refused(wrong):
    Refinement(**_ok)
    with pytest.raises(ValueError, match=r"bits|values|scale"):
        Refinement(**{**_ok, **wrong})


@pytest.mark.parametrize("wrong", [{"code": bytes(2)}, {"code": bytes(4)}, {"bits": b"\1\1\1\1\1\1"}])
def test_a_code_of_the_wrong_length_is_refused(wrong):
    LocalRefined(1.0, np.zeros(6), Refinement(**_ok))
    rows = len(wrong.get("bits", b"\3"))
    pairs = Refinement(**{**_ok, "values": np.ones(rows), "scales": np.ones(rows), **wrong})
    with pytest.raises(ValueError, match=r"planes|more than"):
        LocalRefined(1.0, np.zeros(6), pairs)


def test_bits_of_another_hessian_or_after_others_are_refused_by_what_was_asked():
    problem, part = Problem(np.full(6, L2), {"a": 1.0}, "logistic"), Update(4, np.zeros(6))
    answer = LocalRefined(1.0, np.zeros(6), Refinement(**_ok))
    asked = Refine(1, b"", True, None)
    assert QShed().refusal(problem, part, asked, answer) is None
    for other in (Refine(2, b"", True, None), Refine(1, b"\2", True, None), Refine(1, b"", False, None)):
        assert "asked for were" in QShed().refusal(problem, part, other, answer)


@pytest.mark.parametrize("wrong", [lambda: QShed(bits=0), lambda: EqualBits(17), lambda: EqualBits(0)])
def test_widths_that_make_no_sense_are_refused(wrong):
    with pytest.raises(fedshed.ConfigError, match=r"bits of (QShed|EqualBits) must be from 1"):
        wrong()
