"""The budget of private studies: kept by table over all studies, across restarts, and refused in words."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed._utils.errors import ConfigError, DisclosureError
from fedshed.privacy.audit import Audit, entries
from fedshed.privacy.gate import Gate, Scope
from fedshed.privacy.policy import Policy
from fedshed.privacy.zcdp import epsilon_of, rho_for

CEILING = rho_for(10.0, 1e-5)


def gate(audit: Audit, study: str = "study", table: str = "rows", **rules: float) -> Gate:
    return Gate(Policy(**rules), audit, Scope(study, table=table))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1.5), st.sampled_from("abc")), min_size=1, max_size=12))
def test_what_private_studies_cost_together_never_exceeds_the_ceiling(tmp_path_factory, asked):
    audit = Audit(tmp_path_factory.mktemp("audit") / "audit.jsonl", largest=2000)  # it is set aside often
    for k, (rho, study) in enumerate(asked):
        with suppress(DisclosureError):
            gate(audit, study, max_refusals=1000).charge(rho, f"run {k}")
    spent = gate(audit).spent()
    assert epsilon_of(spent, 1e-5) <= 10.0 * (1 + 1e-6)
    again = gate(Audit(audit._path))
    assert again.spent() == pytest.approx(spent, rel=1e-12)


def test_a_refusal_names_the_rule_and_spends_nothing(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl")
    gate(audit).charge(0.9 * CEILING, "first")
    with pytest.raises(DisclosureError, match=r"epsilon = 10 with delta = 1e-05 .*max_epsilon"):
        gate(audit, "another study").charge(0.2 * CEILING, "second")
    assert gate(audit).spent() == pytest.approx(0.9 * CEILING)
    gate(audit).charge(0.1 * CEILING, "third")
    (refused,) = (one for one in entries(audit._path) if one.rule)
    assert (refused.rho, refused.kind) == (0.0, "Privacy")
    assert "is spent" in refused.detail  # which stays at the site


def test_a_run_is_charged_once_and_a_changed_table_has_no_new_budget(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl")
    for _ in range(3):
        gate(audit).charge(CEILING, "run")
    with pytest.raises(DisclosureError, match="max_epsilon"):
        gate(audit, table="the same rows but one").charge(0.01 * CEILING, "another run")
    assert [one.rho for one in entries(audit._path)] == [CEILING, 0.0]


def test_the_ceiling_is_a_rule_of_the_site(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl")
    with pytest.raises(DisclosureError, match="at most epsilon = 1 with delta = 1e-06"):
        gate(audit, max_epsilon=1.0, max_delta=1e-6).charge(rho_for(1.1, 1e-6), "run")
    gate(audit, max_epsilon=1.0, max_delta=1e-6).charge(rho_for(1.0, 1e-6), "another run")
    with pytest.raises(ConfigError, match="max_delta must be below 1"):
        Policy(max_delta=1.0)
