"""How exposed a site is, as the steward who approves a study reads it."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.attacks.exposed import ALGORITHMS, SIZES
from benchmarks.attacks.identify import identifiability
from benchmarks.attacks.sensitivity import Told, jacobian, values

import fedshed
from fedshed.privacy.exposure import FAMILIES, MEASURED, exposure

ORDER = ("low", "moderate", "high")


def test_every_algorithm_has_a_family():
    assert set(FAMILIES) == {*fedshed.ALGORITHMS, "auto"}


def test_the_table_has_every_size_that_the_benchmark_measures():
    for family in ALGORITHMS:
        sizes = {(rows, n) for rows, cells in MEASURED[family].items() for n in cells}
        assert sizes == set(SIZES)


@pytest.mark.parametrize("columns", [3, 6, 9, 12, 20, 30, 50])
@pytest.mark.parametrize("rows", [5, 30, 31, 110, 299, 300, 1000, 100_000])
def test_gradients_expose_no_more_than_eigenpairs_and_these_no_more_than_hessians(rows, columns):
    levels = [ORDER.index(exposure(rows, columns, name).level) for name in ("lbfgs", "fib-shed", "newton")]
    assert levels == sorted(levels)


@pytest.mark.parametrize("algorithm", ["newton", "auto", "qn-shed", "lbfgs", "my-own"])
def test_the_words_name_the_size_and_say_what_to_do(algorithm):
    for rows, columns in ((10, 5), (30, 6), (200, 12), (5000, 12)):
        found = exposure(rows, columns, algorithm)
        assert f"{rows} rows and {columns} columns" in found.sentence
        assert algorithm in found.sentence
        assert found.recommendation.endswith(".")
        assert "protected" not in found.recommendation


def test_an_unknown_algorithm_counts_as_the_most_telling():
    assert exposure(50, 8, "my-own").level == exposure(50, 8, "newton").level == "high"


def test_a_lower_level_is_offered_where_there_is_one():
    assert "lbfgs" in exposure(30, 6, "newton").recommendation
    assert "lbfgs" not in exposure(30, 6, "lbfgs").recommendation


def site(rows, n, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(rows, n - 1)), np.ones(rows)])
    return X, np.where(rng.random(rows) < 0.5, 1.0, -1.0), rng


def test_derivatives_of_what_is_told_are_those_of_finite_differences():
    X, y, rng = site(7, 4)
    told = [
        Told(rng.normal(size=4), whole=True, diagonal=True, vectors=rng.normal(size=(2, 4))),
        Told(rng.normal(size=4), gradient=False),
    ]
    J, step = jacobian(X, y, told, len(X)), 1e-6
    for i, j in ((0, 0), (3, 2), (6, 1)):
        move = step * np.outer(np.eye(7)[i], np.eye(4)[j])
        slope = (values(X + move, y, told) - values(X - move, y, told)) / (2 * step)
        np.testing.assert_allclose(J[:, i, j], slope, atol=1e-8)


def test_who_is_told_more_knows_more_and_never_more_than_all():
    X, y, rng = site(20, 4)
    points = [Told(rng.normal(size=4), whole=True) for _ in range(8)]
    before = np.zeros(20)
    for count in (1, 2, 4, 8):
        shares = identifiability(X, y, points[:count])
        assert (shares >= before - 1e-6).all()
        assert shares.max() <= 1 + 1e-6
        before = shares
    assert before.min() > 0.99  # 8 Hessians tell more numbers than 20 rows have


def test_a_site_of_one_row_is_known_from_one_gradient():
    X, y, rng = site(1, 4)
    assert identifiability(X, y, [Told(rng.normal(size=4))]).min() > 0.999
