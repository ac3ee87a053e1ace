"""Every known attack on our own Node: without its rules it succeeds, with them it recovers nothing."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from benchmarks.attacks import ATTACKS
from benchmarks.attacks.cuts import STEEP
from benchmarks.attacks.master import DeniedError
from benchmarks.attacks.overhear import overheard
from benchmarks.attacks.protected import ProtectedMaster
from benchmarks.attacks.simulated import patients, with_intercept
from benchmarks.attacks.target import SITE, nodes

from fedshed.deployment.config import StudyFile
from fedshed.preparation import Study
from fedshed.protocol.messages import Update

ALL_ROWS = (
    "saturated cuts",
    "membership by positive",
    "soft random points",
    "study hopping, new names",
    "passive reconstruction, n = 5",
    "passive reconstruction, n = 6",
)


def overheard_without_rules(*arguments, kept):
    return overheard(*arguments)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Sites log every refusal; there are many here."""
    caplog.set_level(logging.CRITICAL + 1, "fedshed")


@pytest.mark.parametrize("name", ATTACKS)
def test_with_its_rule_switched_off_the_attack_succeeds(name):
    """So that a test of the rule can fail."""
    outcome = ATTACKS[name]("rule off")
    assert outcome.recovered >= (outcome.rows if name in ALL_ROWS else 1), outcome


@pytest.mark.parametrize("name", ATTACKS)
def test_with_its_rule_the_attack_fails(name):
    """Rows recovered, lies believed, and messages that cost too much: none."""
    outcome = ATTACKS[name]("rule on")
    assert outcome.recovered == 0, outcome


@pytest.mark.parametrize("name", [name for name, one in ATTACKS.items() if "protected" in one.modes])
def test_in_protected_mode_the_attack_fails_without_the_rules_of_plain_mode(name):
    """The Master alone asks in the open, or in place of an honest request, or listens to the sums."""
    outcome = ATTACKS[name]("protected")
    assert outcome.recovered == 0, outcome
    assert outcome.requests > 0, outcome


def test_without_the_replay_of_requests_a_point_of_the_masters_own_is_answered(monkeypatch):
    """So that the tests of protected mode can fail: the sums are those of one site with all rows."""
    frame, theta = patients(40), STEEP * np.array([1.0, -0.5, 0.1])
    file = StudyFile(Study(family="logistic", target="disease", columns=("x0", "x1")), (SITE,), "lbfgs")
    with nodes({SITE: frame}, file, "protected", ()) as sites:
        master = ProtectedMaster(sites)
        play = master.play(master.agree(file.study)[0], "lbfgs")
        with pytest.raises(DeniedError, match="refused"):
            play.ask(Update(1, theta))
        monkeypatch.setattr("fedshed.fitting.protected_site.check_request", lambda *_: None)
        (answer,) = play.ask(Update(1, theta))
    X = with_intercept(frame, ("x0", "x1"))
    wrong = (X @ theta > 0) * 1.0 - frame["disease"].to_numpy()
    assert np.allclose(answer.gradient, wrong @ X / len(X), atol=1e-12)


def test_without_rules_on_the_rows_of_all_sites_an_honest_fit_tells_few_rows(monkeypatch):
    monkeypatch.setattr("benchmarks.attacks.passive.overheard", overheard_without_rules)
    outcome = ATTACKS["passive reconstruction, n = 5"]("protected")
    assert outcome.recovered == outcome.rows, outcome


def test_every_rule_of_an_attack_has_a_switch():
    from benchmarks.attacks.target import SWITCHES

    assert {rule for one in ATTACKS.values() for rule in one.rules} <= set(SWITCHES)


def test_an_outcome_is_read_by_these_names():
    from benchmarks.attacks import Outcome

    assert Outcome.__struct_fields__ == ("attack", "mode", "rows", "recovered", "requests", "numbers")
