"""Leverage: how much one row can make of what was released."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.privacy.test_disclosure import GOOD, L2, guarded

import fedshed
from fedshed._utils.errors import CodecError
from fedshed.privacy import leverage
from fedshed.privacy.leverage import Leverage, curvature_vectors


def hat(vectors):
    """The largest entry on the diagonal of the projection on the vectors, by singular values."""
    _, sizes, rows = np.linalg.svd(np.atleast_2d(vectors), full_matrices=False)
    return np.square(rows[sizes > 1e-8 * sizes[0]]).sum(axis=0).max()


@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_leverage_is_the_hat_matrix_of_all_vectors_and_only_grows(count, rows, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, rows)) * 10.0 ** rng.integers(-5, 6, size=(count, 1))
    ledger, found = Leverage(rows), 0.0
    for j in range(count):
        before, found = found, ledger.add(vectors[j])
        assert before - 1e-12 <= found <= 1.0
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert found == pytest.approx(hat(units), abs=1e-6)


@given(st.integers(0, 1000), st.integers(-5, 5), st.integers(-5, 5))
def test_what_follows_from_what_was_released_adds_nothing(seed, a, b):
    u, v = np.random.default_rng(seed).normal(size=(2, 40))
    ledger = Leverage(40)
    ledger.add(u)
    before = ledger.add(v)
    assert ledger.add(a * u + b * v) == before
    assert ledger.add(np.zeros(40)) == before


def test_two_sums_that_differ_in_one_row_give_that_row():
    ledger = Leverage(100)
    assert ledger.add(np.ones(100)) == pytest.approx(0.01)
    assert ledger.add(np.r_[np.zeros(1), np.ones(99)]) == pytest.approx(1.0)


def test_a_large_site_is_brought_up_to_date_in_blocks_to_the_same_number(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(37, 50))
    one, blocks = Leverage(50), Leverage(50)
    for vector in vectors:
        one.add(vector)
    monkeypatch.setattr(leverage, "AT_ONCE", 0)
    for vector in vectors:
        blocks.add(vector)
    assert blocks.largest == pytest.approx(one.largest, abs=1e-9)


def test_a_basis_that_would_be_too_large_is_given_up(monkeypatch):
    monkeypatch.setattr(leverage, "LARGEST_BASIS", 120)
    ledger = Leverage(50)
    rng = np.random.default_rng(0)
    assert [ledger.add(rng.normal(size=50)) is None for _ in range(4)] == [False, False, True, True]
    assert ledger.largest is None


def test_a_saved_ledger_goes_on_as_if_the_process_had_not_ended():
    rng = np.random.default_rng(0)
    going, stopped = Leverage(30), Leverage(30)
    for _ in range(5):
        vector = rng.normal(size=30)
        again = Leverage(30)
        again.load(stopped.save())
        stopped = again
        assert stopped.add(vector) == pytest.approx(going.add(vector), abs=1e-12)
    for wrong in (b"", b"noise", Leverage(31).save()):
        with pytest.raises(CodecError, match="saved leverage"):
            going.load(wrong)


def test_the_blocks_of_a_curvature_of_classes_span_what_each_class_adds():
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=25)
    blocks = np.array(list(curvature_vectors(p)))
    for k in range(4):
        own = p[:, k] * (1 - p[:, k])
        assert np.linalg.norm(own - blocks.T @ np.linalg.lstsq(blocks.T, own, rcond=None)[0]) < 1e-12


def test_a_large_leverage_is_noted_once_in_the_log_and_nothing_is_refused(tmp_path, caplog):
    federation, connect = guarded(tmp_path, GOOD, algorithm="newton")
    with caplog.at_level(logging.WARNING, logger="fedshed"):
        result = fedshed.optimize(federation, algorithm="newton", l2=L2, transport=connect)
    assert result.converged
    notes = [record.getMessage() for record in caplog.records if "one row's share" in record.getMessage()]
    assert notes
    assert len({note.split(":")[0] for note in notes}) == len(notes)  # once for a site
