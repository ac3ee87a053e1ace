"""A Federation keeps what it was given, and refuses what a model could not use, naming the place."""

from __future__ import annotations

import decimal
import re

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedshed._utils.errors import DataError
from fedshed.tables.federation import Federation, Table

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0])
SITES = ["b", "a", "b", "a", "c", "b"]


def Frame(**columns):
    """A small DataFrame."""
    return pandas.DataFrame(columns)


def refused(match, make, *args, **kwargs):
    with pytest.raises(DataError) as caught:
        make(*args, **kwargs)
    for part in [match] if isinstance(match, str) else match:
        assert re.search(part, str(caught.value)), f"{part!r} not in {caught.value}"


# What it keeps


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30))
def test_every_row_goes_to_its_site_in_order(sites):
    X = np.arange(2.0 * len(sites)).reshape(-1, 2)
    fed = Federation.from_arrays(X, X[:, 0], sites)
    assert fed.sites == tuple(sorted(set(sites)))
    for site in fed.sites:
        np.testing.assert_array_equal(fed.tables[site].X, X[[s == site for s in sites]])
        np.testing.assert_array_equal(fed.tables[site].y, fed.tables[site].X[:, 0])


def test_pooled_stacks_the_sites_in_sorted_order():
    fed = Federation.from_arrays(X, Y, SITES)
    order = [1, 3, 0, 2, 5, 4]
    np.testing.assert_array_equal(fed.pooled().X, X[order])
    np.testing.assert_array_equal(fed.pooled().y, Y[order])
    assert fed.rows == {"a": 2, "b": 3, "c": 1}
    assert fed.dim == 2
    assert fed.columns == ("x0", "x1")


def test_no_sites_is_one_site():
    assert Federation.from_arrays(X, Y).sites == ("all",)


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_matrix", "lil_array", "dok_matrix"])
def test_any_sparse_matrix_becomes_csr_of_the_same_values(form):
    fed = Federation.from_arrays(getattr(scipy.sparse, form)(X), Y, SITES)
    assert all(isinstance(table.X, scipy.sparse.csr_array) for table in fed.tables.values())
    assert isinstance(fed.pooled().X, scipy.sparse.csr_array)
    np.testing.assert_array_equal(fed.pooled().X.toarray(), Federation.from_arrays(X, Y, SITES).pooled().X)


def test_sparse_duplicates_are_summed_without_overflow_and_the_callers_matrix_is_kept():
    given = scipy.sparse.csr_matrix((np.array([200, 100], np.uint8), [0, 0], [0, 2]), shape=(1, 2))
    fed = Federation.from_arrays(given, [1])
    np.testing.assert_array_equal(fed.tables["all"].X.toarray(), [[300.0, 0.0]])
    assert fed.tables["all"].X.nnz == 1
    assert given.nnz == 2
    floats = scipy.sparse.csr_matrix((np.array([200.0, 100.0]), [0, 0], [0, 2]), shape=(1, 2))
    assert Federation.from_arrays(floats, [1]).fingerprint() == fed.fingerprint()
    assert floats.data.tolist() == [200.0, 100.0]


def test_dense_and_sparse_sites_pool_to_csr():
    fed = Federation.from_sites({"a": (X, Y), "b": (scipy.sparse.csr_array(X), Y)})
    np.testing.assert_array_equal(fed.pooled().X.toarray(), np.vstack([X, X]))


@pytest.mark.parametrize(
    "given",
    [
        [[1, 0], [0, 1]],
        np.array([[True, False], [False, True]]),
        np.array([[1, 0], [0, 1]], dtype=np.int8),
        np.asfortranarray([[1.0, 0.0], [0.0, 1.0]]),
        np.array([[1, False], [decimal.Decimal(0), 1.0]], dtype=object),
        np.eye(4)[::2, ::2] + np.eye(4)[1::2, 1::2] - np.eye(2),
    ],
)
def test_numbers_become_contiguous_float64(given):
    table = Federation.from_arrays(given, [0, 1]).tables["all"]
    assert table.X.dtype == np.float64
    assert table.X.flags.c_contiguous
    np.testing.assert_array_equal(table.X, np.eye(2))


@pytest.mark.parametrize(
    "y", [[1, 2], ["yes", "no"], [True, False], [0.5, 1.5], np.array(["u", "v"], dtype=object), (3, 4)]
)
def test_labels_keep_their_values(y):
    table = Federation.from_arrays(np.eye(2), y).tables["all"]
    assert table.y.tolist() == list(y)
    assert table.y.dtype != object


def test_the_callers_arrays_are_not_modified():
    X_, y_, sites_ = np.asfortranarray(X.copy()), Y.copy(), np.array(SITES)
    sparse = scipy.sparse.csr_matrix(X)
    Federation.from_arrays(X_, y_, sites_).fingerprint()
    Federation.from_arrays(sparse, y_, sites_).fingerprint()
    np.testing.assert_array_equal(X_, X)
    np.testing.assert_array_equal(sparse.toarray(), X)
    np.testing.assert_array_equal(y_, Y)
    assert sites_.tolist() == SITES


def test_a_data_frame_gives_its_column_names_and_mixed_types():
    fed = Federation.from_arrays(Frame(age=[30, 40], smoker=[True, False], dose=[0.5, 1.5]), [0, 1])
    assert fed.columns == ("age", "smoker", "dose")
    np.testing.assert_array_equal(fed.tables["all"].X, [[30, 1, 0.5], [40, 0, 1.5]])


def test_frames_in_another_order_are_reordered():
    fed = Federation.from_sites(
        {"a": (Frame(age=[30], dose=[0.5]), [1]), "b": (Frame(dose=[1.5], age=[40]), [0])}
    )
    assert fed.columns == ("age", "dose")
    np.testing.assert_array_equal(fed.pooled().X, [[30, 0.5], [40, 1.5]])
    given = Federation.from_arrays(Frame(age=[30], dose=[0.5]), [1], columns=["dose", "age"])
    np.testing.assert_array_equal(given.pooled().X, [[0.5, 30]])


@pytest.mark.parametrize("of", [polars.from_pandas, pyarrow.Table.from_pandas])
def test_polars_and_arrow_frames_are_read_as_pandas_frames_are(of):
    frame = Frame(age=[30, 40, 50], smoker=[True, False, True], dose=[0.5, 1.5, 2.5])
    one = Federation.from_arrays(frame, Y[:3], ["b", "a", "b"])
    two = Federation.from_arrays(of(frame), of(Frame(y=Y[:3]))["y"], of(Frame(s=["b", "a", "b"]))["s"])
    assert one.fingerprint() == two.fingerprint()
    missing = of(Frame(age=[30, None], dose=[1.0, 2.0]))
    refused([r"'age' \(1 row\)"], Federation.from_arrays, missing, [0, 1])


def test_pandas():
    frame = pandas.DataFrame({"age": [30, 40, 50], "smoker": [True, False, True], "dose": [0.5, 1.5, 2.5]})
    hospital = pandas.Series(["north", "south", "north"], dtype="category")
    fed = Federation.from_arrays(frame, pandas.Series(["ill", "well", "ill"]), hospital)
    assert fed.rows == {"north": 2, "south": 1}
    np.testing.assert_array_equal(fed.tables["north"].X, [[30, 1, 0.5], [50, 1, 2.5]])
    frame["age"] = pandas.array([30, None, 50], dtype="Int64")
    refused(["site 'south'", r"'age' \(1 row\)"], Federation.from_arrays, frame, [0, 1, 1], hospital)
    frame["age"] = ["old", "young", "old"]
    refused(["site 'north'", "'age'", "'old'"], Federation.from_arrays, frame, [0, 1, 1], hospital)
    frame["age"] = pandas.to_datetime(["2020-01-01"] * 3)
    refused(["site 'north'", "'age'", "Timestamp"], Federation.from_arrays, frame, [0, 1, 1], hospital)


def test_report_counts_the_classes_of_each_site():
    report = Federation.from_arrays(X, Y, SITES).report()
    assert report[1] == {"site": "b", "rows": 3, "y=0": 3, "y=1": 0}
    assert [row["rows"] for row in report] == [2, 3, 1]
    many = Federation.from_arrays(np.ones((21, 1)), np.arange(21)).report()
    assert many == [{"site": "all", "rows": 21}]


def test_repr_is_short():
    assert repr(Federation.from_arrays(X, Y, SITES, name="toy")) == (
        "Federation('toy': 3 sites, 6 rows, 2 columns)"
    )


# The fingerprint


def test_equal_data_has_an_equal_fingerprint_however_it_was_given():
    a = Federation.from_arrays(X, Y, SITES, name="one")
    b = Federation.from_sites({s: (a.tables[s].X.tolist(), a.tables[s].y) for s in "cba"}, name="two")
    assert a.fingerprint() == b.fingerprint()
    sparse = scipy.sparse.csr_array(X)
    wide = scipy.sparse.csr_array((sparse.data, sparse.indices.astype(np.int64), sparse.indptr), X.shape)
    c, d = (Federation.from_arrays(M, Y, SITES) for M in (sparse, wide))
    assert c.fingerprint() == d.fingerprint()
    words = ["ill", "well"] * 3
    e, f = (Federation.from_arrays(X, y) for y in (words, np.array(words, dtype="<U20")))
    assert e.fingerprint() == f.fingerprint()


def test_any_change_changes_the_fingerprint():
    changed = X.copy()
    changed[3, 1] += 1e-12
    feds = [
        Federation.from_arrays(X, Y, SITES),
        Federation.from_arrays(changed, Y, SITES),
        Federation.from_arrays(X, 1 - Y, SITES),
        Federation.from_arrays(X, Y, [site + "x" for site in SITES]),
        Federation.from_arrays(X, Y, SITES, columns=["u", "v"]),
        Federation.from_arrays(X, Y, SITES[::-1]),
        Federation.from_arrays(X, Y),
        Federation.from_arrays(X.reshape(6, 2)[:, ::-1], Y, SITES),
    ]
    assert len({fed.fingerprint() for fed in feds}) == len(feds)


# What it refuses


def two_sites(bad_x, y=(0, 1)):
    """Site `good` in order, site `bad` with what is given."""
    return {"good": ([[1.0, 2.0], [3.0, 4.0]], [0, 1]), "bad": (bad_x, list(y))}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, None])
def test_missing_or_infinite_values_are_refused_by_site_column_and_rows(value):
    given = np.array([[1.0, 2.0], [value, 1.0], [value, 1.0], [3.0, 4.0]], dtype=object)
    given = given if value is None else given.astype(float)
    make = Federation.from_arrays
    refused(
        ["site 'q'", r"'dose' \(2 rows\)", "impute|drop"],
        make,
        given,
        [0, 1, 0, 1],
        list("pqqq"),
        columns=["dose", "w"],
    )
    if value is not None:
        refused(
            ["site 'q'", r"'x0' \(2 rows\)"], make, scipy.sparse.csc_array(given), [0, 1, 0, 1], list("pqqq")
        )


def test_masked_values_are_missing():
    given = np.ma.masked_array(np.ones((2, 2)), mask=[[0, 0], [0, 1]])
    refused(["site 'all'", r"'x1' \(1 row\)"], Federation.from_arrays, given, [0, 1])


def test_many_bad_columns_are_counted_not_listed():
    refused(r"'x4' \(2 rows\) and 5 more", Federation.from_arrays, np.full((2, 10), np.nan), [0, 1])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([[1, "2"], [3, 4]], ["'x1'", "'2'", "str"]),
        (np.array([["1", "2"], ["3", "4"]]), ["'x0'", "text"]),
        ([[1, 2], [3, 4j]], ["'x1'", "complex"]),
        (scipy.sparse.csr_array(np.array([[1, 2], [3, 4j]])), ["'x1'", "complex"]),
        (np.array([[1, 2j], [3, 4]], dtype=object), ["'x1'", "complex"]),
        (np.array([[{}, 2], [3, 4]], dtype=object), ["'x0'", "dict"]),
        (np.array([["2020", "2021"], ["2022", "2023"]], dtype="M8[Y]"), ["'x0'", "dates"]),
        ([[10**400, 2], [3, 4]], ["'x0'", "infinity"]),
        (np.array([1.0, 2.0]), ["2-D", r"\(2,\)"]),
        ([[1, 2], [3]], ["equally long"]),
        (np.ones((2, 3)), ["3 columns", "2 are expected|where 3"]),
        (np.ones((3, 2)), ["3 rows", "y has 2"]),
        (Frame(a=["u", "v"], b=[1, 2]), ["lacks|'a'"]),
    ],
)
def test_what_is_no_table_of_numbers_is_refused_by_site(bad, words):
    first = {"good": ([[1.0, 2.0], [3.0, 4.0]], [0, 1]), "worse": (bad, [0, 1])}
    refused(["site 'worse'", *words], Federation.from_sites, first)


def test_a_malformed_sparse_matrix_is_refused():
    bad = scipy.sparse.csr_array(np.eye(2))
    bad.indices[1] = 7
    refused("site 'bad'.*sparse", Federation.from_sites, two_sites(bad))


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([0, None], ["missing", "1 row;"]),
        ([np.nan, np.nan], ["missing", "2 rows"]),
        (["a", None], ["missing"]),
        (["a", np.nan], ["missing"]),
        ([1.0, np.inf], ["infinite"]),
        ([1, "a"], ["int, str"]),
        ([1, 1j], ["complex"]),
        (np.array([[0], [1]]), ["1-D", r"\(2, 1\)", "ravel"]),
        (np.array(["2020", "2021"], dtype="M8[Y]"), ["dates"]),
    ],
)
def test_bad_labels_are_refused_by_site(y, words):
    refused(["site 'bad'", *words], Federation.from_sites, {"a": (np.eye(2), [0, 1]), "bad": (np.eye(2), y)})


def test_frames_must_have_the_same_columns():
    sites = {"a": (Frame(age=[30], dose=[0.5]), [1]), "b": (Frame(Age=[40], dose=[1.5]), [0])}
    refused(["site 'b'", "lacks 'age'", "also 'Age'"], Federation.from_sites, sites)


def test_column_names_must_be_distinct_and_as_many_as_columns():
    refused("'u' appears more than once", Federation.from_arrays, X, Y, columns=["u", "u"])
    refused("2 columns where 3 are expected", Federation.from_arrays, X, Y, columns=["u", "v", "w"])
    refused("no columns", Federation.from_arrays, np.ones((6, 0)), Y)


def test_lengths_must_agree_and_there_must_be_rows():
    refused("6 rows but y has 5", Federation.from_arrays, X, Y[:5])
    refused("6 rows but sites has 5", Federation.from_arrays, X, Y, SITES[:5])
    refused("no rows", Federation.from_arrays, np.ones((0, 2)), [])
    refused("site 'b' has no rows", Federation.from_sites, {"a": (X, Y), "b": (np.ones((0, 2)), [])})
    refused("at least one site", Federation.from_sites, {})


def test_site_labels_must_be_known_and_distinct_as_text():
    refused("1 and '1'|'1' and 1", Federation.from_arrays, X, Y, [1, "1", 1, 1, 1, 1])
    refused("1 and '1'", Federation.from_sites, {1: (X, Y), "1": (X, Y)})
    for label in (None, np.nan, ""):
        refused("missing", Federation.from_arrays, X, Y, ["a", "a", label, "a", "a", label])
    refused("1-D", Federation.from_arrays, X, Y, np.ones((6, 2)))


def test_numeric_site_labels_are_named_as_text():
    assert Federation.from_arrays(X, Y, np.array([3, 1, 3, 1, 2, 2])).sites == ("1", "2", "3")


def test_text_at_one_site_and_numbers_at_another_are_refused():
    refused(["site 'a'", "site 'b'"], Federation.from_sites, {"a": (X, Y), "b": (X, list("uvuvuv"))})


def test_a_site_is_a_pair():
    refused(["site 'a'", "pair"], Federation.from_sites, {"a": (X, Y, Y)})
    refused("mapping of names", Federation.from_sites, [(X, Y)])


def test_tables_compare_by_identity():
    table = Table(X, Y)
    assert table == table
    assert table != Table(X, Y)
