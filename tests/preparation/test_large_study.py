"""A study of tables that are not copied says, agrees on and fits what it does of the same rows in memory."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import fedshed
from fedshed import Study
from fedshed.linalg import tall
from fedshed.linalg.tall import Tall
from fedshed.objectives.build import local_objective
from fedshed.preparation import prepare
from fedshed.preparation.cells import design_objections
from fedshed.preparation.describe import describe, rarest
from fedshed.preparation.units import moments
from fedshed.privacy.policy import Policy
from fedshed.privacy.tables import objections
from fedshed.tables import lazy
from fedshed.tables.columns import read_column
from fedshed.tables.frames import Frame

# A table of 10 MB, of which a process that has run a study before may hold 5 MB more.
LIMITED = """
import json, resource, sys
import numpy as np, pyarrow as pa
import fedshed
from fedshed.tables import lazy
from fedshed.linalg import tall

pa.set_cpu_count(1), pa.set_io_thread_count(1)  # no thread begins, with a stack, below the limit
path, copied = sys.argv[1], int(sys.argv[2])
lazy.COPIED, tall.BLOCK = copied, 1 << 16
study = fedshed.Study(family="linear", target="y", missing="indicator", standardize=True)
def mapped():
    return pa.ipc.open_file(pa.memory_map(path)).read_all()
fedshed.fit({"a": mapped().slice(0, 2000), "b": mapped().slice(2000, 2000)}, study)
held = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (held * 1024 + 5_000_000,) * 2)

half = len(mapped()) // 2
model = fedshed.fit({"a": mapped().slice(0, half), "b": mapped().slice(half)}, study)
errors = model.inference.std_err(False).tolist()
print(json.dumps([model.converged, list(model.inference.coefficients), errors]))
"""


def rows_of(seed, rows=700):
    """Rows of every kind of column, some of them incomplete."""
    rng = np.random.default_rng(seed)
    lost = rng.random((4, rows)) < 0.05
    x, age = rng.normal(2, 3, rows), rng.integers(18, 90, rows)
    region = np.array(["north", "south", "east"])[rng.integers(0, 3, rows)]
    return pa.table(
        {
            "x": pa.array(x, mask=lost[0]),
            "age": pa.array(age, mask=lost[1]),
            "region": pa.array(region, mask=lost[2]),
            "code": rng.integers(1, 4, rows),
            "flag": pa.array(rng.random(rows) < 0.4, mask=lost[3]),
            "kind": pa.array(region).dictionary_encode(),
            "w": rng.integers(1, 4, rows).astype(float),
            "shift": 0.1 * rng.normal(size=rows),
            "person": rng.integers(0, 40, rows),
            "y": np.where(rng.random(rows) < 1 / (1 + np.exp(-0.3 * x + 0.6)), "yes", "no"),
            "n": rng.poisson(np.exp(0.1 * x)),
            "t": rng.exponential(size=rows),
        }
    )


TABLES = {"a": rows_of(0), "b": rows_of(1)}
ALL = ("x", "age", "region", "flag", "code")
STUDIES = {
    "drop": Study(
        family="logistic", target="y", columns=ALL, categories=("code",), missing="drop", weight="w",
        weight_type="frequency",
        standardize=True, positive=("yes",),
    ),
    "indicator": Study(family="logistic", target="y", columns=ALL, missing="indicator", standardize=True),
    "impute": Study(family="poisson", target="n", columns=ALL, missing="impute", offset="shift"),
    "splines": Study(
        family="poisson", target="n", formula="bs(x, df=5) + poly(age, 2) + C(code) + x:age + kind",
        missing="drop", standardize=True,
    ),
    "filled splines": Study(
        family="linear", target="n", formula="scale(x) + cr(age, df=4) + region + x:age", missing="impute"
    ),
    "classes": Study(family="multinomial", target="kind", columns=("x", "age"), missing="drop"),
    "clusters": Study(
        family="logistic", target="y", columns=("x", "region"), missing="drop", cluster="person"
    ),
    "held out": Study(family="logistic", target="y", columns=("x", "region"), missing="drop", holdout=0.2),
    "times": Study(family="cox", time="t", event="flag", columns=("x", "region"), missing="drop"),
}  # fmt: skip
ERRORS = {"clusters": "cluster", "drop": "HC3", "splines": "HC2"}


@pytest.fixture
def large(monkeypatch, request):
    """Every Arrow table counts as one that is not to be copied, and its design has several blocks."""
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    monkeypatch.setattr(lazy, "COPIED", 0)
    monkeypatch.setattr(tall, "BLOCK", 1 << 13 if name == "splines" else 1 << 12)


def each_way(monkeypatch, made):
    """What a function gives for tables that are left where they are, and for copies of them."""
    found = []
    for copied in (0, 1 << 27):
        monkeypatch.setattr(lazy, "COPIED", copied)
        found.append(made())
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_a_large_table_is_fitted_as_a_copy_of_it(name, large, monkeypatch):
    robust = ERRORS.get(name, False)
    left, copy = each_way(
        monkeypatch, lambda: fedshed.fit(TABLES, STUDIES[name], algorithm="newton", errors=robust or None)
    )
    for one, other in (
        (left.inference.coefficients, copy.inference.coefficients),
        (left.inference.std_err(robust), copy.inference.std_err(robust)),
        (left.plan.scales or (), copy.plan.scales or ()),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)
    assert left.rows == copy.rows  # with the marks of the rows
    assert left.plan.names == copy.plan.names
    assert left.plan.transforms == copy.plan.transforms


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_site_says_of_its_columns_is_the_same_to_the_bit(name, large, monkeypatch):
    """It is computed column by column, and the design, whose rows are made when they are read, row by row."""
    study = STUDIES[name]
    plan = prepare(TABLES, study).plan

    def said():
        frame = Frame(TABLES["a"])
        schema = describe(study, frame)
        table, _ = plan.build(frame)
        assert isinstance(table.X, Tall) is (frame.large and name != "times")  # a Cox model sorts its rows
        numbers = (*moments(plan, frame, table.weights), table.X, table.y)
        return msgspec.json.encode(schema), rarest(study, frame, schema), numbers

    (*left, numbers), (*copy, others) = each_way(monkeypatch, said)
    assert left == copy
    for one, other in zip(numbers, others, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("name", ["drop", "indicator", "splines", "held out"])
def test_a_policy_objects_to_a_large_table_as_to_a_copy_of_it(name, large, monkeypatch):
    """Few rows of a level, of a class, or behind a computed column are found block by block, too."""
    policy, study = Policy(min_rows_per_level=180, min_rows_per_class=400), STUDIES[name]
    plan = prepare(TABLES, study).plan

    def found():
        frame = Frame(TABLES["a"])
        table, design = plan.build(frame)
        objective = local_objective("a", table, plan.loss, plan.classes, plan.intercept)
        return objections(policy, objective) + design_objections(policy, plan, frame, design)

    left, copy = each_way(monkeypatch, found)
    assert left == copy != []


def test_an_infinite_number_is_refused_with_the_rows_of_all_blocks(large, monkeypatch):
    table = rows_of(2)
    table = table.set_column(0, "x", pa.array(np.where(np.arange(700) % 100, 1.0, np.inf)))

    def refusal():
        with pytest.raises(fedshed.Error) as refused:
            fedshed.fit({"a": table}, Study(family="linear", target="n", columns=("x", "code")))
        return str(refused.value)

    left, copy = each_way(monkeypatch, refusal)
    assert left == copy
    assert "in 7 of 700 rows" in left


def test_chunks_of_any_length_and_their_own_dictionaries_make_the_same_design(large, monkeypatch):
    """Also with a level that occurs in the last block only, and where borders of chunks and blocks differ."""
    rng, rows = np.random.default_rng(6), 600
    level = np.where(np.arange(rows) < 590, rng.choice(["a", "b"], rows), "late").tolist()
    x, lost = rng.normal(size=rows), rng.random(rows) < 0.2
    parts = [slice(0, 7), slice(7, 7), slice(7, 451), slice(451, rows)]
    table = pa.table(
        {
            "x": pa.chunked_array([pa.array(x[part], mask=lost[part]) for part in parts]),
            "c": pa.chunked_array(
                [pa.array(level[:200]).dictionary_encode(), pa.array(level[200:]).dictionary_encode()]
            ),
            "y": rng.normal(size=rows),
        }
    )
    monkeypatch.setattr(tall, "BLOCK", 1 << 7)
    plan = prepare({"a": table, "b": table.slice(0)}, Study(family="linear", target="y", missing="drop")).plan
    left, copy = each_way(monkeypatch, lambda: plan.build(Frame(table))[0])
    assert isinstance(left.X, Tall)
    np.testing.assert_array_equal(np.asarray(left.X), copy.X)
    assert copy.X[:, -1].sum() == (~lost[590:]).sum()


# Columns


def columns_of_all_kinds():
    text = [None, "b", "NA", "a", "b", "10", "c", None, "a", "d"]
    order = pa.array(["low", "mid", "high"])
    return {
        "text": pa.chunked_array([text[:4], text[4:]]),
        "declared": pa.chunked_array([pa.array(text).dictionary_encode()]),
        "ordered": pa.chunked_array(
            [pa.DictionaryArray.from_arrays([2, None, 0, 2, 1, 0, 0, 1, 2, 2], order, ordered=True)]
        ),
        "booleans": pa.chunked_array([[True, None, False, True, True, None, None, False, True, True]]),
        "decimals": pa.chunked_array([[Decimal("1.5"), None] * 5]),
        "whole": pa.chunked_array([pa.array([1, None, 3, 2, 2, 1, 4, None, 9, 1], pa.int16())]),
        "small": pa.chunked_array([pa.array([1.5, None, np.nan] * 3 + [0.1], pa.float32())]),
        "nothing": pa.chunked_array([pa.nulls(10)]),
    }


def values_of(column):
    """The value of each row: a number, or the text of its level; None where there is none."""
    if column.kind == "number":
        return [None if np.isnan(value) else value for value in column.values]
    return [None if code < 0 else column.levels[code] for code in column.values]


@pytest.mark.parametrize("name", columns_of_all_kinds())
def test_a_block_of_rows_reads_as_these_rows_of_the_column(name):
    table = pa.table(columns_of_all_kinds())
    frame = Frame(table)
    whole = values_of(frame.column(name))
    kept = np.arange(10) % 3 != 1
    some = frame.take(kept)
    for start in range(10):
        for stop in range(start + 1, 11):
            assert values_of(frame.block(start, stop).column(name)) == whole[start:stop]
    assert values_of(some.block(1, 5).column(name)) == values_of(some.column(name))[1:5]


@pytest.mark.parametrize("name", columns_of_all_kinds())
def test_arrow_codes_a_column_as_its_objects_are_coded(name):
    """Levels come in the order in which they appear, whichever way they are found."""
    column = columns_of_all_kinds()[name]
    quick = read_column("c", column)
    if quick.declared:
        column = column.cast(pa.string())
    slow = read_column("c", np.array(column.to_pylist(), dtype=object))
    if name not in ("declared", "ordered"):  # which have their own marks and order
        assert quick.levels == slow.levels
        np.testing.assert_array_equal(quick.values, slow.values)
    assert set(slow.levels) <= set(quick.levels)


def test_a_mark_for_missing_values_is_said_once(large, caplog):
    frame = Frame(pa.table({"text": ["NA", "a", "b"]}))
    for _ in range(3):
        frame.column("text")
        frame.block(0, 2).column("text")
    assert frame.large
    assert len([one for one in caplog.records if "was read as a missing value" in one.message]) == 1


# Memory


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """10 MB of rows with a category and missing values."""
    rng, rows = np.random.default_rng(0), 15_000
    X = rng.normal(2, 3, (rows, 80))
    lost = rng.random((2, rows)) < 0.02
    names = {f"x{j}": pa.array(x) for j, x in enumerate(X.T)}
    table = pa.table(
        {
            **names,
            "age": pa.array(X[:, 0] ** 2, mask=lost[0]),
            "region": pa.array(np.array(["north", "south", "east"])[rng.integers(0, 3, rows)], mask=lost[1]),
            "y": X[:, 1] + rng.normal(size=rows),
        }
    )
    path = tmp_path_factory.mktemp("large") / "x.arrow"
    with pa.ipc.new_file(path, table.schema) as opened:
        opened.write_table(table, max_chunksize=4_000)
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits are measured where /proc is")
def test_a_study_of_more_rows_than_memory_is_fitted(file, monkeypatch):
    """The limit is real: the same study of copies of the rows does not fit."""
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others reserve memory they do not use

    def run(copied):
        command = [sys.executable, "-c", LIMITED, str(file), str(copied)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert "MemoryError" in run(1 << 27).stderr
    done = run(0)
    assert done.returncode == 0, done.stderr
    converged, coefficients, errors = msgspec.json.decode(done.stdout)
    table = pa.ipc.open_file(file).read_all()
    study = Study(family="linear", target="y", missing="indicator", standardize=True)
    copy = fedshed.fit({"a": table.slice(0, 7_500), "b": table.slice(7_500)}, study)
    assert converged
    np.testing.assert_allclose(coefficients, copy.inference.coefficients, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(errors, copy.inference.std_err(False), rtol=1e-8)
