"""What a Master that chooses its questions freely is not told."""

from __future__ import annotations

import numpy as np
import pytest
from test_points import Asked, model

from fedshed import DisclosureError
from fedshed.algorithms.firth import AskLeverages, Firth
from fedshed.algorithms.newton import Newton
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.linalg.arrays import pack
from fedshed.objectives.cox import Cox
from fedshed.objectives.links import LogLog, Probit
from fedshed.objectives.logistic import Logistic
from fedshed.objectives.ordinal import Ordinal
from fedshed.objectives.poisson import Poisson
from fedshed.privacy.audit import Audit, entries
from fedshed.privacy.gate import DesignFacts, Gate, Scope
from fedshed.privacy.policy import Policy
from fedshed.protocol.codec import codec_of
from fedshed.protocol.messages import Update
from fedshed.solve.evaluating import Evaluate, Evaluating, Recalibrate, Tabulate
from fedshed.solve.life_counts import AskCounts
from fedshed.solve.site_estimates import AskEstimate, SiteEstimates
from fedshed.solve.survival_checks import CheckSurvival, SurvivalCheck
from fedshed.tables.survival import survival

RULE = "deviance of at most 1.5|rows that count at each point"


def times(rows=200, strata=1, seed=0):
    """Rows of a survival study with three normal columns."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    time = rng.exponential(np.exp(-X @ [0.5, -0.3, 0.0]))
    return Cox(X, survival(time, rng.random(rows) < 0.7, None, np.arange(rows) % strata))


@pytest.mark.parametrize("cut", [-0.5, 0.0, 0.7])
def test_no_line_of_recalibration_cuts_the_rows_in_two(tmp_path, cut):
    """With a steep line the five sums would be a count, and a sum of scores, above a chosen score."""
    ask = Asked(tmp_path, model(), Evaluating())
    theta = np.array([0.3, 0.2, 0.1, 0.0])
    assert len(ask(Recalibrate(theta, np.array([0.0, 1.0])))) == 1
    with pytest.raises(DisclosureError, match=RULE):
        ask(Recalibrate(theta, np.array([-1e6 * cut, 1e6])))


class Pinned(Asked):
    """An approved study at a site: a plan that was prepared, and a gate that counts requests."""

    def __init__(self, folder, objective, conversation, points=None, parameter=None):
        self.audit = folder / "audit.jsonl"
        audit = Audit(self.audit)
        audit.append("study", "prepared", kind="Build", plan="plan", table="t")
        gate = Gate(Policy(), audit, Scope("study", "t", pinned=True, points=points))
        facts = DesignFacts("plan", ("u",), objective.dim, parameter=parameter)
        self.site = Guarded(Site("a", objective, conversation), gate, facts)
        self._codec = codec_of(conversation, objective.dim)


def test_rows_are_counted_on_one_grid_of_scores_only(tmp_path):
    """Counts on two grids would differ by single rows."""
    theta = np.array([0.3, 0.2, 0.1, 0.0])
    ask = Pinned(tmp_path, model(), Evaluating())
    first = Tabulate(theta, np.array([0.0, 0.5, 0.0]), 100, np.zeros(1), 0.0)
    assert ask(first)
    assert ask(first)  # again
    with pytest.raises(DisclosureError, match="one plan in a study"):
        ask(Tabulate(theta, np.array([0.001, 0.5, 0.0]), 100, np.zeros(1), 0.0))


def test_rows_held_out_are_evaluated_at_one_theta_only(tmp_path):
    ask = Pinned(tmp_path, model(), Evaluating())
    assert ask(Evaluate(np.array([0.3, 0.2, 0.1, 0.0])))
    with pytest.raises(DisclosureError, match="one plan in a study"):
        ask(Evaluate(np.array([0.3, 0.2, 0.1, 0.01])))


def test_pairs_of_rows_are_counted_at_one_theta_only(tmp_path):
    """Ranks do not depend on the length of theta, so tiny directions would pass every rule at points."""
    ask = Pinned(tmp_path, times(), SurvivalCheck())
    assert ask(CheckSurvival(np.array([1e-6, 0.0, 0.0])))
    with pytest.raises(DisclosureError, match="one plan in a study"):
        ask(CheckSurvival(np.array([1e-6, 1e-9, 0.0])))


def test_an_own_estimate_is_asked_for_once(tmp_path):
    ask = Pinned(tmp_path, model(), SiteEstimates())
    assert ask(AskEstimate(np.zeros(4), False))
    with pytest.raises(DisclosureError, match="one plan in a study"):
        ask(AskEstimate(np.zeros(4), True))


def test_theta_at_another_value_of_a_searched_parameter_is_another_point(tmp_path):
    theta = np.array([0.1, 0.0, 0.0, 0.2])
    for value in (0.5, 0.6, 0.7):
        ask = Pinned(tmp_path, model(Poisson), Newton(), parameter=value)
        ask(Update(1, theta))
    points = [point for entry in entries(tmp_path / "audit.jsonl") for point in entry.points]
    assert len(set(points)) == 3


# --- points far out ------------------------------------------------------------------------------------


def linked(kind):
    """Rows of two classes with another link."""
    return kind(model().X, model().y)


def ordered():
    """Rows of three ordered classes."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(150, 3))
    return Ordinal(X, np.digitize(X[:, 0] + rng.logistic(size=150), [-0.7, 0.7]), classes=3)


FAR = {
    "probit": (linked(Probit), np.array([1e3, 0.0, 0.0, -100.0])),
    "cloglog": (linked(LogLog), np.array([1e3, 0.0, 0.0, -100.0])),
    "ordinal": (ordered(), np.array([1e6, 0.0, 0.0, -1e5, 1e5])),
    "cox-strata": (times(strata=20), np.array([1e4, 0.0, 0.0])),
}


@pytest.mark.parametrize("name", FAR)
def test_no_point_far_out_is_answered(tmp_path, name):
    """There the rows count fully or not at all: of a Cox model the largest row of each stratum."""
    objective, theta = FAR[name]
    with pytest.raises(DisclosureError, match=RULE):
        Asked(tmp_path, objective, Newton())(Update(1, theta))


def test_a_chosen_inverse_gives_no_pull_of_a_few_rows(tmp_path):
    """Leverages may be even while few rows have a probability that differs from one half."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.concatenate([np.zeros(197), [1.0, 1.0, 1.0]]), rng.choice([-1.0, 1.0], 200)])
    y = np.where(rng.random(200) < 0.5, 1.0, -1.0)
    ask = Asked(tmp_path, Logistic(X, y), Firth(), Policy(min_rows_per_level=1))
    inverse = np.diag([0.0, 1e-2])
    assert ask(AskLeverages(np.array([0.0, 0.1]), pack(inverse)))
    with pytest.raises(DisclosureError, match="rows that count"):
        ask(AskLeverages(np.array([0.1, 0.0]), pack(inverse)))


def test_a_life_table_has_a_bounded_number_of_cells():
    """A grid of a million times in a thousand groups would take gigabytes at a site."""
    with pytest.raises(ValueError, match="cells"):
        AskCounts(np.arange(1e6), tuple(range(999)))
