"""Eigenpairs of many dense factors in one pass are those of one factor after the other, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from fedshed.linalg import Automatic, Lanczos, Subspace, Textbook, Tridiagonal, leading
from fedshed.linalg.spectrum import leading_together

KERNELS = [Automatic(), Automatic(approximate=True), Textbook(), Tridiagonal(), Subspace()]


def bits(pairs):
    """All that an agent keeps."""
    return pairs.kernel, pairs.values.tobytes(), pairs.vectors.tobytes(), pairs.complete, pairs.smallest


@pytest.mark.parametrize(
    "kernel", KERNELS, ids=lambda k: f"{type(k).__name__}-{getattr(k, 'approximate', '')}"
)
@pytest.mark.parametrize("shape", [(100, 50), (60, 50), (35, 20), (300, 120), (64, 63), (400, 40), (3, 1)])
def test_pairs_drawn_together_have_the_bits_of_those_drawn_alone(kernel, shape):
    rng, n = np.random.default_rng(0), shape[1]
    F = rng.normal(size=(9, *shape)) * np.geomspace(1, 0.05, n)
    F[3, :, -1] = F[3, :, 0]  # of lower rank
    tried = 0
    for count in {1, 6, 12, 18, n // 3, n // 2, n}:
        together = leading_together(F, count, kernel)
        if together is not None:
            tried += 1
            assert [bits(one) for one in together] == [bits(leading_of(f, count, kernel)) for f in F]
    assert tried > 0 or (shape == (300, 120) and kernel in (Automatic(), Tridiagonal()))


def leading_of(factor, count, kernel):
    """The pairs of a factor, all of whose columns are kept."""
    from fedshed.linalg.columns import Columns, Narrow

    n = factor.shape[1]
    return leading(Narrow(factor, Columns(np.arange(n), np.arange(n), np.ones(n))), count, kernel)


@pytest.mark.parametrize("factors", [np.zeros((3, 60, 50)), np.ones((3, 60, 50)), np.ones((3, 20, 50))])
def test_where_there_is_no_way_for_all_each_is_drawn_alone(factors):
    """Factors of low rank, and those with more columns than rows."""
    assert leading_together(factors, 6, Subspace()) is None
    assert leading_together(factors, 6, Lanczos()) is None
