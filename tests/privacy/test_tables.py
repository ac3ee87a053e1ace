"""Rules of a table: classes of any target, levels, cells, and columns that a formula computes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedshed import Study
from fedshed._utils.errors import DisclosureError
from fedshed.linalg.tall import Tall
from fedshed.objectives.gamma import Gamma
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.poisson import Poisson
from fedshed.preparation.agreement import agree
from fedshed.preparation.cells import design_objections
from fedshed.preparation.describe import describe
from fedshed.preparation.guarded import GuardedPreparer
from fedshed.preparation.messages import CODEC, Build
from fedshed.preparation.site import Preparer
from fedshed.privacy.audit import Audit, entries
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy
from fedshed.privacy.tables import column_objections, differing_rows, objections, target_objections

X = np.random.default_rng(0).normal(size=(60, 2))


@given(st.integers(1, 59), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_rows_that_differ_from_a_constant_are_counted_whatever_constant_and_units(few, c, scale):
    values = c + scale * (np.arange(60) < few)
    assert differing_rows(values) == pytest.approx(min(few, 60 - few))


def test_one_extreme_row_counts_alone_even_where_no_value_is_common():
    values = np.r_[np.random.default_rng(0).normal(size=99), 1e9]
    assert differing_rows(values) == pytest.approx(1.0, abs=1e-5)
    assert differing_rows(values[:99]) > 50


@pytest.mark.parametrize("kind", [LeastSquares, Poisson, Gamma])
@pytest.mark.parametrize("cases", [1, 4, 5, 20])
def test_a_rare_outcome_is_refused_in_every_family(kind, cases):
    """The gradient at 0 less what the sums of columns give is the sum over the cases."""
    y = 1.0 + (np.arange(60) < cases)
    found = objections(Policy(), kind(X, y))
    assert any("min_rows_per_class" in one.rule for one in found) == (cases < 5)
    several = y + 1e-12 * (np.arange(60) == 0) * (cases > 1)  # three values are no classes, but as few rows
    found = objections(Policy(), kind(X, several))
    assert any("min_rows_per_class" in one.rule for one in found) == (cases < 5)


def test_weights_that_leave_few_rows_of_an_outcome_count():
    y = np.r_[np.arange(1.0, 11.0), np.zeros(50)]
    assert not target_objections(Policy(), y, False)
    heavy = np.where(np.arange(60) == 0, 1e6, 1.0)
    assert target_objections(Policy(), y, False, heavy)


@pytest.mark.parametrize("form", [np.asarray, csr_array, Tall])
@pytest.mark.parametrize("few", [0, 1, 4, 5, 30, 56, 60])
def test_few_rows_that_differ_from_a_columns_commonest_value_are_a_cell(form, few):
    """Whether they have one value, as those of a level have, or several, as a product with a number has."""
    for values in (np.ones(60), np.arange(1.0, 61.0)):
        column = np.where(np.arange(60) < few, values, 0.0)
        broken = column_objections(Policy(), form(np.column_stack([X, column])), ("a", "b", "c"))
        differ = min(few, 60 - few) if values[0] == values[1] else (few if few <= 56 else 59)
        assert bool(broken) == (0 < differ < 5)


def frame(rows=200, cell=20):
    """Two categories, of which a combination has so many rows, and two numbers."""
    rng = np.random.default_rng(1)
    a, b = np.repeat(["u", "v"], rows // 2), np.resize(["p", "q"], rows)
    b[: rows // 2] = "p"
    b[:cell] = "q"
    age, bmi = rng.integers(20, 80, rows).astype(float), rng.normal(27, 4, rows).round(1)
    return pd.DataFrame({"a": a, "b": b, "age": age, "bmi": bmi, "y": rng.integers(0, 2, rows)})


def found(table, formula):
    """What the policy has against the design of a formula."""
    study = Study(family="logistic", formula=f"y ~ {formula}")
    preparer = Preparer("s", table)
    plan = agree(study, {"s": describe(study, preparer.frame, 1)})
    return plan, design_objections(Policy(), plan, preparer.frame, preparer.built(plan)[1])


@pytest.mark.parametrize("cell", [0, 1, 4, 5, 40])
def test_a_cell_of_two_categories_has_no_row_or_enough_the_references_too(cell):
    assert bool(found(frame(cell=cell), "a + b + a:b")[1]) == (0 < cell < 5)
    assert not found(frame(cell=cell), "a + b")[1]  # sums over cells that no term makes


@pytest.mark.parametrize(
    "term",
    ["log(age)", "I(age**2)", "I(age**3)", "I(age * bmi)", "age:a", "age:bmi", "sqrt(bmi)", "exp(age / 40)"],
)
def test_honest_transforms_are_not_refused(term):
    assert not found(frame(), f"age + {term}")[1]


def test_a_column_that_is_large_in_one_row_is_refused_in_the_preparation_before_anything_leaves(tmp_path):
    table = frame()
    age, bmi = table.loc[7, ["age", "bmi"]]
    plan, broken = found(table, f"I(bmi / (1e-14 + (age - {age})**2 + (bmi - {bmi})**2))")
    assert any("computed" in one.rule for one in broken)
    gate = Gate(Policy(), Audit(tmp_path / "audit.jsonl"), "study")
    site = GuardedPreparer(Preparer("s", table), gate)
    common = CODEC.encode_common(b"run!", 1, [Build(plan)])
    with pytest.raises(DisclosureError, match="computed column") as told:
        site.handle(CODEC.encode_request(common, None))
    (entry,) = entries(tmp_path / "audit.jsonl")
    assert entry.rule
    assert entry.detail not in str(told.value)
