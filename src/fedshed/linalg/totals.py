"""Sums of many numbers whose rounding errors do not accumulate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def compensated_total(numbers: NDArray[Any]) -> NDArray[Any]:
    """The sum over the first axis, half by half; the error of every addition is kept and added at the end.

    It is as if computed with twice the digits and rounded once (Ogita, Rump and Oishi 2005, SIAM Journal on
    Scientific Computing 26, 1955: TwoSum), and the same bits for the same rows in the same order.
    """
    left, low = numbers, np.zeros(numbers.shape[1:])
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is not finite in the sum
        while len(left) > 1:
            half = len(left) // 2
            a, b, odd = left[:half], left[half : 2 * half], left[2 * half :]
            total = a + b
            b_there = total - a
            low = low + ((a - (total - b_there)) + (b - b_there)).sum(axis=0)
            left = np.concatenate([total, odd]) if len(odd) else total
        return np.asarray(left[0] + low)
