"""Counts of rows: what a reader sees, and what a site behind its gate says of few."""

from __future__ import annotations

import numpy as np
import pytest

from fedshed.preparation.agreement import agree
from fedshed.preparation.counts import RowCount, dropped_in_words, hidden, shown, total
from fedshed.preparation.guarded import GuardedPreparer
from fedshed.preparation.messages import CODEC, Build, Describe
from fedshed.preparation.site import Preparer
from fedshed.preparation.study import Study
from fedshed.privacy.audit import Audit, entries
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy

STUDY = Study(family="linear", target="y", missing="drop")


@pytest.mark.parametrize(("count", "said"), [(0, "0"), (1, "<5"), (4, "<5"), (5, "5"), (1234, "1,234")])
def test_few_rows_are_few(count, said):
    assert shown(hidden(count, 5)) == said


def test_totals_of_hidden_counts_are_no_more_than_is_known():
    assert total([3, 4]) == "7"
    assert total([3, -5, -5]) == "5 or more"


def table(lost):
    x = np.arange(60) + 0.5
    x[:lost] = np.nan
    return {"x": x, "y": np.arange(60.0) % 7}


def asked(site, part):
    reply = site.handle(CODEC.encode_request(CODEC.encode_common(b"run", 1, [part]), None))
    return CODEC.decode_reply(reply).parts[0]


@pytest.mark.parametrize(("lost", "told"), [(0, 0), (3, -5), (5, 5), (12, 12)])
def test_a_guarded_site_tells_no_count_of_few_rows(tmp_path, lost, told):
    """Neither directly nor as the difference of two others."""
    site = GuardedPreparer(Preparer("a", table(lost)), Gate(Policy(), Audit(tmp_path / "audit"), "study"))
    schema = asked(site, Describe(STUDY))
    assert {field.name: field.missing for field in schema.fields}["x"] == told
    assert schema.rows - schema.complete == max(told, 0)
    ready = asked(site, Build(agree(STUDY, {"a": schema})))
    assert (ready.rows, ready.dropped, dict(ready.missing).get("x", 0)) == (60 - lost, told, told)


def test_the_sentence_names_the_worst_columns_first():
    counts = {"a": RowCount(10, 5, {"x": 2, "z": 4}), "b": RowCount(20, -5, {"x": -5})}
    assert dropped_in_words(counts) == (
        "Rows with a missing value were dropped: 6 or more; 30 were used. Missing: x in 3 or more, z in 4."
    )
    assert dropped_in_words({"a": RowCount(10)}) is None


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_a_hidden_count_is_not_told_by_the_others(tmp_path, extra):
    """Of 6 to 8 rows dropped 5 miss one column: how many miss the other only must not follow."""
    made = table(5)
    made["z"] = np.where(np.arange(60) >= 60 - extra, np.nan, 1.0 + np.arange(60) % 5)
    site = GuardedPreparer(Preparer("a", made), Gate(Policy(), Audit(tmp_path / "audit"), "study"))
    schema = asked(site, Describe(STUDY))
    ready = asked(site, Build(agree(STUDY, {"a": schema})))
    assert (dict(ready.missing), ready.dropped) == ({"x": 5, "z": -5}, -10)
    assert schema.rows == schema.complete


def test_a_refusal_counts_no_rows_and_is_counted_itself(tmp_path):
    """Else the rows above any number of the Master's choice could be counted for nothing."""
    site = GuardedPreparer(Preparer("a", table(0)), Gate(Policy(), Audit(tmp_path / "audit"), "study"))
    study = Study(family="linear", formula="y ~ log(x - 20.5)")
    plan = agree(study, {"a": asked(site, Describe(study))})
    answer = asked(site, Build(plan))
    assert answer.reason == "its rows do not fit the study; the site's own log says why"
    assert [(entry.scalars, bool(entry.rule)) for entry in entries(tmp_path / "audit")][-1] == (1, True)
