"""Tables that stay in a file or in Arrow: never copied whole, and the same answer."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
import scipy.linalg
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import fedshed
from fedshed import Federation
from fedshed._utils.errors import DataError
from fedshed.exchange.processes import Processes
from fedshed.linalg import tall
from fedshed.linalg.rows import gram, varying_columns
from fedshed.linalg.tall import Tall
from fedshed.objectives import local_objectives
from fedshed.objectives.logistic import Logistic
from fedshed.privacy.policy import Policy
from fedshed.privacy.tables import objections
from fedshed.tables import Table, lazy
from fedshed.tables.lazy import ArrowRows

ROWS, COLUMNS = 20_000, 12
NAMES = tuple(f"x{j}" for j in range(COLUMNS))


def memmap(path, X):
    """The rows in a file of NumPy's."""
    np.save(path, X)
    return np.load(path.with_suffix(".npy"), mmap_mode="r")


def arrow(path, X, chunk=777):
    """The rows in an Arrow file, in chunks that are no divisor of any block, mapped again."""
    table = pa.table(list(X.T), names=[f"x{j}" for j in range(X.shape[1])])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=chunk)
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Many blocks of a small table; every Arrow table counts as large."""
    monkeypatch.setattr(tall, "BLOCK", 1 << 14)
    monkeypatch.setattr(lazy, "WINDOW", 1 << 9)
    monkeypatch.setattr(lazy, "COPIED", 0)


@pytest.fixture(params=[memmap, arrow])
def tables(request, tmp_path):
    """Two sites, in memory and in files."""
    rng = np.random.default_rng(0)
    here, there = {}, {}
    for k, site in enumerate(("a", "b")):
        X = rng.normal(loc=0.2 * k, size=(ROWS, COLUMNS)) * np.geomspace(1, 0.1, COLUMNS)
        y = rng.poisson(np.exp(0.3 * X[:, 0])).clip(0, 2)
        here[site], there[site] = (X, y), (request.param(tmp_path / site, X), y)
    return here, there


def same(one, two):
    """Two runs of the same course to the same point."""
    assert one.converged
    assert [row.uplink_bytes for row in one.trace] == [row.uplink_bytes for row in two.trace]
    np.testing.assert_allclose(one.theta, two.theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["least-squares", "logistic", "poisson", "gamma", "multinomial"])
def test_a_tall_table_gives_the_same_model(tables, loss, intercept):
    coded = {"logistic": lambda y: y > 0, "gamma": lambda y: y + 1}.get(loss, lambda y: y)
    same(
        *(
            fedshed.optimize(
                Federation.from_sites({site: (X, coded(y)) for site, (X, y) in given.items()}),
                loss=loss,
                algorithm="newton",
                l2=1e-3,
                intercept=intercept,
            )
            for given in tables
        )
    )


def test_weights_offsets_and_rows_of_weight_0(tables):
    rng = np.random.default_rng(1)
    weights, offset = rng.integers(0, 3, ROWS), rng.normal(size=ROWS)
    given = ({s: Table(X, y, weights, offset) for s, (X, y) in t.items()} for t in tables)
    feds = [Federation.from_sites(sites) for sites in given]
    assert feds[0].fingerprint() == feds[1].fingerprint()
    same(*(fedshed.optimize(f, loss="poisson", algorithm="newton", l2=1e-3, intercept=True) for f in feds))
    here, there = (local_objectives(f, "poisson", intercept=True)["a"] for f in feds)
    assert there.X.shape == here.X.shape == (np.count_nonzero(weights), COLUMNS + 1)


def test_the_rows_of_one_tall_table_dealt_to_sites(tables):
    sites = np.random.default_rng(2).choice(["p", "q", "r"], ROWS)
    feds = [Federation.from_arrays(*t["a"], sites) for t in tables]
    assert feds[0].fingerprint() == feds[1].fingerprint()
    assert feds[0].report() == feds[1].report()
    np.testing.assert_array_equal(feds[0].pooled().X, feds[1].pooled().X)
    same(*(fedshed.optimize(f, loss="poisson", algorithm="newton", l2=1e-3) for f in feds))


@pytest.mark.parametrize("source", [memmap, arrow])
@pytest.mark.parametrize("l2", [0.0, 1e-3])
def test_checks_before_and_after_the_fit_do_not_copy_the_table(source, l2, tmp_path):
    """Those for collinear columns and for separation use X itself, not only products with it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 60))
    y = rng.random(ROWS) < 1 / (1 + np.exp(-X[:, 0]))
    options = {"algorithm": "newton", "intercept": True, "l2": l2, "tol": 1e-7}
    one = fedshed.optimize(Federation.from_sites({"a": (X, y)}), **options)
    stored = source(tmp_path / "x", X)
    tracemalloc.start()
    two = fedshed.optimize(Federation.from_sites({"a": (stored, y)}), **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    same(one, two)
    assert peak < 0.4 * X.nbytes


def test_separated_classes_are_found_in_tall_tables(tables):
    messages = []
    for t in tables:
        separated = np.where(tables[0]["a"][0][:, 3] > 0, 1, 0)
        given = Federation.from_sites({"a": (t["a"][0], separated)})
        result = fedshed.optimize(given, algorithm="newton", l2=0.0, intercept=True)
        messages.append((result.converged, result.reason))
    assert messages[0] == messages[1]
    assert "x3" in messages[1][1]


def test_a_tall_table_is_never_copied(tables):
    """Margins are a few numbers a row; the table itself, and any factor of it, has 12 times as many."""
    large = {site: (X, np.where(y > 0, 1, 0)) for site, (X, y) in tables[1].items()}
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    result = fedshed.optimize(
        Federation.from_sites(large), algorithm="fib-shed", l2=1e-2, intercept=True, tol=1e-6
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.converged
    assert peak < 0.75 * ROWS * COLUMNS * 8 * 2
    assert pa.total_allocated_bytes() == before


def test_classes_do_not_blow_up_a_block(tables, monkeypatch):
    """A row of X becomes K rows of (K - 1) n numbers in the factor: blocks are smaller by as much."""
    sizes = []
    qr = scipy.linalg.qr
    monkeypatch.setattr(scipy.linalg, "qr", lambda F, **how: (sizes.append(F.size), qr(F, **how))[1])
    model = local_objectives(Federation.from_sites(tables[1]), "multinomial")["a"]
    assert gram(model.at(np.zeros(model.dim)).factor).shape == (24, 24)
    assert 0 < max(sizes) <= tall.BLOCK + 24**2


def test_site_processes_map_a_file_of_their_own(tables):
    given = {site: (X, np.where(y > 0, 1, 0)) for site, (X, y) in tables[1].items()}
    fed = Federation.from_sites(given)
    options = {"algorithm": "newton", "l2": 1e-3, "intercept": True}
    same(fedshed.optimize(fed, **options), fedshed.optimize(fed, transport=Processes, **options))


@pytest.mark.parametrize("rare", [0, 3, 5])
def test_a_disclosure_policy_counts_the_levels_of_a_tall_table(rare):
    X = np.random.default_rng(0).normal(size=(5000, 3))
    X[:, 1] = np.arange(5000) >= 5000 - rare  # the rare level is in the last block only
    y = np.resize([-1.0, 1.0], 5000)
    policy = Policy(min_rows_per_level=5)
    dense, large = (objections(policy, Logistic(rows, y), ("u", "v", "w")) for rows in (X, Tall(X)))
    assert dense == large
    assert bool(large) == (0 < rare < 5)


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("source", [lambda path, X: X, memmap, arrow])
def test_products_and_curvature_are_those_of_the_table(rows, source, tmp_path, monkeypatch):
    monkeypatch.setattr(tall, "BLOCK", 64)
    rng = np.random.default_rng(rows)
    X = rng.normal(size=(rows, 5))
    stored = source(tmp_path / "x", X)
    ours, full = (
        Tall(ArrowRows("x", stored) if source is arrow else stored, ones=True),
        np.c_[X, np.ones(rows)],
    )
    theta, slopes = rng.normal(size=6), rng.normal(size=rows)
    np.testing.assert_allclose(ours @ theta, full @ theta, atol=1e-12)
    np.testing.assert_allclose(ours.T @ slopes, full.T @ slopes, atol=1e-12)
    R = ours.triangular(lambda part, block: block * slopes[part, None])
    np.testing.assert_allclose(gram(R), gram(full * slopes[:, None]), atol=1e-10)
    np.testing.assert_allclose(gram(ours[:, [5, 0]]), gram(full[:, [5, 0]]), atol=1e-10)


@given(st.data())
def test_any_choice_of_rows_and_columns_is_that_of_the_array(data):
    """Chosen again and again, in any order, before or after the column of ones."""
    full = np.arange(60.0).reshape(20, 3)
    table = pa.table(list(full.T), names=list("uvw"))
    ours = Tall(ArrowRows("x", pa.concat_tables([table[:7], table[7:]])))
    for step in data.draw(st.lists(st.sampled_from(["rows", "mask", "columns", "ones"]), max_size=5)):
        rows, width = full.shape
        if step == "columns" and width:
            columns = data.draw(st.lists(st.integers(0, width - 1), min_size=1, max_size=4))
            ours, full = ours[:, columns], full[:, columns]
        elif step == "ones" and not ours.ones:
            ours, full = ours.with_ones(), np.c_[full, np.ones(rows)]
        elif rows:
            chosen = np.array(
                data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
                if step == "mask"
                else data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=9))
            )
            if chosen.any() or chosen.dtype != bool:
                ours, full = ours.take(chosen), full[chosen]
    assert ours.shape == full.shape
    np.testing.assert_array_equal(np.asarray(ours), full)
    np.testing.assert_array_equal(ours[np.array([len(full) - 1, 0])], full[[-1, 0]])


# What an Arrow table may hold


def mixed(chunks=3):
    """Numbers of every kind, in chunks."""
    table = pa.table(
        {
            "f8": pa.array([0.5, 1.5, -2.0, 4.0]),
            "f4": pa.array([0.1, 1.5, -2.0, 4.0], pa.float32()),
            "f2": pa.array(np.array([0.1, 1.5, -2.0, 4.0], np.float16)),
            "i1": pa.array([1, -2, 3, 127], pa.int8()),
            "u8": pa.array([1, 2, 3, 2**63], pa.uint64()),
            "i8": pa.array([1, 2, 3, 2**60 + 1], pa.int64()),
            "b": pa.array([True, False, False, True]),
        }
    )
    return pa.concat_tables([table] * chunks)


@pytest.mark.parametrize("decimals", [False, True])
def test_every_kind_of_number_is_the_one_of_a_copy(decimals, monkeypatch):
    table, y = mixed(), np.arange(12)
    if decimals:
        table = table.append_column("d", pa.array([Decimal("-0.1")] * 12, pa.decimal128(5, 2)))
    large = Federation.from_sites({"a": (table, y)})
    assert isinstance(large.tables["a"].X, Tall)
    monkeypatch.setattr(lazy, "COPIED", 1 << 27)
    small = Federation.from_sites({"a": (table, y)})
    assert isinstance(small.tables["a"].X, np.ndarray)
    assert large.columns == small.columns == tuple(table.column_names)
    assert large.fingerprint() == small.fingerprint()


def test_columns_are_brought_into_one_order_and_a_batch_is_a_table():
    table = mixed()
    other = table.select(table.column_names[::-1]).combine_chunks().to_batches()[0]
    fed = Federation.from_sites({"a": (table, np.arange(12)), "b": (other, table["i1"])})
    np.testing.assert_array_equal(np.asarray(fed.tables["a"].X), np.asarray(fed.tables["b"].X))
    with pytest.raises(DataError, match=r"site 'b'.*lacks 'f2'"):
        Federation.from_sites({"a": (table, np.arange(12)), "b": (table.drop_columns("f2"), np.arange(12))})


@pytest.mark.parametrize(
    "values", [[1, None, 3], [True, None, False], [1.0, None, np.nan], [np.inf, 1.0, 2.0]]
)
def test_nulls_and_what_is_not_finite_are_counted_over_all_chunks(values):
    column = pa.chunked_array([values, values[::-1]])
    lost = 2 * (3 - np.count_nonzero(np.isfinite(np.array(values, dtype=float))))
    table = pa.table({"age": pa.array(range(6)), "dose": column})
    with pytest.raises(DataError, match=rf"site 'a': NaN or infinity in X, column 'dose' \({lost} rows\)"):
        Federation.from_sites({"a": (table, range(6))})


@pytest.mark.parametrize(
    "values",
    [
        ["u", "v"],
        np.array(["2020", "2021"], "M8[D]"),
        [[1.0], [2.0]],
        pa.array(["u", "v"]).dictionary_encode(),
    ],
)
def test_what_is_no_number_is_refused_by_site_and_column(values):
    table = pa.table(
        {"age": [1, 2], "region": pa.array(values) if not isinstance(values, pa.Array) else values}
    )
    with pytest.raises(DataError, match="site 'a', column 'region': X holds values of type"):
        Federation.from_sites({"a": (table, [0, 1])})


def test_a_stream_is_refused_with_what_to_give_instead():
    for stream in (pa.RecordBatchReader.from_batches(mixed().schema, []), pa.dataset.dataset(mixed())):
        with pytest.raises(DataError, match=r"site 'a': X is a pyarrow .*give a pyarrow\.Table"):
            Federation.from_sites({"a": (stream, range(12))})


@pytest.mark.parametrize("kind", [np.float32, np.int16, np.bool_, ">f8"])
def test_mapped_arrays_of_any_number_are_left_in_their_file(tmp_path, kind):
    X = np.arange(12.0).reshape(4, 3).astype(kind)
    fed = Federation.from_sites({"a": (memmap(tmp_path / "x", X), range(4))})
    assert isinstance(fed.tables["a"].X, Tall)
    assert fed.fingerprint() == Federation.from_sites({"a": (X.astype(float), range(4))}).fingerprint()


def test_a_mask_over_a_mapped_array_is_not_forgotten(tmp_path):
    X = np.ma.masked_array(memmap(tmp_path / "x", np.ones((4, 3))), mask=np.eye(4, 3))
    with pytest.raises(DataError, match="'x0'"):
        Federation.from_sites({"a": (X, range(4))})


@pytest.mark.parametrize(
    "chosen",
    [[5, 1, 1], [-1, 0], np.arange(ROWS) % 9999 == 1, slice(3, 9)],
    ids=lambda chosen: type(chosen).__name__,
)
def test_rows_are_chosen_as_numpy_chooses_them(tmp_path, chosen):
    X = np.random.default_rng(0).normal(size=(ROWS, 3))
    table = ArrowRows("site 'a'", arrow(tmp_path / "x", X))
    np.testing.assert_array_equal(table[chosen], X[chosen])


def test_columns_that_vary_are_known_exactly_dense_sparse_and_tall():
    X = np.zeros((2000, 4))
    X[:, 1], X[1500, 1], X[3, 2], X[:, 3] = 1e16, 1e16 + 2, -1e-300, 3.0
    for rows in (X, scipy.sparse.csr_array(X), Tall(X)):
        assert varying_columns(rows).tolist() == [False, True, True, False]
