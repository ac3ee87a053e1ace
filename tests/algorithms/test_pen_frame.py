"""PEN's frame: coded changes keep the Hessian near the identity; both ends take the same step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed.algorithms.pen import frame
from made_matrices import spd

QUICK = settings(deadline=None, max_examples=40, derandomize=True)


@given(st.integers(1, 12), st.integers(0, 10**6))
@QUICK
def test_a_change_of_frame_brings_the_eigenvalues_within_bounds(n, seed):
    A = spd(n, seed)
    B = frame.change_matrix(frame.frame_change(A), n)
    values = np.linalg.eigvalsh(B @ A @ B.T)
    assert values[0] >= frame.LOW - 1e-9
    assert values[-1] <= frame.HIGH + 1e-9
    assert frame.frame_change(np.eye(n)) == b""
