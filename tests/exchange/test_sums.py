"""Sums of messages: of any sites' answers they give the answer of one site that holds all rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed._utils.errors import ProtocolError
from fedshed.algorithms.gradients import LocalScale, LocalSmoothness
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.newton import Newton
from fedshed.exchange.sums import Scaling, blanks, column_scales, join, split
from fedshed.privacy.addends import add
from fedshed.protocol.conversation import Problem, Size
from fedshed.protocol.messages import Costs, Declined, Local, LocalHessian, Undefined, Update
from fedshed.solve.inspection import Inspected
from fedshed.solve.null_start import Moments
from fedshed.solve.scatter import Scattered

N = 3
COLUMNS = np.exp2([-23.0, 0.0, 23.0])
KINDS = (Local, LocalHessian, LocalScale, LocalSmoothness, Costs, Inspected, Moments, Scattered)


def summed(answers, weights, slim=True, units=False, columns=COLUMNS):
    """The answers of all sites from those of each, a list for each site."""
    total = sum(weights)
    found = [
        split(parts, Scaling(w, total, columns, slim, units))
        for parts, w in zip(answers, weights, strict=True)
    ]
    assert len({public for public, _ in found}) == 1
    totals = add([addends for _, addends in found])
    return join(found[0][0], totals, Scaling(1.0, total, columns, slim, units), KINDS)


def mean(values, weights):
    return sum(w * np.asarray(v) for v, w in zip(values, weights, strict=True)) / sum(weights)


def inspected(rng, **given):
    fields = {
        "rows": int(rng.integers(1, 100)), "weight": float(rng.random() + 1), "loss": rng.normal(),
        "deviance": rng.random(), "pearson": rng.random(), "constant": rng.normal(),
        "gradient": rng.normal(size=N) * COLUMNS,
        "information": rng.normal(size=6), "observed": rng.normal(size=6), "moments": rng.normal(size=2),
    }  # fmt: skip
    return Inspected(**(fields | given))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.booleans(), st.booleans())
def test_sums_of_messages_give_the_weighted_mean_message(seed, sites, slim, units):
    rng = np.random.default_rng(seed)
    weights = (rng.random(sites) * 1000 + 1e-3).tolist()
    losses, gradients = rng.normal(size=sites), rng.normal(size=(sites, N)) * COLUMNS
    hessians, costs = rng.normal(size=(sites, 6)), rng.normal(size=(sites, 4))
    answers = [
        [
            LocalHessian(f, g, h), Costs(c, -c), Local(f, g, None), LocalScale(f, g, g**2),
            LocalSmoothness(f, g, f**2),
        ]
        for f, g, h, c in zip(losses.tolist(), gradients, hessians, costs, strict=True)
    ]  # fmt: skip
    newton, costs_of_all, local, scale, smooth = summed(answers, weights, slim, units)
    np.testing.assert_allclose(newton.loss, mean(losses, weights), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(newton.gradient / COLUMNS, mean(gradients / COLUMNS, weights), atol=1e-12)
    np.testing.assert_allclose(newton.hessian, mean(hessians, weights), atol=1e-12)
    np.testing.assert_allclose(costs_of_all.values, mean(costs, weights), atol=1e-12)
    np.testing.assert_allclose(costs_of_all.slopes, -mean(costs, weights), atol=1e-12)
    np.testing.assert_array_equal(local.gradient, newton.gradient)
    np.testing.assert_allclose(scale.scale, mean(gradients**2, weights), rtol=1e-12)
    np.testing.assert_allclose(smooth.scale, mean(losses**2, weights), rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1e30, 1e30).filter(lambda v: v == 0 or abs(v) > 1e-20), min_size=1, max_size=5))
def test_sums_of_unknown_units_are_exact_from_tiny_to_huge(values):
    (found,) = summed([[Moments(np.array([v]))] for v in values], [1.0] * len(values))
    largest = max(map(abs, values))
    assert abs(found.sums[0] - sum(values)) <= 1e-15 * len(values) * largest


def test_a_site_that_cannot_answer_at_a_trial_point_makes_the_answer_undefined_and_sends_the_same_skeleton():
    defined, part = LocalHessian(1.0, np.ones(N), np.ones(6)), Update(2, None)
    for algorithm, answer in ((Newton(), defined), (Lbfgs(), Local(1.0, np.ones(N), None))):
        instead = blanks(algorithm, [part], N)
        public, numbers = split([answer], Scaling(), instead)
        hidden, nothing = split([Undefined()], Scaling(), instead)
        assert hidden == public
        assert (len(nothing.wide), len(nothing.slim)) == (len(numbers.wide), len(numbers.slim))
        assert not nothing.wide.any()
        assert not nothing.slim.any()
        (found,) = join(public, add([numbers, nothing]), Scaling(), KINDS)
        assert isinstance(found, Undefined)


def test_a_cost_that_is_infinite_at_one_site_is_infinite_for_all_and_the_others_stay():
    answers = [
        [Costs(np.array([1.0, np.inf]), np.array([2.0, 3.0]))],
        [Costs(np.ones(2), np.array([np.inf, 1.0]))],
    ]
    (found,) = summed(answers, [1.0, 3.0])
    assert found.values.tolist() == [1.0, np.inf]
    assert found.slopes.tolist() == [np.inf, 1.5]


def test_a_number_that_is_not_finite_where_it_must_be_makes_the_message_undefined():
    bad = LocalScale(1.0, np.array([1.0, np.inf, 1.0]), np.ones(N))
    (found,) = summed([[bad], [LocalScale(1.0, np.ones(N), np.ones(N))]], [1.0, 1.0])
    assert isinstance(found, Undefined)


def test_inspected_sites_add_up_and_pearson_is_unknown_where_one_is():
    rng = np.random.default_rng(0)
    sites = [inspected(rng), inspected(rng, pearson=None), inspected(rng)]
    weights = [site.weight for site in sites]
    (found,) = summed([[site] for site in sites], weights)
    assert found.rows == sum(site.rows for site in sites)
    assert (found.pearson, found.weighing, found.precise) == (None, "", None)
    np.testing.assert_allclose(found.weight, sum(weights))
    np.testing.assert_allclose(found.deviance, sum(site.deviance for site in sites))
    np.testing.assert_allclose(found.observed, mean([site.observed for site in sites], weights), atol=1e-12)
    np.testing.assert_allclose(found.moments, sum(site.moments for site in sites))


@pytest.mark.parametrize(
    ("words", "word"),
    [(("", "counts"), "counts"), (("fractions", "counts"), "fractions"), (("", "fractions"), "fractions")],
)
def test_weights_of_some_sites_are_weights_of_all(words, word):
    rng = np.random.default_rng(1)
    sites = [inspected(rng, weighing=said, precise=5.0 if said else None) for said in words]
    (found,) = summed([[site] for site in sites], [1.0, 1.0], units=True)
    assert found.weighing == word
    np.testing.assert_allclose(found.precise, sum(s.precise if s.weighing else s.constant for s in sites))


def test_a_constant_that_one_site_does_not_know_is_unknown():
    rng = np.random.default_rng(2)
    sites = [inspected(rng, weighing="counts", precise=None), inspected(rng)]
    assert summed([[site] for site in sites], [1.0, 1.0])[0].precise is None


def test_squared_scores_and_shares_add_up_in_any_units():
    squares = np.outer(COLUMNS, COLUMNS)[np.triu_indices(N)]
    sites = [Scattered(squares * k, k, COLUMNS**-2.0 * k, COLUMNS**-4.0 * k**2) for k in (1, 2, 4)]
    (found,) = summed([[site] for site in sites], [1.0] * 3, units=True)
    assert found.clusters == 7
    np.testing.assert_allclose(found.squares, 7 * squares, rtol=1e-14)
    np.testing.assert_allclose(found.shares, 7 * COLUMNS**-2.0, rtol=1e-14)
    np.testing.assert_allclose(found.squared_shares, 21 * COLUMNS**-4.0, rtol=1e-14)


def test_what_does_not_add_up_is_refused():
    with pytest.raises(ProtocolError, match="cannot be added over sites"):
        split([Declined("no")], Scaling())
    with pytest.raises(ProtocolError, match="cannot be added over sites"):
        split([Undefined()], Scaling(), [None])


def test_column_scales_are_powers_of_two_near_the_root_mean_squares():
    squares = np.array([1e-14, 1e14, 0.0, np.nan])
    names = tuple(f"{name} [contrast {k}]" for k in "12" for name in ("a", "b", "c", "d", "intercept"))
    problem = Problem(np.zeros(10), {"all": 5.0}, "multinomial", names, sizes={"all": Size(5, squares)})
    scales = column_scales(problem)
    np.testing.assert_array_equal(np.log2(scales), np.round(np.log2(scales)))
    np.testing.assert_array_equal(scales[:5], scales[5:])
    assert np.all(np.abs(np.log2(scales[:2] / np.sqrt(squares[:2]))) <= 0.5)
    np.testing.assert_array_equal(scales[2:5], 1.0)
    np.testing.assert_array_equal(column_scales(Problem(np.zeros(2), {"all": 5.0}, "logistic")), np.ones(2))


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e30, 1e30))
def test_each_of_the_three_numbers_is_small_enough_for_128_sites(value):
    _, addends = split([Moments(np.array([value]))], Scaling())
    assert (np.abs(addends.wide) < 2.0**54).all()
