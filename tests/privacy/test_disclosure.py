"""What leaves a site: the rules, a site that fails closed, an audit that shows tampering, what leaks."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import fedshed
from fedshed._utils.errors import ConfigError, DataError, DisclosureError
from fedshed.algorithms import build
from fedshed.exchange import InProcess, Stateless
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.linalg import leading_eigenpairs
from fedshed.objectives import local_objectives
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic
from fedshed.privacy.audit import Audit, entries
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy, curvature, scalars
from fedshed.privacy.tables import objections
from fedshed.protocol.messages import Costs, Eigenpairs, Local

L2 = 1e-2


def table(rows=60, n=3, rare=20, positives=30, seed=0):
    """Continuous columns, then one of two levels with `rare` rows at the rarer; so many rows in class +1."""
    rng = np.random.default_rng(seed)
    level = np.zeros(rows)
    level[:rare] = 1.0
    y = np.full(rows, -1.0)
    y[rng.permutation(rows)[:positives]] = 1.0
    return np.column_stack([rng.normal(size=(rows, n - 1)), rng.permutation(level)]), y


def rules(X, y, policy=Policy(), labelled=True):  # noqa: B008
    return [one.rule for one in objections(policy, (Logistic if labelled else LeastSquares)(X, y))]


# --- the rules -------------------------------------------------------------------------------------------


@given(rows=st.integers(1, 40))
def test_min_rows_is_the_first_number_of_rows_that_passes(rows):
    X, y = table(rows, n=1, rare=0, positives=0)
    broken = any("min_rows)" in rule for rule in rules(X, y))
    assert broken == (rows < 10)


@given(positives=st.integers(0, 60))
def test_a_class_has_no_row_or_enough(positives):
    """In a linear study too: the gradient at 0 is a sum over the rows of a rare outcome."""
    for labelled in (True, False):
        found = rules(*table(positives=positives), labelled=labelled)
        assert any("min_rows_per_class" in rule for rule in found) == (0 < min(positives, 60 - positives) < 5)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
@pytest.mark.parametrize("rare", [0, 1, 4, 5, 30, 55, 56, 59, 60])
def test_a_level_of_a_two_level_column_has_no_row_or_enough(rare, form):
    X, y = table(rare=rare)
    broken = any("min_rows_per_level" in rule for rule in rules(form(X), y))
    assert broken == (0 < min(rare, 60 - rare) < 5)


@pytest.mark.parametrize(("rows", "n"), [(60, 12), (60, 13), (100, 20), (100, 21)])
def test_parameters_per_row(rows, n):
    broken = any("max_parameters_per_row" in rule for rule in rules(*table(rows, n)))
    assert broken == (n > 0.2 * rows)


@given(st.integers(0, 100), st.integers(0, 100))
def test_the_ceiling_is_never_exceeded(released, more):
    assert bool(Policy(max_scalars=100).exceeded(released, more)) == (released + more > 100)


@pytest.mark.parametrize("wrong", [{"min_rows": 0}, {"max_scalars": -1}, {"max_parameters_per_row": np.inf}])
def test_a_policy_that_allows_everything_by_mistake_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Policy(**wrong)


@pytest.mark.parametrize("heavy", [1, 9, 10, 40])
def test_rows_that_outweigh_all_others_are_the_only_ones_that_count(heavy):
    """With a column of weights of its choice a Master could look at a single row."""
    X, y = table(rows=60)
    weights = np.where(np.arange(60) < heavy, 1e9, 1e-9)
    objective = LeastSquares(X, y, weights)
    found = objections(Policy(), objective)
    assert any("min_rows)" in one.rule for one in found) == (heavy < 10)
    assert not objections(Policy(), LeastSquares(X, y, np.full(60, 7.0)))


def test_numbers_in_a_message_are_counted_whatever_they_are_in():
    pairs = Eigenpairs(1, 0, np.array([2.0, 1.0]), np.eye(4)[:2], 0.5, False)
    assert scalars(Local(0.1, np.zeros(4), pairs)) == 1 + 4 + 2 + 8 + 1 + 2
    assert curvature(Local(0.1, np.zeros(4), pairs)) == 8
    assert scalars(Costs(np.zeros(8))) == 8


# --- the guarded site -------------------------------------------------------------------------------------


def guarded(folder, tables, policy=Policy(), algorithm="fib-shed", made=InProcess):  # noqa: B008
    """A federation of these tables and a transport of guarded sites."""
    federation = fedshed.Federation.from_sites(tables)

    def connect(_):
        objectives = local_objectives(federation, "logistic")
        return made(
            {
                i: Guarded(Site(i, o, build(algorithm)), Gate(policy, Audit(folder / f"{i}.jsonl"), "study"))
                for i, o in objectives.items()
            }
        )

    return federation, connect


GOOD = {"a": table(seed=1), "b": table(seed=2)}


@pytest.mark.parametrize("algorithm", ["fib-shed", "newton", "pen", "qn-shed"])
@pytest.mark.parametrize("made", [InProcess, Stateless])
def test_a_guarded_site_answers_as_any_other_and_every_answer_is_on_record(tmp_path, algorithm, made):
    federation, connect = guarded(tmp_path, GOOD, algorithm=algorithm, made=made)
    result = fedshed.optimize(federation, algorithm=algorithm, l2=L2, transport=connect)
    plain = fedshed.optimize(federation, algorithm=algorithm, l2=L2)
    assert np.array_equal(result.theta, plain.theta)
    for i in GOOD:
        recorded = list(entries(tmp_path / f"{i}.jsonl"))
        assert len(recorded) == result.trace[-1].exchanges
        assert sum(entry.bytes for entry in recorded) == result.sites[i].uplink_bytes
        assert recorded[-1].total == sum(entry.scalars for entry in recorded)


@pytest.mark.parametrize(
    ("tables", "rule"),
    [
        ({**GOOD, "c": table(rows=9, n=3)}, "min_rows"),
        ({**GOOD, "c": table(positives=2)}, "min_rows_per_class"),
        ({**GOOD, "c": table(rare=3)}, "min_rows_per_level"),
        ({"c": table(rows=12, n=3, rare=6, positives=6)}, "max_parameters_per_row"),
    ],
)
def test_a_site_that_may_not_answer_sends_nothing_and_names_the_rule(tmp_path, tables, rule):
    federation, connect = guarded(tmp_path, tables)
    with pytest.raises(DisclosureError, match=rule) as refused:
        fedshed.optimize(federation, algorithm="fib-shed", l2=L2, transport=connect)
    (entry,) = entries(tmp_path / "c.jsonl")
    assert (entry.bytes, entry.total) == (0, 1)  # that it was refused
    assert rule in entry.rule
    assert "site 'c'" in str(refused.value)
    assert entry.detail not in str(refused.value)  # how many rows there are is nobody else's business


def test_over_a_network_the_master_is_told_the_rule_and_the_run_ends(tmp_path):
    class Remote(InProcess):
        def exchange(self, payloads):
            return [(i, self.sites[i].answer(payload)) for i, payload in payloads.items()]

    federation, connect = guarded(tmp_path, {**GOOD, "c": table(rows=9)}, made=Remote)
    with pytest.raises(fedshed.ProtocolError, match=r"'c'.*min_rows"):
        fedshed.optimize(federation, algorithm="fib-shed", l2=L2, transport=connect)


@pytest.mark.parametrize("ceiling", [1, 20, 60])
def test_no_more_numbers_leave_than_the_ceiling_allows_not_even_after_a_restart(tmp_path, ceiling):
    federation, connect = guarded(tmp_path, GOOD, Policy(max_scalars=ceiling))
    for _ in range(3):
        with pytest.raises(DisclosureError, match="max_scalars"):
            fedshed.optimize(federation, algorithm="fib-shed", l2=L2, transport=connect)
    for i in GOOD:
        if (path := tmp_path / f"{i}.jsonl").exists():
            assert sum(entry.scalars for entry in entries(path) if not entry.rule) <= ceiling


# --- the audit --------------------------------------------------------------------------------------------


def audit_of(path, count=5):
    audit = Audit(path)
    for k in range(count):
        audit.append("study", "Update -> Local", b"message %d" % k, 10)
    return audit


@pytest.mark.parametrize("line", range(4))
@pytest.mark.parametrize("tamper", ["change", "remove", "repeat", "garble"])
def test_tampering_with_the_audit_shows(tmp_path, line, tamper):
    audit_of(tmp_path / "audit.jsonl")
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines(keepends=True)
    if tamper == "change":
        lines[line] = lines[line].replace(b'"scalars":10', b'"scalars":11')
    elif tamper == "remove":
        del lines[line]
    elif tamper == "repeat":
        lines.insert(line, lines[line])
    else:
        lines[line] = b"{" + lines[line]
    (tmp_path / "audit.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"audit\.jsonl: line"):
        Audit(tmp_path / "audit.jsonl")


@pytest.mark.parametrize("cut", range(1, 200, 23))
def test_a_line_that_was_half_written_is_passed_over(tmp_path, cut):
    path = tmp_path / "audit.jsonl"
    audit_of(path)
    path.write_bytes(path.read_bytes()[:-cut])
    again = Audit(path)
    assert again.released("study") == 40 + 10 * (cut == 1)  # only its newline is missing: it is complete
    again.append("study", "Update -> Local", b"more", 5)
    assert [entry.total for entry in entries(path)][-1] == again.released("study")


WRITER = """
import sys
from fedshed.privacy.audit import Audit
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy
from fedshed._utils.errors import DisclosureError
gate = Gate(Policy(max_scalars=100), Audit(sys.argv[1]), "study")
for _ in range(40):
    try:
        gate.release("Update -> Local", b"answer", 3)
    except DisclosureError:
        pass
"""


def test_processes_of_one_site_share_its_audit_and_its_ceiling(tmp_path):
    """Nothing is lost, the chain is whole, and together they release no more than one may."""
    path = tmp_path / "audit.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    record = list(entries(path))
    assert len(record) == 120
    assert record[-1].total == sum(entry.scalars for entry in record)
    assert sum(entry.scalars for entry in record if not entry.rule) <= 100


def test_an_audit_that_was_cut_off_under_a_site_is_noticed(tmp_path):
    audit = audit_of(tmp_path / "audit.jsonl")
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "audit.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(DataError, match="removed at its end"):
        audit.append("study", "Update -> Local", b"more", 1)


def test_the_audit_holds_hashes_not_messages(tmp_path):
    audit_of(tmp_path / "audit.jsonl", 1)
    (entry,) = entries(tmp_path / "audit.jsonl")
    assert len(entry.message) == 64
    assert "message 0" not in (tmp_path / "audit.jsonl").read_text()
    assert msgspec.json.decode((tmp_path / "audit.jsonl").read_bytes())["what"] == "Update -> Local"


# --- what gradients and eigenpairs reveal (docs/privacy.md) -----------------------------------------------


def test_the_gradient_of_one_row_is_the_row():
    """g = l'(z) x: up to one factor the row itself; with an intercept the factor is known too."""
    rng = np.random.default_rng(5)
    x = np.append(rng.normal(size=4), 1.0)
    model = local_objectives(
        fedshed.Federation.from_sites({"one": (x[None, :], ["yes"]), "rest": (np.eye(5)[:2], ["no", "yes"])}),
        "logistic",
    )["one"]
    g = model.at(rng.normal(size=5)).gradient
    np.testing.assert_allclose(g / g[-1], x, rtol=1e-12)  # the intercept's entry of g is l'(z)


def test_eigenvectors_of_a_few_rows_span_the_rows():
    """H = X'DX/N has the row space of X, so every row is a combination of the eigenvectors sent."""
    X, _ = table(rows=4, n=12)
    y = np.array([1.0, -1.0, 1.0, -1.0])
    model = local_objectives(fedshed.Federation.from_sites({"few": (X, y)}), "logistic")["few"]
    _, vectors = leading_eigenpairs(model.at(np.zeros(12)).factor)
    V = vectors[:4]
    np.testing.assert_allclose(X @ V.T @ V, X, atol=1e-10)


def test_gradients_at_as_many_points_as_rows_give_the_rows_of_a_small_site():
    """With the labels known, N gradients and margins of N rows solve for X: why the policy counts rows."""
    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(3, 8)), np.array([1.0, -1.0, 1.0])
    model = local_objectives(fedshed.Federation.from_sites({"few": (X, y)}), "logistic")["few"]
    points = rng.normal(size=(3, 8))
    G = np.array([model.at(theta).gradient for theta in points])
    slopes = np.array([model.slopes(X @ theta) / 3 for theta in points])
    np.testing.assert_allclose(np.linalg.solve(slopes, G), X, atol=1e-8)
    assert rules(X, y)  # and such a site is not let out
