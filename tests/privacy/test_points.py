"""Rules at points: what may be asked about theta, whichever message asks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from fedshed._utils.errors import DisclosureError
from fedshed.algorithms import build
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.objectives.gamma import Gamma
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic
from fedshed.objectives.multinomial import Multinomial
from fedshed.objectives.poisson import Poisson
from fedshed.privacy.audit import Audit, entries
from fedshed.privacy.gate import Gate
from fedshed.privacy.points import PointRules, effective_rows
from fedshed.privacy.policy import Policy
from fedshed.privacy.tables import objections
from fedshed.protocol.codec import codec_of
from fedshed.protocol.messages import Search, Share, Undefined, Update
from fedshed.solve.inspection import Inspect, Inspection
from fedshed.solve.scatter import RowScatter, Scatter

OFF = Policy(effective_rows=1, max_deviance=1e300)


def model(kind=Logistic, rows=120, n=4, seed=0):
    """Rows of an honest study: normal columns and a constant, and a response that follows from them."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(rows, n - 1)), np.ones(rows)])
    z = X @ rng.normal(scale=0.7, size=n)
    if kind is Logistic:
        return kind(X, np.where(rng.logistic(size=rows) < z, 1.0, -1.0))
    if kind is Multinomial:
        return kind(X, rng.permutation(np.arange(rows) % 3), classes=3)
    if kind is Poisson:
        return kind(X, rng.poisson(np.exp(z)).astype(float))
    return kind(X, rng.gamma(2.0, np.exp(z)) if kind is Gamma else z + rng.normal(size=rows))


class Asked:
    """A guarded site, and what it answers to parts of a request."""

    def __init__(self, folder, objective, conversation, policy=Policy()):  # noqa: B008
        self.audit = folder / "audit.jsonl"
        self.site = Guarded(Site("a", objective, conversation), Gate(policy, Audit(self.audit), "study"))
        self._codec = codec_of(conversation, objective.dim)

    def __call__(self, *parts, mine=None):
        common = self._codec.encode_common(b"run!", 1, parts)
        reply = self.site.handle(self._codec.encode_request(common, mine))
        return self._codec.decode_reply(reply).parts


def saturated(objective, K=1e9, t=0.1):
    """theta that cuts the rows in two by their first column."""
    theta = np.zeros(objective.dim)
    theta[0], theta[-1] = K, -K * t
    return theta


# --- Kish's effective rows ---------------------------------------------------------------------------------


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(0.0, 1e6)))
def test_effective_rows_are_from_one_to_all_rows(v):
    assert 1 - 1e-9 <= effective_rows(v) <= len(v) * (1 + 1e-9)


@given(arrays(np.float64, 12, elements=st.floats(1e-3, 1e3)), st.integers(-280, 280))
def test_effective_rows_do_not_depend_on_units(v, power):
    np.testing.assert_allclose(effective_rows(v * 10.0**power), effective_rows(v), rtol=1e-9)


@given(st.integers(1, 40), st.integers(0, 40))
def test_rows_of_equal_weight_all_count_and_others_do_not(some, none):
    assert effective_rows(np.r_[np.ones(some), np.zeros(none)]) == pytest.approx(some)
    assert effective_rows(np.column_stack([np.ones(some + none), np.eye(some + none)[0]])) == 1


# --- honest points and others ------------------------------------------------------------------------------


def refused(objective, theta, policy=Policy()):  # noqa: B008
    rules, point = PointRules(policy, objective), objective.at(theta)
    return rules.of_gradient(point) or rules.of_curvature(point)


@given(seed=st.integers(0, 10_000), kind=st.sampled_from([Logistic, Multinomial, Poisson, Gamma]))
@settings(max_examples=40, deadline=None)
def test_no_honest_optimum_is_refused_nor_any_point_between_the_start_and_it(seed, kind):
    objective = model(kind, seed=seed)
    assume(not objections(Policy(), objective))
    start = np.zeros((objective.dim // 4, 4))
    start[:, -1] = kind.null_levels(objective.null_moments())
    found = minimize(lambda x: objective.at(x).value, start.ravel(), jac=lambda x: objective.at(x).gradient).x
    for share in (0.0, 0.3, 1.0):
        assert refused(objective, (1 - share) * start.ravel() + share * found) is None


@pytest.mark.parametrize("K", [1e9, 1e2, 30.0])
@pytest.mark.parametrize("kind", [Logistic, Multinomial])
@pytest.mark.parametrize("t", [-0.5, 0.0, 0.1, 1.0])
def test_a_point_that_cuts_the_rows_in_two_is_refused(kind, K, t):
    objective = model(kind)
    assert refused(objective, saturated(objective, K, t)) is not None
    assert refused(objective, saturated(objective, K, t), OFF) is None


@pytest.mark.parametrize("kind", [Poisson, Gamma])
def test_a_point_at_which_one_row_outweighs_all_others_is_refused(kind):
    objective = model(kind)
    far = int(np.abs(objective.X[:, 0]).argmax())
    theta = np.zeros(4)
    theta[0] = 40.0 * np.sign(objective.X[far, 0]) * (1 if kind is Poisson else -1)
    assert "effective_rows" in refused(objective, theta).rule


def test_separated_rows_are_refused_where_few_of_them_count():
    """Scaled by a large number, a direction that separates the classes leaves the rows at the border."""
    X = np.column_stack([np.linspace(-3, 3, 100), np.ones(100)])
    objective = Logistic(X, np.sign(X[:, 0]))
    assert refused(objective, np.array([3.0, 0.0])) is None
    assert "effective_rows" in refused(objective, np.array([100.0, 0.0])).rule


# --- every message -----------------------------------------------------------------------------------------

ASKS = {
    "Update": ("newton", lambda theta: (Update(1, theta),), None),
    "Update of lbfgs": ("lbfgs", lambda theta: (Update(2, theta),), None),
    "anchor": ("fib-shed", lambda theta: (Update(2, np.zeros(4)),), lambda theta: Share(1, 0, True, theta)),
    "Inspect": (Inspection(), lambda theta: (Inspect(theta),), None),
    "Scatter": (RowScatter(), lambda theta: (Scatter(theta, None, 0, True),), None),
}


@pytest.mark.parametrize("ask", ASKS)
def test_no_message_is_answered_at_a_forbidden_point_and_the_refusal_is_one_sentence(tmp_path, ask):
    conversation, parts, mine = ASKS[ask]
    conversation = build(conversation) if isinstance(conversation, str) else conversation
    words = set()
    for t in (-0.3, 0.2):
        theta = saturated(model(), t=t)
        asked = Asked(tmp_path, model(), conversation)
        with pytest.raises(DisclosureError, match="max_deviance") as told:
            asked(*parts(theta), mine=mine(theta) if mine else None)
        words.add(str(told.value))
        last = list(entries(asked.audit))[-1]
        assert (last.bytes, last.scalars) == (0, 1)
        assert last.detail not in str(told.value)
    assert len(words) == 1
    free = Asked(tmp_path, model(), conversation, OFF)
    assert free(*parts(theta), mine=mine(theta) if mine else None)


def test_a_search_finds_forbidden_steps_infinite_and_allowed_ones_as_they_are(tmp_path):
    objective, etas = model(), np.array([1.0, 0.5, 2e-4, 1e-4])
    search = Search(np.zeros(4), saturated(objective, 1e3), etas, slopes=True)
    (plain,) = Asked(tmp_path, objective, build("newton"), OFF)(search)
    costs, update = Asked(tmp_path, objective, build("newton"))(search, Update(2, None))
    assert np.isinf(costs.values[:2]).all()
    assert np.isinf(costs.slopes[:2]).all()
    assert np.array_equal(costs.values[2:], plain.values[2:])
    assert np.array_equal(costs.slopes[2:], plain.slopes[2:])
    assert isinstance(update, Undefined)


@given(st.integers(0, 1000), st.floats(-8.0, 8.0), st.floats(-8.0, 8.0))
@settings(max_examples=60, deadline=None)
def test_the_fast_bound_never_passes_what_the_rule_refuses(seed, size, shift):
    objective, policy = model(rows=30, seed=seed), Policy(effective_rows=12, max_deviance=1e300)
    z = objective.margins(np.full(4, size)) + shift
    rules, cost = PointRules(policy, objective), float(objective.mean(objective.losses(z)))
    if rules._many(cost, z):
        assert effective_rows(objective.slopes(z)) >= 12 * (1 - 1e-9)


def test_all_answers_about_least_squares_follow_from_one_so_no_point_is_refused(tmp_path):
    objective = model(LeastSquares)
    assert Asked(tmp_path, objective, build("newton"))(Update(1, np.array([1e6, 0.0, 0.0, 0.0])))


def test_squared_scores_that_one_row_makes_up_do_not_leave(tmp_path):
    """Where a gradient may: |l'| counts many rows, and its square one."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(1000, 1)), np.ones(1000)])
    X[0, 0] = 8.0
    poisson, theta = Poisson(X, rng.poisson(1.0, size=1000).astype(float)), np.array([0.75, 0.0])
    asked = Asked(tmp_path, poisson, RowScatter())
    with pytest.raises(DisclosureError, match="effective_rows"):
        asked(Scatter(theta, None, 0, True))
    Asked(tmp_path, poisson, Inspection())(Inspect(np.zeros(2)))
    Asked(tmp_path, poisson, RowScatter())(Scatter(np.zeros(2), None, 0, True))
    point = poisson.at(theta)
    assert PointRules(Policy(), poisson).of_gradient(point) is None
