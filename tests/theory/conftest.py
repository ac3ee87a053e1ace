"""One BLAS thread: the matrices here are small, and the tests share the machine."""

from __future__ import annotations

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    with threadpool_limits(1):
        yield
