"""More rows than memory, more columns than a dense table could have, and the page that says how."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse

import fedshed
from fedshed import Federation
from fedshed.linalg.kernels import Automatic
from fedshed.linalg.spectrum import leading
from fedshed.linalg.tall import Tall
from fedshed.objectives import FAMILIES, local_objectives
from fedshed.tables import lazy
from pages import blocks

PAGE = Path(__file__).parents[2] / "docs/large.md"
ROWS, COLUMNS = 150_000, 80  # 96 MB

# Once everything is imported and has run, 60 MB more may be allocated: less than the table has.
LIMITED = """
import resource, sys
import numpy as np, pyarrow as pa
import fedshed
from fedshed.tables import lazy
from fedshed.linalg import tall

how, path = sys.argv[1:]
lazy.COPIED, tall.BLOCK = 0, 1 << 16
few = np.random.default_rng(0).normal(size=(300, 80))
def fitted(X, y, **options):
    fed = fedshed.Federation.from_sites({"a": (X, y)})
    return fedshed.optimize(fed, algorithm="newton", l2=1e-2, intercept=True, **options)
fitted(few, np.arange(300) % 2)
pa.array([True]).cast(pa.float64())
held = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (held * 1024 + 60_000_000,) * 2)

X = pa.ipc.open_file(pa.memory_map(path)).read_all() if how == "arrow" else np.load(path, mmap_mode="r")
if how == "copy":
    np.array(X)
y = np.resize([0, 1, 1], len(X))
assert fitted(X, y, checkpoint=f"{path}.{how}.checkpoint").converged
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same rows as NumPy and as Arrow write them."""
    folder, X = tmp_path_factory.mktemp("large"), np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    np.save(folder / "x.npy", X)
    table = pa.table(list(X.T), names=[f"x{j}" for j in range(COLUMNS)])
    with pa.ipc.new_file(folder / "x.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=10_000)
    return {"memmap": folder / "x.npy", "copy": folder / "x.npy", "arrow": folder / "x.arrow"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits are measured where /proc is")
@pytest.mark.parametrize("how", ["memmap", "arrow", "copy"])
def test_a_site_with_more_rows_than_memory_is_fitted(how, files, monkeypatch):
    """The limit is real: a copy of the same rows does not fit."""
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others reserve memory they do not use
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, how, files[how]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if how == "copy":
        assert "MemoryError" in done.stderr
    else:
        assert done.returncode == 0, done.stderr


# CSR stays CSR


@pytest.fixture(scope="module")
def sparse():
    """4,000 rows of 20,000 columns, a thousandth of them not 0: 1 MB where a dense table had 640."""
    rng = np.random.default_rng(0)
    return scipy.sparse.random_array((4000, 20_000), density=1e-3, format="csr", rng=rng)


def peak_of(run):
    """What a function gives, and the most memory it held, as a part of the dense table."""
    tracemalloc.start()
    result = run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, peak / (4000 * 20_000 * 8)


@pytest.mark.parametrize("loss", [loss for loss in FAMILIES if "cox" not in loss])  # its Hessian is dense
def test_no_loss_makes_a_sparse_table_dense(loss, sparse):
    two = FAMILIES[loss].classes == "two"
    values = [0, 1] if "binomial" in loss else [1, 2] if two else [1, 2, 3]
    y = np.resize(values, 4000)

    def everything():
        model = local_objectives(Federation.from_sites({"a": (sparse, y)}), loss, intercept=True)["a"]
        theta = model.origin() + 1e-3
        point = model.at(theta)
        numbers = (point.value, point.gradient, point.fit)
        model.along(theta, theta, np.ones(2)), model.slopes_along(theta, theta, np.ones(2))
        return numbers, (point.factor, point.information)

    (_, factors), peak = peak_of(everything)
    assert all(isinstance(factor, scipy.sparse.csr_array) for factor in factors)
    assert peak < 0.05


def test_a_fit_of_20_000_sparse_columns(sparse):
    y = np.random.default_rng(1).random(4000) < 0.5
    fed = Federation.from_arrays(sparse, y, np.arange(4000) % 4)
    result, peak = peak_of(
        lambda: fedshed.optimize(fed, algorithm="qn-shed", l2=1e-2, intercept=True, tol=1e-6)
    )
    assert result.converged
    assert peak < 0.2  # at most 1,000 x 1,000 at a site, and the pairs that the Master holds


def test_eigenpairs_of_a_sparse_factor(sparse):
    pairs, peak = peak_of(lambda: leading(sparse, 10, Automatic()))
    assert pairs.q >= 10
    assert peak < 0.05


# The page


def claims(rows=2000):
    """Claims of some policies."""
    rng = np.random.default_rng(0)
    age, power = rng.integers(18, 80, rows), rng.normal(size=rows)
    return pa.table({"age": age / 10, "power": power, "claims": rng.poisson(np.exp(0.3 * power))})


def test_the_page_from_a_csv_file_to_a_fit(tmp_path, monkeypatch, capsys):
    table = claims()
    pyarrow.csv.write_csv(table, tmp_path / "north.csv")
    pyarrow.parquet.write_table(table, tmp_path / "south.parquet")
    monkeypatch.setattr(lazy, "COPIED", 0)
    monkeypatch.chdir(tmp_path)
    code = "\n".join(block for block in blocks(PAGE) if "RaySites" not in block)  # those are in tests/ray
    Path("page.py").write_text(code)
    names = runpy.run_path("page.py")
    assert all(isinstance(table.X, Tall) for table in names["federation"].tables.values())
    X, y = np.column_stack([table["age"], table["power"]]), table["claims"].to_numpy()
    pooled = fedshed.optimize(
        Federation.from_sites({"a": (X, y), "b": (X, y)}), loss="poisson", l2=1e-4, intercept=True
    )
    np.testing.assert_allclose(names["result"].theta, pooled.theta, atol=1e-8)
    assert "True" in capsys.readouterr().out
    copies = {site: table.to_pandas() for site in ("north", "south")}
    model = fedshed.fit(copies, names["study"])
    np.testing.assert_allclose(
        names["model"].inference.coefficients, model.inference.coefficients, rtol=1e-8, atol=1e-10
    )
