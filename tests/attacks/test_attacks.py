"""Every known attack on our own Node: without its rules it succeeds, with them it recovers nothing."""

from __future__ import annotations

import logging

import pytest
from benchmarks.attacks import ATTACKS

ALL_ROWS = (
    "saturated cuts",
    "membership by positive",
    "soft random points",
    "study hopping, new names",
    "passive reconstruction, n = 5",
    "passive reconstruction, n = 6",
)


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


def test_every_rule_of_an_attack_has_a_switch():
    from benchmarks.attacks.target import SWITCHES

    assert {rule for one in ATTACKS.values() for rule in one.rules} <= set(SWITCHES)


def test_an_outcome_is_read_by_these_names():
    from benchmarks.attacks import Outcome

    assert Outcome.__struct_fields__ == ("attack", "mode", "rows", "recovered", "requests", "numbers")
