"""Large Arrow tables wherever a table is taken: files, processes, nodes, estimators and predictions."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from typer.testing import CliRunner

import fedshed
from fedshed import DataError, FederatedLogisticRegression, Study
from fedshed.cli import app
from fedshed.deployment.config import SiteFile, Source, StudyFile
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.linalg import tall
from fedshed.linalg.tall import Tall, by_column
from fedshed.preparation.site import Preparer
from fedshed.privacy.policy import Policy
from fedshed.tables import lazy
from fedshed.tables.frozen import freeze, freeze_to, frozen_hash, thaw
from fedshed.tables.reading import read_sites, read_table

RNG = np.random.default_rng(5)
ROWS = 400
TABLE = pa.table(
    {
        "x": RNG.normal(size=ROWS),
        "arm": pa.array(RNG.choice(["a", "b", "c"], ROWS), mask=RNG.random(ROWS) < 0.03),
        "site": np.repeat(["north", "south"], ROWS // 2),
        "ill": RNG.choice(["no", "yes"], ROWS),
        "grade": RNG.integers(1, 4, ROWS),
    }
)
STUDY = Study(
    family="logistic", target="ill", columns=("x", "arm"), missing="drop", standardize=True, l2=1e-3
)
HALVES = {"north": TABLE.slice(0, 200), "south": TABLE.slice(200)}


@pytest.fixture
def large(monkeypatch):
    """Every Arrow table counts as one that is not to be copied."""
    monkeypatch.setattr(lazy, "COPIED", 0)
    monkeypatch.setattr(tall, "BLOCK", 1 << 9)


def write(path, table, **options):
    with pa.ipc.new_file(path, table.schema, **options) as file:
        file.write_table(table, max_chunksize=90)
    return path


def same_model(one, other):
    np.testing.assert_allclose(one.inference.coefficients, other.inference.coefficients, rtol=1e-8)
    np.testing.assert_allclose(one.inference.std_err(False), other.inference.std_err(False), rtol=1e-8)


# Files


def test_an_arrow_file_is_mapped(tmp_path):
    path = write(tmp_path / "north.arrow", TABLE)
    before = pa.total_allocated_bytes()
    table = read_table(path)
    assert pa.total_allocated_bytes() - before < TABLE.nbytes / 10
    assert table.equals(TABLE)
    path.unlink()
    assert table.equals(TABLE)  # its rows are there as long as the table
    assert list(read_sites([write(tmp_path / "south.arrow", TABLE)])) == ["south"]


def test_a_compressed_arrow_file_is_read_where_it_is_small_only(tmp_path, monkeypatch):
    path = write(tmp_path / "x.feather", TABLE, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    assert read_table(path).equals(TABLE)
    monkeypatch.setattr(lazy, "COPIED", 0)
    with pytest.raises(DataError, match="without compression"):
        read_table(path)


def test_other_files_of_that_name_are_refused(tmp_path):
    path = tmp_path / "x.arrow"
    path.write_bytes(freeze(TABLE))
    with pytest.raises(DataError, match="not an Arrow IPC file"):
        read_table(path)
    path.write_bytes(b"FEA1" + bytes(20))
    with pytest.raises(DataError, match="version 1"):
        read_table(path)


def test_the_sites_of_a_large_table_are_slices_of_it(tmp_path, large):
    path = write(tmp_path / "all.arrow", TABLE)
    before = pa.total_allocated_bytes()
    sites = read_sites([path], site="site")
    assert pa.total_allocated_bytes() - before < TABLE.nbytes / 10
    assert all(sites[name].equals(HALVES[name].drop_columns("site")) for name in HALVES)
    mixed = write(tmp_path / "mixed.arrow", TABLE.take(RNG.permutation(ROWS)))
    with pytest.raises(DataError, match="sort the table"):
        read_sites([mixed], site="site")


def test_the_command_fits_arrow_files(tmp_path, large):
    paths = [str(write(tmp_path / f"{name}.arrow", half)) for name, half in HALVES.items()]
    columns = ["--target", "ill", "--columns", "x,arm", "--missing", "drop"]
    words = [*columns, "--standardize", "--l2", "1e-3", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["fit", *paths, *words])
    assert done.exit_code == 0, done.output
    same_model(fedshed.Model.load(next(tmp_path.rglob("model.json"))), fedshed.fit(HALVES, STUDY))


# Processes and nodes


def test_the_hash_of_a_table_is_that_of_its_bytes(tmp_path):
    """Batch by batch, whatever its batches are: marks of tables that were read before stay valid."""
    for table in (TABLE, HALVES["south"], pa.concat_tables([TABLE, HALVES["north"]]), TABLE.slice(0, 0)):
        assert frozen_hash(table) == sha256(freeze(table)).digest()
        path = tmp_path / str(table.num_rows)
        freeze_to(path, table)
        assert path.read_bytes() == freeze(table)
        assert thaw(path).equals(thaw(freeze(table)))


class Reborn:
    """A node whose process ends after each message."""

    def __init__(self, site, folder):
        self._site, self._folder = site, folder

    def handle(self, data):
        return Node(self._site, self._folder, keep=True).handle(data)


def site_file(name):
    policy = Policy(max_curvature=1e9, max_numbers=1e9)
    places = {"state": f"state-{name}", "audit": f"audit-{name}.jsonl"}
    return SiteFile(
        name=name, table=Source(arrow=f"{name}.arrow"), disclosure=policy, any_study=True, **places
    )


@pytest.mark.parametrize("kind", [Node, Reborn])
def test_nodes_with_large_arrow_files_conduct_a_study(kind, tmp_path, large):
    """Behind a policy, whose rules need all rows, and without a second copy of the rows on their disk."""
    for name, half in HALVES.items():
        write(tmp_path / f"{name}.arrow", half)
    nodes = {name: kind(site_file(name), tmp_path) for name in HALVES}
    model, _ = conduct_study(StudyFile(STUDY, tuple(HALVES), algorithm="newton"), InProcess(nodes))
    same_model(model, fedshed.fit(HALVES, STUDY))
    assert not [path for path in tmp_path.rglob("table") if path.is_file()]


def test_a_node_whose_arrow_file_is_written_to_stops_answering(tmp_path, large):
    """A mapped file shows other rows as soon as they are written there; those are not the study's."""
    for name, half in HALVES.items():
        write(tmp_path / f"{name}.arrow", half)
    nodes = {name: Node(site_file(name), tmp_path) for name in HALVES}

    class Changing(InProcess):
        asked = 0

        def exchange(self, payloads):
            Changing.asked += 1
            if Changing.asked == 5:
                write(tmp_path / "north.arrow", HALVES["south"])
            return super().exchange(payloads)

    with pytest.raises(fedshed.Error, match="does not fit the study"):
        conduct_study(StudyFile(STUDY, tuple(HALVES), algorithm="newton"), Changing(nodes))
    (tmp_path / "south.arrow").unlink()
    with pytest.raises(fedshed.Error, match="cannot read its own files"):
        conduct_study(StudyFile(STUDY, ("south",), algorithm="newton"), InProcess({"south": nodes["south"]}))


# Predictions and estimators


@pytest.mark.parametrize("family", ["logistic", "ordinal", "multinomial"])
def test_a_large_table_is_predicted_as_a_copy_of_it(family, monkeypatch):
    target = "ill" if family == "logistic" else "grade"
    model = fedshed.fit(HALVES, Study(family=family, target=target, columns=("x", "arm"), missing="impute"))
    found = []
    for copied in (0, 1 << 27):
        monkeypatch.setattr(lazy, "COPIED", copied)
        interval = [model.predict_interval(TABLE).low] if family == "logistic" else []
        classes = model.predict(TABLE) == model.plan.classes[0]
        found.append([model.predict_proba(TABLE), classes.astype(float), *interval])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.round(12), other.round(12))


def test_an_estimator_leaves_a_large_table_where_it_is(large, monkeypatch):
    X = pa.table({"x": TABLE["x"], "grade": TABLE["grade"]})
    y, sites, weights = TABLE["ill"], TABLE["site"], np.ones(ROWS)

    def refused(self, dtype=None, copy=None):
        raise AssertionError("the table was copied")

    with monkeypatch.context() as patched:
        patched.setattr(Tall, "__array__", refused)
        left = FederatedLogisticRegression().fit(X, y, sites, sample_weight=weights)
        chances = left.predict_proba(X)
    copy = FederatedLogisticRegression().fit(X.to_pandas(), y.to_numpy(), sites.to_numpy())
    np.testing.assert_allclose(left.coef_, copy.coef_, rtol=1e-8)
    np.testing.assert_allclose(chances, copy.predict_proba(X.to_pandas()), rtol=1e-8)
    assert left.feature_names_in_.tolist() == ["x", "grade"]
    with pytest.raises(ValueError, match="the same columns as in the fit"):
        left.predict(X.select(["grade", "x"]))
    with pytest.raises(ValueError, match="missing"):
        left.predict(X.set_column(0, "x", pa.array([None, *range(ROWS - 1)])))


# Products


def test_numpy_multiplies_a_tall_table_block_by_block_and_copies_it_for_nothing_else(monkeypatch):
    monkeypatch.setattr(tall, "BLOCK", 1 << 6)
    dense = RNG.normal(size=(100, 5))
    X, w = Tall(dense, ones=True), RNG.normal(size=(3, 100))
    with_ones = np.column_stack([dense, np.ones(100)])
    np.testing.assert_allclose(w @ X, w @ with_ones)
    np.testing.assert_allclose(w[0] @ X, w[0] @ with_ones)
    for j, column in by_column(X, [5, 0, 2, 1]):
        np.testing.assert_array_equal(column, with_ones[:, j])
    np.testing.assert_array_equal(X[:, 1:3], with_ones[:, 1:3])
    with pytest.raises(TypeError):
        np.ones(6) * X
    with pytest.raises(IndexError):
        X[0, [1, 2]]


def test_a_site_that_forgets_builds_the_same_rows_again(large):
    """A plan is all that a site needs to make its design again."""
    from fedshed.preparation import prepare

    plan = prepare(HALVES, STUDY).plan
    preparer = Preparer("north", HALVES["north"])
    first = np.asarray(preparer.table(plan).X)
    preparer.forget()
    np.testing.assert_array_equal(preparer.table(plan).X, first)
