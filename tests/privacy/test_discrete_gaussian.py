"""Discrete Gaussian noise: the right probabilities, in whole numbers, from the bits it is given."""

from __future__ import annotations

import random
from collections import Counter
from math import exp

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from fedshed._utils.errors import ConfigError
from fedshed.privacy.discrete_gaussian import (
    discrete_gaussian,
    discrete_laplace,
    exponential_coin,
    noise,
    units,
)

LEAST = 1e-4  # of the p-values of tests with fixed seeds


def _agrees(drawn, weights):
    """Whether counts follow probabilities proportional to weights on -k..k, what lies beyond in two cells."""
    k = len(weights) // 2
    cells = Counter(max(-k - 1, min(k + 1, x)) for x in drawn)
    inside = np.array([cells[x] for x in range(-k, k + 1)])
    outside = cells[-k - 1] + cells[k + 1]
    shares = np.array(weights) / sum(weights)
    assert outside <= 0.01 * len(drawn)
    return chisquare(inside, shares * inside.sum()).pvalue > LEAST


@pytest.mark.parametrize("variance", [1, 3, 10])
def test_small_noise_has_the_exact_probabilities(variance):
    bits = random.Random(variance).getrandbits
    drawn = [discrete_gaussian(variance, bits) for _ in range(8000)]
    k = int(3 * variance**0.5)
    assert _agrees(drawn, [exp(-(x**2) / (2 * variance)) for x in range(-k, k + 1)])


def test_the_discrete_laplace_has_the_exact_probabilities():
    bits = random.Random(5).getrandbits
    drawn = [discrete_laplace(2, bits) for _ in range(8000)]
    assert _agrees(drawn, [exp(-abs(x) / 2) for x in range(-10, 11)])


@pytest.mark.parametrize(("over", "under"), [(0, 1), (1, 3), (1, 1), (7, 3)])
def test_a_coin_falls_as_often_as_the_exponential_says(over, under):
    bits, p = random.Random(7).getrandbits, exp(-over / under)
    heads = sum(exponential_coin(over, under, bits) for _ in range(8000))
    assert abs(heads - 8000 * p) <= 4 * (8000 * p * (1 - p)) ** 0.5


@pytest.mark.parametrize("sigma", [2.0**-10, 1.0, 2.0**26, 2.0**90])
def test_large_noise_is_normal_with_the_scale_that_was_asked(sigma):
    drawn = noise([sigma] * 2000, random.Random(3).getrandbits)
    assert all(isinstance(x, int) for x in drawn)
    scaled = [x / units(sigma) for x in drawn]
    assert kstest(scaled, "norm").pvalue > LEAST
    assert abs(np.var(scaled) - 1) <= 4 * (2 / 2000) ** 0.5


def test_the_same_bits_give_the_same_noise_and_the_system_gives_other_bits_each_time():
    sigmas = [1.0, 2.5, 1e6]
    assert noise(sigmas, random.Random(1).getrandbits) == noise(sigmas, random.Random(1).getrandbits)
    assert noise(sigmas) != noise(sigmas)


def test_noise_is_never_less_than_was_charged_and_none_is_added_where_none_is_due():
    for sigma in (1e-30, 0.1, 1.0, 12345.678):
        assert sigma <= units(sigma) / 2**64 <= sigma + 2**-63
    assert noise([0.0, 0.0]) == (0, 0)


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_a_scale_that_cannot_be_is_refused(sigma):
    with pytest.raises(ConfigError, match="a number above 0"):
        noise([sigma])
