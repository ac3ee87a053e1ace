"""The gate of a site: ceilings over all studies, what counts once, refusals that end a study."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed._utils.errors import DataError, DisclosureError
from fedshed.algorithms import build
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.objectives.least_squares import LeastSquares
from fedshed.privacy.audit import Audit, all_entries, entries, set_aside
from fedshed.privacy.entry import APPROVED
from fedshed.privacy.gate import Asked, DesignFacts, Gate, Scope
from fedshed.privacy.policy import Policy
from fedshed.protocol.codec import codec_of
from fedshed.protocol.messages import Search


def gate(audit: Audit, study: str = "study", policy: Policy | None = None, **more: object) -> Gate:
    scope = Scope(study, **{"table": "rows", "rows": 100, **more})
    return Gate(policy or Policy(), audit, scope)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 40), st.sampled_from("abc")), min_size=1))
def test_the_budget_of_a_table_is_kept_over_all_studies(tmp_path_factory, answers):
    """At most 1 number and 0.2 entries of Hessians for each of 100 rows and 3 columns, refusals included."""
    audit = Audit(tmp_path_factory.mktemp("audit") / "audit.jsonl")
    for k, (count, curvature, study) in enumerate(answers):
        asked = Asked(answer=f"answer {k}", curvature=min(curvature, count), parameters=3)
        with suppress(DisclosureError):
            gate(audit, study, Policy(max_refusals=1000)).release("Update", b"reply", count, asked=asked)
    table, record = audit.ledger.table("rows"), list(entries(audit._path))
    assert {one.rule.partition(" over all")[1] for one in record if one.rule} <= {" over all"}
    assert sum(one.scalars for one in record if not one.rule) <= 300
    assert table.curvature <= 60
    assert table.numbers == sum(one.scalars for one in record)


def test_each_table_has_a_separate_budget_and_more_columns_have_more(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl")
    gate(audit).release("Update", b"", 100)
    with pytest.raises(DisclosureError, match="max_numbers"):
        gate(audit).release("Update", b"", 1)
    gate(audit, table="other rows").release("Update", b"", 100)
    gate(audit).release("Update", b"", 90, asked=Asked(columns=("u", "v")))


def test_what_has_left_before_counts_once(tmp_path):
    """A study that is started again asks the same, and the answers tell nothing new."""
    audit = Audit(tmp_path / "audit.jsonl")
    for _ in range(5):
        gate(audit).release("Update", b"reply", 60, asked=Asked(answer="the same"))
    assert audit.ledger.table("rows").numbers == 60
    again = Audit(tmp_path / "audit.jsonl")
    gate(again).release("Update", b"reply", 60, asked=Asked(answer="the same"))
    assert again.ledger.table("rows").numbers == 60


def test_all_that_a_linear_model_tells_is_its_cross_product(tmp_path):
    audit, asked = Audit(tmp_path / "audit.jsonl"), Asked(plan="plan", curvature=6, cross_product=(15, 6))
    for k in range(50):
        gate(audit).release("Update", b"", 10, asked=Asked(**{**_fields(asked), "answer": f"{k}"}))
    table = audit.ledger.table("rows")
    assert (table.numbers, table.curvature) == (15, 6)


def _fields(asked: Asked) -> dict[str, object]:
    return {name: getattr(asked, name) for name in asked.__struct_fields__}


def test_a_study_may_ask_about_a_limited_number_of_points_and_for_one_plan(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl")
    bound = gate(audit, points=2, pinned=True, rows=10_000)
    with pytest.raises(DisclosureError, match="one plan in a study"):  # it was not prepared
        bound.release("Update", b"", 1, asked=Asked(points=("p",), kind="Play", plan="plan"))
    bound.release("Ready", b"", 1, asked=Asked(kind="Build", request="build", plan="plan"))
    for point in ("p", "q", "p"):
        bound.release("Update", b"", 1, asked=Asked(points=(point,), kind="Play", plan="plan"))
    with pytest.raises(DisclosureError, match="at most 2 points"):
        bound.release("Update", b"", 1, asked=Asked(points=("r",), kind="Play", plan="plan"))
    with pytest.raises(DisclosureError, match="one plan in a study"):
        bound.release("Update", b"", 1, asked=Asked(points=("p",), kind="Play", plan="another plan"))


def test_of_two_plans_that_were_prepared_one_is_fitted(tmp_path):
    """A study that standardises prepares two: the second is the one."""
    bound = gate(Audit(tmp_path / "audit.jsonl"), pinned=True, rows=10_000)
    for plan in ("plain", "scaled"):
        bound.release("Ready", b"", 1, asked=Asked(kind="Build", request=plan, plan=plan))
    bound.release("Update", b"", 1, asked=Asked(kind="Play", request="r", plan="scaled"))
    with pytest.raises(DisclosureError, match="one plan in a study"):
        bound.release("Update", b"", 1, asked=Asked(kind="Play", request="s", plan="plain"))


@pytest.mark.parametrize(("kind", "follows"), [("Play", True), ("Inspect", True), ("Scatter", False)])
def test_squared_scores_do_not_follow_from_a_cross_product(kind, follows):
    facts = DesignFacts(plan="plan", parameters=3, quadratic=True)
    asked = facts.asked(kind=kind, request="", points=(), answer="", curvature=6, leverage=None)
    assert (asked.cross_product is not None) == follows


def test_searches_along_one_line_are_counted(tmp_path):
    """Else the costs at any number of points of a line would be one point."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    site = Site("a", LeastSquares(X, X[:, 0]), build("newton"))
    guarded = Guarded(site, gate(Audit(tmp_path / "audit.jsonl"), points=3, rows=10_000))
    codec = codec_of(build("newton"), 2)
    for k in range(4):
        part = Search(np.zeros(2), np.ones(2), np.array([0.5 + k]))
        request = codec.encode_request(codec.encode_common(b"run!", k, [part]), None)
        with nullcontext() if k < 3 else pytest.raises(DisclosureError, match="at most 3 points"):
            guarded.handle(request)


def test_three_refusals_end_a_study_until_it_is_approved_again(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl")
    closed = gate(audit, policy=Policy(max_scalars=1))
    for _ in range(3):
        assert not closed.ended
        with pytest.raises(DisclosureError):
            closed.release("Update", b"", 2)
    assert "max_scalars" in closed.ended
    assert not gate(audit, "another").ended
    assert "max_scalars" in gate(Audit(tmp_path / "audit.jsonl")).ended  # a restart does not help
    audit.append("study", APPROVED)
    assert not closed.ended


@pytest.mark.parametrize("largest", [400, 2_000, 10_000])
def test_a_record_that_grows_is_set_aside_without_breaking_its_chain(tmp_path, largest):
    """The sums are carried over, a second process goes on with the new file, and a lost file is found."""
    path = tmp_path / "audit.jsonl"
    first, second = Audit(path, largest), Audit(path, largest)
    for k in range(60):
        gate((first, second)[k % 2], rows=10_000).release("Update", b"reply", 3, asked=Asked(answer=str(k)))
    assert set_aside(path)
    assert max(file.stat().st_size for _, file in set_aside(path)) < largest + 4_000
    written = [one for one in all_entries(path) if one.what == "Update"]
    assert len(written) == 60
    assert written[-1].total == 180
    assert Audit(path).ledger.table("rows").numbers == 180
    set_aside(path)[0][1].unlink()
    with pytest.raises(DataError, match="was changed, lines before it are missing"):
        list(all_entries(path))
