"""Tables mapped from files: never copied whole, and the same answer."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import fedshed
from fedshed import Federation
from fedshed.objectives import tall
from fedshed.objectives.base import gram
from fedshed.objectives.tall import Tall

ROWS, COLUMNS = 20_000, 12


@pytest.fixture
def tables(tmp_path):
    """Two sites, in files and in memory."""
    rng = np.random.default_rng(0)
    here, there = {}, {}
    for k, site in enumerate(("a", "b")):
        X = rng.normal(loc=0.2 * k, size=(ROWS, COLUMNS)) * np.geomspace(1, 0.1, COLUMNS)
        y = rng.poisson(np.exp(0.3 * X[:, 0])).clip(0, 2)
        np.save(tmp_path / f"{site}.npy", X)
        here[site], there[site] = (X, y), (np.load(tmp_path / f"{site}.npy", mmap_mode="r"), y)
    return here, there


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["least-squares", "poisson", "multinomial"])
def test_a_mapped_table_gives_the_same_model(tables, loss, intercept, monkeypatch):
    monkeypatch.setattr(tall, "BLOCK", 1 << 14)
    one, two = (
        fedshed.optimize(
            Federation.from_sites(t), loss=loss, algorithm="newton", l2=1e-3, intercept=intercept
        )
        for t in tables
    )
    assert one.converged
    assert [row.uplink_bytes for row in one.trace] == [row.uplink_bytes for row in two.trace]
    np.testing.assert_allclose(one.theta, two.theta, rtol=0, atol=1e-10)


def test_a_mapped_table_is_never_copied(tables, monkeypatch):
    """Margins are a few numbers a row; the table itself, and any factor of it, has 12 times as many."""
    monkeypatch.setattr(tall, "BLOCK", 1 << 14)
    mapped = {site: (X, np.where(y > 0, 1, 0)) for site, (X, y) in tables[1].items()}
    tracemalloc.start()
    result = fedshed.optimize(
        Federation.from_sites(mapped), algorithm="fib-shed", l2=1e-2, intercept=True, tol=1e-6
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.converged
    assert peak < 0.75 * ROWS * COLUMNS * 8 * 2


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_products_and_curvature_are_those_of_the_table(rows, monkeypatch):
    monkeypatch.setattr(tall, "BLOCK", 64)
    rng = np.random.default_rng(rows)
    X = rng.normal(size=(rows, 5))
    ours, full = Tall(X, ones=True), np.hstack([X, np.ones((rows, 1))])
    theta, slopes = rng.normal(size=6), rng.normal(size=rows)
    np.testing.assert_allclose(ours @ theta, full @ theta, atol=1e-12)
    np.testing.assert_allclose(ours.T @ slopes, full.T @ slopes, atol=1e-12)
    R = ours.triangular(lambda part, block: block * slopes[part, None])
    np.testing.assert_allclose(gram(R), gram(full * slopes[:, None]), atol=1e-10)
    np.testing.assert_array_equal(ours[:, [5, 0]], full[:, [5, 0]])
