"""Vectors in four bytes a number: half the memory, and no direction moves by 1e-7."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fedshed
from conftest import make_federation
from fedshed import ConfigError, Fused
from fedshed.algorithms import QnShed, Shed
from fedshed.algorithms.base import SiteModel, State
from fedshed.algorithms.shed_curvature import SharedCurvature, curvature
from fedshed.exchange import Faulty, InProcess
from fedshed.linalg.short_rows import CHANGE, Short, weighted_gram
from fedshed.protocol.codec import Decoder, encode
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Eigenpairs


def held_of(rng, n: int, q: int, smallest: float) -> SharedCurvature:
    """q eigenpairs of a Hessian whose spectrum falls from 1 to `smallest`, and the eigenvalue after them."""
    values = np.geomspace(1.0, smallest, n)
    vectors = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return SharedCurvature(1, np.zeros(n), values[:q], vectors[:q], float(values[min(q, n - 1)]), False, t=1)


def state_of(held: list[SharedCurvature], mu: float) -> tuple[Problem, State[SharedCurvature]]:
    n = held[0].vectors.shape[1]
    names = [f"{i:02}" for i in range(len(held))]
    known = {i: SiteModel(np.zeros(n), 0.0, np.zeros(n), h) for i, h in zip(names, held, strict=True)}
    return Problem(np.full(n, mu), dict.fromkeys(names, 1.0), "logistic"), State(1, np.zeros(n), known)


def nbytes(held: SharedCurvature) -> int:
    return held.vectors.nbytes + (len(held.short.levels) + held.short.scales.nbytes if held.short else 0)


def worst_change(held: list[SharedCurvature], mu: float) -> float:
    """The largest relative change of H_hat^-1 g over all g: the norm of H~^-1 (H~ - H)."""
    kept = [h.shortened(mu, orthogonal=True) for h in held]
    H, short = (curvature(*state_of(one, mu)) for one in (held, kept))
    eye = np.eye(held[0].vectors.shape[1])
    exact = np.column_stack([H.matvec(e) for e in eye])
    moved = np.column_stack([short.matvec(e) for e in eye]) - exact
    return float(np.linalg.norm(np.linalg.solve(exact, moved), 2))


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 24), agents=st.integers(1, 4), decades=st.floats(0, 9), ridge=st.floats(-9, 1),
    part=st.floats(0, 1), seed=st.integers(0, 99),
)  # fmt: skip
def test_no_direction_moves_by_1e_7_whatever_the_condition(n, agents, decades, ridge, part, seed):
    rng = np.random.default_rng(seed)
    held = [held_of(rng, n, round(part * (n - 1)), 10.0**-decades) for _ in range(agents)]
    assert worst_change(held, 10.0**ridge) < CHANGE + 1e-15 * 10.0**-ridge  # and what rounding itself does


def change(H, held: SharedCurvature, rows) -> float:
    """How far the worst direction moves with these rows in place of the agent's."""
    moved = rows.T * held.excess @ rows - held.vectors.T * held.excess @ held.vectors
    return float(np.linalg.norm(np.linalg.solve(H, moved), 2))


def test_integers_with_a_scale_are_far_nearer_than_float32_which_breaks_the_promise():
    held, mu = held_of(np.random.default_rng(0), 60, 59, 1e-3), 1e-3
    H = held.vectors.T * held.excess @ held.vectors + (held.rho + mu) * np.eye(60)
    everything = held.shortened(1e9, orthogonal=True)  # as if any row were good enough
    assert not everything.vectors.size
    of_float32 = change(H, held, held.vectors.astype(np.float32).astype(float))
    assert of_float32 > CHANGE
    assert of_float32 > 20 * change(H, held, everything.rows)


def test_memory_halves_where_the_condition_allows_it():
    rng = np.random.default_rng(1)
    held = [held_of(rng, 120, 119, 0.1) for _ in range(5)]
    short = [h.shortened(0.1, orthogonal=True) for h in held]
    assert sum(map(nbytes, short)) <= 0.52 * sum(map(nbytes, held))
    assert worst_change(held, 0.1) < CHANGE


def test_pairs_that_come_one_by_one_are_stored_as_those_that_come_together():
    rng = np.random.default_rng(2)
    whole = held_of(rng, 30, 29, 1e-6)
    at_once = whole.shortened(1e-5, orthogonal=True)
    held = whole.first(0)
    for j in range(29):
        pairs = Eigenpairs(1, j, whole.values[j : j + 1], whole.vectors[j : j + 1], whole.rho * 0, False)
        held = held.extended(pairs, t=2 + j).shortened(1e-5, orthogonal=True)
    assert np.array_equal(held.rows, at_once.rows)
    assert held.short.levels == at_once.short.levels
    assert 0 < np.count_nonzero(held.short.scales) < 29
    again = held.extended(Eigenpairs(1, 0, whole.values, whole.vectors, whole.rho, False), t=40)
    assert np.array_equal(again.rows, whole.vectors)  # all of them anew: nothing old remains


def test_first_and_matvec_know_both_kinds_of_rows():
    held = held_of(np.random.default_rng(3), 20, 15, 1e-4)
    short = held.shortened(1e-3, orthogonal=True)
    assert 0 < np.count_nonzero(short.short.scales) < 15
    s = np.arange(20.0)
    np.testing.assert_allclose(short.matvec(s), held.matvec(s), rtol=1e-7)
    np.testing.assert_allclose(short.first(9).matvec(s), held.first(9).matvec(s), rtol=1e-7)


@pytest.mark.parametrize("mu", [0.0, 5e-324, 1e-310, 1e-12])
def test_a_coefficient_with_hardly_a_penalty_leaves_rows_as_they_are(mu):
    held = held_of(np.random.default_rng(4), 8, 5, 0.5)
    assert np.array_equal(held.shortened(mu, orthogonal=True).vectors, held.vectors)


def test_coded_rows_count_with_the_sum_of_their_errors():
    """Rows that are all alike: errors add up plainly, and the bound must know."""
    rng = np.random.default_rng(5)
    row = rng.normal(size=40)
    vectors = np.tile(row / np.linalg.norm(row), (39, 1))
    held = SharedCurvature(1, np.zeros(40), np.full(39, 1e-2), vectors, 0.0, False, t=1)
    short = held.shortened(1e-3, orthogonal=False)
    moved = short.rows.T * held.values @ short.rows - vectors.T * held.values @ vectors
    assert np.linalg.norm(moved, 2) <= CHANGE * 1e-3
    plenty = np.count_nonzero(held.shortened(1e-3, orthogonal=True).short.scales)
    assert 0 < np.count_nonzero(short.short.scales) < plenty


def test_a_state_with_short_rows_survives_its_encoding():
    short = held_of(np.random.default_rng(6), 12, 9, 1e-3).shortened(1e-2, orthogonal=True)
    again = Decoder(SharedCurvature, 12)(encode(short))
    assert np.array_equal(again.rows, short.rows)
    assert again.short.levels == short.short.levels
    assert np.array_equal(Short().merged(np.eye(3)), np.eye(3))


@settings(deadline=None, max_examples=30)
@given(blocks=st.lists(st.integers(0, 9), max_size=12), n=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_gram_matrix_of_blocks_is_that_of_their_stack(blocks, n, seed):
    rng = np.random.default_rng(seed)
    pairs = [(rng.normal(size=(rows, n)), rng.random(rows)) for rows in blocks]
    expected = sum((V.T * w @ V for V, w in pairs), np.zeros((n, n)))
    np.testing.assert_allclose(weighted_gram(pairs, n), expected, atol=1e-13)


# --- runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [Shed(), QnShed()], ids=["fib-shed", "qn-shed"])
def test_a_run_on_digits_takes_the_same_iterations_and_holds_half(algorithm):
    federation = fedshed.datasets.load("digits", agents=10, partition="iid")
    states: dict[str, list] = {"full": [], "short": []}
    results = {
        storage: fedshed.optimize(
            federation, algorithm=replace(algorithm, storage=storage), l2=1e-2, tol=1e-8,
            watch=lambda progress, seen=seen: seen.append(progress.state),
        )
        for storage, seen in states.items()
    }  # fmt: skip
    full, short = results["full"], results["short"]
    assert short.converged
    assert len(short.trace) == len(full.trace)
    assert [row.exchanges for row in short.trace] == [row.exchanges for row in full.trace]
    np.testing.assert_allclose(short.theta, full.theta, rtol=0, atol=1e-7)
    held = {s: sum(nbytes(a.curvature) for a in seen[-1].known.values()) for s, seen in states.items()}
    assert held["short"] < 0.65 * held["full"]


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_resumed_run_goes_on_bit_for_bit(stop, tmp_path):
    federation, path = make_federation("logistic", n=12), tmp_path / "run"
    options = {"algorithm": Shed(storage="short", channel=fedshed.Constant(3)), "l2": 1e-2}
    never = fedshed.optimize(federation, **options)
    seen = []
    fedshed.optimize(
        federation, **options, max_iterations=stop, checkpoint=path, watch=lambda p: seen.append(p.state)
    )
    assert any(a.curvature.short.levels for a in seen[-1].known.values())
    resumed = fedshed.resume(path, federation, max_iterations=500)
    assert np.array_equal(resumed.theta, never.theta)
    assert [row.f for row in resumed.trace] == [row.f for row in never.trace]


@pytest.mark.parametrize("line_search", [None, Fused()])
@pytest.mark.parametrize("seed", range(3))
def test_short_rows_survive_faults(seed, line_search):
    federation = make_federation("logistic", n=12)
    faults = {"lose": 0.2, "delay": 0.15, "repeat": 0.2, "forget": 0.2, "seed": seed}
    result = fedshed.optimize(
        federation, algorithm=Shed(storage="short"), l2=1e-2, tol=1e-10, line_search=line_search,
        transport=lambda sites: Faulty(InProcess(sites), **faults),
    )  # fmt: skip
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, fedshed.optimum(federation, l2=1e-2)[0], atol=1e-6)


def test_another_storage_is_refused_by_name():
    with pytest.raises(ConfigError, match=r'"full" or "short".*float16'):
        Shed(storage="float16")
