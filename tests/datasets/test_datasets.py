"""Named data sets: what each agent gets, and which files and parameters are refused."""

from __future__ import annotations

import gzip
import hashlib
import socket
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import scipy.sparse
import sklearn.datasets
from sklearn.decomposition import PCA

from fedshed._utils.errors import ConfigError, DataError
from fedshed.datasets import claims, design, files, images, load, loaders, names, openml
from fedshed.datasets.partitions import PARTITIONS
from fedshed.datasets.records import Content


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test reaches for the network."""
    monkeypatch.setenv("FEDSHED_OFFLINE", "1")


def marked(name, *values):
    """A case that needs the files of a data set, if it has any."""
    marks = pytest.mark.data(name) if loaders.DATASETS[name].files else ()
    return pytest.param(name, *values, marks=marks, id=name)


# Data sets


def test_digits_are_dealt_by_default_as_two_classes_to_twenty_agents():
    fed = load("digits")
    table = fed.pooled()
    assert len(fed.sites) == 20
    assert fed.sites[7] == "agent-07"
    assert fed.dim == 64
    assert table.X.min() == 0
    assert table.X.max() == 1
    assert all(row["y=1"] == row["y=-1"] for row in fed.report())
    assert fed.fingerprint() == load("digits", agents=20, partition="two-class", target=1).fingerprint()
    assert fed.fingerprint() != load("digits", seed=1).fingerprint()


def test_names_sort_as_numbers():
    fed = load("digits", agents=101)
    assert list(fed.sites) == [f"agent-{i:03d}" for i in range(101)]


def test_the_target_becomes_plus_one():
    from sklearn.datasets import load_digits

    digits = load_digits()
    sevens = {row.tobytes() for row in digits.data[digits.target == 7] / 16}
    table = load("digits", target=7, agents=5, partition="iid").pooled()
    assert {row.tobytes() for row in table.X[table.y == 1]} <= sevens
    assert not sevens & {row.tobytes() for row in table.X[table.y == -1]}


@pytest.mark.data("w8a")
def test_w8a_is_sparse_and_its_positives_are_at_half_of_the_agents():
    fed = load("w8a")
    report = fed.report()
    assert [row["y=1"] > 0 for row in report] == [True] * 31 + [False] * 31
    assert all(700 <= row["rows"] <= 900 for row in report)
    assert sum(row["rows"] for row in report) == 49_749
    assert sum(row["y=1"] for row in report) == 1479
    assert isinstance(fed.pooled().X, scipy.sparse.csr_array)
    assert set(fed.pooled().X.data) == {1.0}


@pytest.mark.data("fashion-mnist")
def test_fashion_mnist_is_dealt_as_the_paper_says():
    fed = load("fashion-mnist")
    assert fed.dim == 300
    assert [(row["rows"], row["y=1"]) for row in fed.report()] == [(428, 214)] * 28
    first = fed.pooled().X[:, 0]
    assert (first > 0).all()  # not centred: the first direction is near the mean picture
    assert np.linalg.norm(fed.pooled().X, axis=1).max() <= 28


def test_principal_coordinates_are_those_of_the_svd_without_centring():
    pixels = np.random.default_rng(0).integers(0, 256, (50, 12)).astype(np.uint8)
    U, S, _ = np.linalg.svd(pixels / 255, full_matrices=False)
    Z = images.principal_coordinates(pixels, 5)
    np.testing.assert_allclose(np.abs(Z), np.abs(U * S)[:, :5], atol=1e-10)
    basis = np.linalg.lstsq(pixels / 255, Z, rcond=None)[0]
    assert (basis[np.abs(basis).argmax(axis=0), range(5)] > 0).all()


@pytest.mark.data("mnist")
def test_mnist_is_dealt_as_the_paper_deals_emnist_digits_and_is_not_called_so():
    fed = load("mnist")
    assert fed.dim == 300
    assert [(row["rows"], row["y=1"]) for row in fed.report()] == [(480, 240)] * 28  # 6,742 ones
    assert (fed.pooled().X[:, 0] > 0).all()
    assert fed.name == "mnist"
    assert "EMNIST" not in loaders.DATASETS["mnist"].description


def made_bytes(rows, columns=784, seed=0):
    """Pictures of correlated pixels."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, 30)) @ rng.normal(size=(30, columns)) + rng.normal(size=(rows, columns))
    return np.clip(128 + 8 * values, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("shape", [(50, 12), (2100, 40), (4500, 7)])
@pytest.mark.parametrize("seed", range(3))
def test_rescaled_components_are_the_scores_of_scikit_learn_each_in_the_unit_interval(shape, seed):
    """Each is an affine function of the score of an ordinary (centred) PCA, from 0 to 1; its sign is free."""
    pixels, directions = made_bytes(*shape, seed), 5
    Z = images.rescaled_components(pixels, directions)
    assert (Z.min(axis=0) == 0).all()
    assert (Z.max(axis=0) == 1).all()
    scores = PCA(directions, svd_solver="full").fit_transform(pixels / 255)
    score_range = np.ptp(scores, axis=0)
    up = (scores - scores.min(axis=0)) / score_range
    sign = np.sign((Z * scores).sum(axis=0))
    np.testing.assert_allclose(Z, np.where(sign > 0, up, 1 - up), atol=1e-9)


def test_rescaled_components_do_not_depend_on_the_order_of_pixels():
    """So it does not matter that EMNIST's pictures are stored transposed."""
    pixels = made_bytes(300, 40)
    order = np.random.default_rng(1).permutation(40)
    np.testing.assert_allclose(
        images.rescaled_components(pixels[:, order], 6), images.rescaled_components(pixels, 6), atol=1e-9
    )


def test_uncentred_coordinates_have_the_same_bits_as_before_there_was_a_choice():
    pixels = made_bytes(4500, 40)
    blocks = np.array_split(pixels, 2)
    gram = np.zeros((40, 40))
    for block in blocks:
        gram += block.astype(np.float64).T @ block.astype(np.float64)
    vectors = np.linalg.eigh(gram).eigenvectors[:, ::-1][:, :9]
    basis = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(9)])
    before = np.concatenate([(block / 255.0) @ basis for block in blocks])
    np.testing.assert_array_equal(images.principal_coordinates(pixels, 9), before)


@pytest.fixture
def small_pictures(home, monkeypatch):
    """Image sets of which 50 rows are used, in 20 directions; `write` puts 80 pictures into two files."""
    monkeypatch.setattr(images, "ROWS", 50)
    monkeypatch.setattr(images, "DIRECTIONS", 20)
    known = dict(loaders.SHA256)
    monkeypatch.setattr(openml, "SHA256", known)

    def write(source, seed, rows=80):
        pixels = made_bytes(rows, seed=seed).reshape(rows, 28, 28)
        digits = np.random.default_rng(seed).permutation(np.arange(rows) % 10).astype(np.uint8)
        for name, array in zip(source.files, (pixels, digits), strict=True):
            data = files.idx_header(array.shape) + array.tobytes()
            packed = put(home / "data" / name, gzip.compress(data)).read_bytes()
            known[name] = known[name] and (hashlib.sha256(packed).hexdigest(),)
        return pixels[:50].reshape(-1, 784), digits[:50]

    return write


OFFICIAL, SUBSET = replace(images.EMNIST, rows=80), replace(images.EMNIST_SUBSET, rows=80)


@pytest.mark.parametrize("preprocessing", images.PREPROCESSINGS)
def test_emnist_digits_are_the_first_rows_of_the_official_files_or_else_of_the_subset(
    small_pictures, preprocessing
):
    pixels, digits = small_pictures(SUBSET, seed=1)
    content = images.read_pictures((OFFICIAL, SUBSET), preprocessing)
    np.testing.assert_array_equal(content.y, digits)
    np.testing.assert_array_equal(content.X, images.PREPROCESSINGS[preprocessing](pixels, 20))
    assert content.note == "a subset of 114,906 EMNIST digits"
    pixels, digits = small_pictures(OFFICIAL, seed=2)
    content = images.read_pictures((OFFICIAL, SUBSET), preprocessing)
    np.testing.assert_array_equal(content.y, digits)
    np.testing.assert_array_equal(content.X, images.PREPROCESSINGS[preprocessing](pixels, 20))
    assert content.note == ""


def test_the_subset_of_emnist_is_checked_by_checksum_and_the_official_files_by_shape(small_pictures, home):
    small_pictures(SUBSET, seed=1)
    labels = home / "data" / SUBSET.labels
    labels.write_bytes(labels.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match=r"emnist-subset-digits-train-labels.* is truncated or altered"):
        images.read_pictures((OFFICIAL, SUBSET), "pca-rescaled")
    small_pictures(OFFICIAL, seed=2)
    with pytest.raises(DataError, match=r"not an IDX file of bytes of shape \(240000, 28, 28\)"):
        load("emnist-digits")


def test_newcomers_are_told_how_to_get_the_official_files_of_emnist(home):
    official = r"^[^\n]*emnist/emnist-digits-train-images.*gzip\.zip of nist\.gov[^\n]*$"
    with pytest.raises(DataError, match=official):
        load("emnist-digits")
    put(home / "data" / images.EMNIST_SUBSET.images)  # without its labels
    with pytest.raises(DataError, match=official):
        loaders.DATASETS["emnist-digits"].find_files()
    labels = put(home / "data" / images.EMNIST_SUBSET.labels)
    assert loaders.DATASETS["emnist-digits"].substitute() == "a subset of 114,906 EMNIST digits"
    assert loaders.DATASETS["emnist-digits"].find_files() == [labels.with_name(SUBSET.images[7:]), labels]


def test_the_name_of_a_federation_says_what_results_on_it_must_say(monkeypatch):
    """The rows are a subset; the pre-processing is not the default."""
    X, y = made_bytes(60, 4) / 255, np.arange(60) % 10

    def content(note):
        return lambda: Content(X, y, tuple("abcd"), note=note)

    def name_of(note, preprocessing):
        read = {"pca-uncentred": content(note), "pca-rescaled": content(note)}
        changed = replace(loaders.DATASETS["mnist"], read=content(note), preprocessings=read)
        monkeypatch.setattr(loaders, "DATASETS", loaders.DATASETS | {"mnist": changed})
        return load("mnist", agents=2, preprocessing=preprocessing).name

    assert name_of("", None) == name_of("", "pca-uncentred") == "mnist"
    assert name_of("", "pca-rescaled") == "mnist (pca-rescaled)"
    assert name_of("a subset of 9", None) == "mnist (a subset of 9)"
    assert name_of("a subset of 9", "pca-rescaled") == "mnist (a subset of 9; pca-rescaled)"


def test_each_preprocessing_is_known_and_the_default_is_the_one_of_before():
    for dataset in loaders.DATASETS.values():
        assert tuple(dataset.preprocessings) in ((), ("pca-uncentred", "pca-rescaled"))
        if dataset.preprocessings:
            assert dataset.preprocessings["pca-uncentred"] is dataset.read


def test_a_preprocessing_that_is_not_possible_is_refused_before_anything_is_read(home):
    with pytest.raises(ConfigError, match=r"'pca-rescald'; did you mean 'pca-rescaled'.*pca-uncentred"):
        load("mnist", preprocessing="pca-rescald")
    for name in ("digits", "w8a", "fremtpl2"):
        with pytest.raises(
            ConfigError, match=f"^data set '{name}' has no choice of pre-processing; leave preprocessing out$"
        ):
            load(name, preprocessing="pca-rescaled")


@pytest.mark.parametrize("name", [marked(name) for name in ("fashion-mnist", "mnist", "emnist-digits")])
def test_rescaled_image_sets_lie_in_the_unit_interval(name):
    content = loaders.DATASETS[name].preprocessings["pca-rescaled"]()
    assert content.X.shape == (60_000, 300)
    assert (content.X.min(axis=0) == 0).all()
    assert (content.X.max(axis=0) == 1).all()
    assert set(content.y) == set(range(10))


@pytest.mark.data("fashion-mnist")
def test_the_default_preprocessing_of_fashion_mnist_can_be_named():
    assert (
        load("fashion-mnist").fingerprint()
        == load("fashion-mnist", preprocessing="pca-uncentred").fingerprint()
    )


@pytest.mark.data(*images.EMNIST_SUBSET.files)
def test_the_subset_of_emnist_is_balanced_and_says_what_it_is(monkeypatch):
    read = partial(images.read_pictures, (images.EMNIST_SUBSET,), "pca-uncentred")
    content = read()
    counts = np.bincount(content.y)
    assert counts.sum() == 60_000
    assert (counts.min(), counts.max()) == (5491, 6668)
    changed = replace(loaders.DATASETS["emnist-digits"], read=read, preprocessings={"pca-uncentred": read})
    monkeypatch.setattr(loaders, "DATASETS", loaders.DATASETS | {"emnist-digits": changed})
    fed = load("emnist-digits")
    assert fed.name == "emnist-digits (a subset of 114,906 EMNIST digits)"
    assert [(row["rows"], row["y=1"]) for row in fed.report()] == [(476, 238)] * 28  # 6,668 ones


SOURCES = {  # rows, columns and positives, as SOURCES.md beside the data states them
    "digits": (1797, 64, {}),
    "w8a": (49_749, 300, {1: 1479}),
    "a9a": (32_561, 123, {1: 7841}),
    "news": (39_644 - 1, 61 - 3, {}),
    "msd": (8162, 90, {}),
    "heart": (303 + 292 + 116 + 141, 11, {}),
    "medpar": (1495, 4, {}),
    "contraception": (1934, 5, {1: 759}),
    "guimmun": (2159, 15, {1: 964}),
    "exam": (4059, 9, {}),
}


@pytest.mark.parametrize("name", [marked(name) for name in SOURCES])
def test_a_record_describes_its_data(name):
    dataset = loaders.DATASETS[name]
    content = dataset.read()
    rows, columns, classes = SOURCES[name]
    assert content.X.shape == (rows, columns) == (dataset.rows, dataset.columns)
    assert len(content.y) == rows
    assert len(set(content.columns)) == columns
    assert not dataset.classes or tuple(np.unique(content.y)) == dataset.classes
    assert all((content.y == label).sum() == count for label, count in classes.items())


def test_the_defaults_of_every_record_are_possible():
    assert names() == tuple(loaders.DATASETS)
    for name, dataset in loaders.DATASETS.items():
        assert dataset.name == name
        assert dataset.partition in PARTITIONS
        assert dataset.target in (dataset.classes or (None,))
        for names_ in (dataset.files, *dataset.substitutes.values()):
            assert set(names_) <= set(loaders.SHA256)
        assert "\n" not in repr(dataset)


@pytest.mark.data("a9a")
def test_a9a_has_all_its_columns_even_the_empty_last_one():
    fed = load("a9a")
    assert fed.dim == 123
    assert len(fed.sites) == 40
    assert isinstance(fed.pooled().X, scipy.sparse.csr_array)
    assert set(fed.pooled().X.data) == {1.0}


@pytest.mark.parametrize("name", [marked("news"), marked("msd")])
def test_least_squares_sets_are_rescaled_to_the_unit_interval(name):
    content = loaders.DATASETS[name].read()
    for values in (content.X, content.y[:, None]):
        assert (values.min(axis=0) == 0).all()
        assert (values.max(axis=0) == 1).all()


@pytest.mark.data("news")
def test_news_is_thirty_agents_of_500_rows_and_lacks_the_outlier():
    fed = load("news")
    assert list(fed.rows.values()) == [500] * 30
    assert not {"url", "timedelta", "shares"} & set(fed.columns)
    assert len(np.unique(fed.pooled().X, axis=0)) > 14_900  # no row twice, but some articles are alike
    assert fed.fingerprint() != load("news", seed=1).fingerprint()
    assert sum(load("news", agents=100).rows.values()) == 39_643  # 500 each are not there: all rows
    # Without the outlier the rates fill the unit interval; with it all others would be below 1 / 701.
    assert np.median(fed.pooled().X[:, fed.columns.index("n_unique_tokens")]) > 0.3


@pytest.mark.data("msd")
def test_songs_are_dealt_equally_or_one_year_to_an_agent():
    rows = load("msd").rows
    assert set(rows.values()) == {408, 409}
    assert "subset of 8,162 rows" in loaders.DATASETS["msd"].description
    years = load("msd", partition="one-label")
    assert len(years.sites) == 73
    assert sorted(years.rows.values())[:3] == [1, 1, 1]
    assert max(years.rows.values()) == 618
    assert all(len(set(table.y)) == 1 for table in years.tables.values())
    assert sorted(load("msd", partition="one-label", agents=3).rows.values()) == [584, 598, 618]


@pytest.mark.parametrize(
    ("name", "sites", "fewest", "most"),
    [
        marked("heart", 4, 116, 303),
        marked("medpar", 54, 1, 92),
        marked("contraception", 60, 2, 118),
        marked("guimmun", 161, 1, 55),
        marked("exam", 65, 2, 198),
    ],
)
def test_natural_sites_are_those_of_the_data(name, sites, fewest, most):
    fed = load(name)
    dataset = loaders.DATASETS[name]
    assert len(fed.sites) == sites == dataset.agents == len(load(name, agents=sites).sites)
    assert (min(fed.rows.values()), max(fed.rows.values())) == (fewest, most)
    assert sum(fed.rows.values()) == dataset.rows
    assert np.linalg.matrix_rank(np.c_[fed.pooled().X, np.ones(dataset.rows)]) == fed.dim + 1
    with pytest.raises(ConfigError, match=f"{sites} sites, not 3; leave agents out"):
        load(name, agents=3)
    assert len(load(name, agents=3, partition="iid").sites) == 3


@pytest.mark.data("heart")
def test_heart_has_four_hospitals_and_readable_columns():
    fed = load("heart")
    assert fed.rows == {"cleveland": 303, "hungarian": 292, "switzerland": 116, "va": 141}
    assert fed.columns == (
        *("age", "sex", "cp=2", "cp=3", "cp=4", "trestbps", "restecg=1", "restecg=2"),
        *("thalach", "exang", "oldpeak"),
    )
    assert {row["site"]: row["y=1"] for row in fed.report()}["switzerland"] == 108
    first = dict(zip(fed.columns, fed.tables["cleveland"].X[0], strict=True))
    assert (first["age"], first["cp=2"], first["restecg=2"], first["oldpeak"]) == (63, 0, 1, 2.3)


@pytest.mark.data("medpar")
def test_medpar_gives_the_poisson_coefficients_of_the_literature():
    """Hilbe, Negative Binomial Regression (2011), length of stay by hmo, white and type."""
    from sklearn.linear_model import PoissonRegressor

    table = load("medpar").pooled()
    fit = PoissonRegressor(alpha=0, tol=1e-8, max_iter=1000).fit(table.X, table.y)
    found = [fit.intercept_, *fit.coef_]
    np.testing.assert_allclose(found, [2.3329, -0.0715, -0.1539, 0.2217, 0.7095], atol=1e-4)


@pytest.fixture(scope="module")
def policies():
    return claims.read_fremtpl2()


@pytest.mark.data(claims.FREQUENCY)
def test_motor_claims_come_with_their_exposure_and_regions(policies):
    assert policies.X.shape == (678_013, len(policies.columns))
    assert 40 <= len(policies.columns) <= 60
    assert len(set(policies.columns)) == len(policies.columns)
    assert policies.y.sum() == 36_102
    assert (policies.offset <= np.log(2.02)).all()  # years of exposure, at most two
    sizes = np.unique(policies.sites, return_counts=True)[1]
    assert (len(sizes), min(sizes), max(sizes)) == (22, 1326, 160_601)


@pytest.mark.data(claims.FREQUENCY)
def test_motor_claims_have_a_design_of_full_rank(policies):
    some = policies.X[:: len(policies.X) // 20_000]
    assert np.linalg.matrix_rank(np.c_[some, np.ones(len(some))]) == len(policies.columns) + 1
    for start in ("Area=", "VehPower=", "VehAge=", "DrivAge=", "VehBrand="):
        block = some[:, [name.startswith(start) for name in policies.columns]]
        assert set(block.sum(axis=1)) == {0, 1}  # the reference level, or one other


def test_levels_are_named_in_their_order_and_the_reference_is_left_out():
    values = np.array(["B2", "B10", "B1", "B2"])
    assert list(design.dummies("brand", values)) == ["brand=B2", "brand=B10"]
    assert list(design.dummies("brand", values, "B2")) == ["brand=B1", "brand=B10"]
    np.testing.assert_array_equal(design.dummies("brand", values)["brand=B2"], [1, 0, 0, 1])
    assert design.binned(np.array([0, 1, 2, 3, 99]), (0, 1, 3)).tolist() == ["0", "1-2", "1-2", "3+", "3+"]


def test_unknown_names_are_refused_with_a_guess():
    with pytest.raises(ConfigError, match=r"'fashion-minst'; did you mean 'fashion-mnist'.*digits"):
        load("fashion-minst")
    with pytest.raises(ConfigError, match=r"'two-clas'; did you mean 'two-class'.*iid"):
        load("digits", partition="two-clas")
    with pytest.raises(ConfigError, match=r"target 10 .*choose one of 0, 1"):
        load("digits", target=10)
    with pytest.raises(ConfigError, match="'msd' predicts a number, not a class; leave target out"):
        load("msd", target=1)
    with pytest.raises(ConfigError, match="needs a site for each row"):
        load("digits", partition="natural")
    for agents in (0, 2.5, True, "4"):
        with pytest.raises(ConfigError, match="agents"):
            load("digits", agents=agents)


# Files


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty machine: no data, no cache, no Debian package."""
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SYSTEM", {"fashion_mnist": tmp_path / "usr"})
    return tmp_path


def put(path, content=b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_missing_file_says_in_one_sentence_how_to_get_it(home):
    with pytest.raises(DataError, match=r"^[^\n]*FEDSHED_DATA to a folder that holds libsvm/w8a.bz2 [^\n]*$"):
        load("w8a")
    for name, dataset in loaders.DATASETS.items():
        if dataset.files:
            with pytest.raises(
                DataError, match=rf"^data file {dataset.files[0]} was not found: set FEDSHED_DATA[^\n]*$"
            ):
                load(name)
    with pytest.raises(DataError, match=r"fremtpl2/freMTPL2freq\.csv\.xz was not found"):
        claims.read_fremtpl2()
    with pytest.raises(
        DataError, match=r"fashion_mnist/train-images.*`apt-get install dataset-fashion-mnist"
    ):
        load("fashion-mnist")


def test_files_are_looked_for_in_order(home, monkeypatch):
    relative = "fashion_mnist/train-labels-idx1-ubyte.gz"
    places = [
        home / "usr" / "train-labels-idx1-ubyte.gz",
        home / "cache/fedshed" / relative,
        home / "data" / relative,
    ]
    for place in places:
        put(place)
        assert files.find(relative) == place
    monkeypatch.delenv("FEDSHED_DATA")
    assert files.find(relative) == places[1]


def test_an_unpacked_file_serves_as_well(home):
    put(home / "cache/fedshed/silos/medpar.csv", b"plain")
    put(home / "data/silos/medpar.csv.xz", b"packed")
    assert files.find("silos/medpar.csv.xz").name == "medpar.csv.xz"
    (home / "data/silos/medpar.csv.xz").unlink()
    assert files.find("silos/medpar.csv.xz").name == "medpar.csv"
    with pytest.raises(DataError, match=r"medpar\.csv is truncated or altered"):
        load("medpar")


@pytest.mark.data("a9a", "medpar", "heart")
@pytest.mark.parametrize("relative", ["libsvm/a9a.bz2", "silos/medpar.csv.xz", "heart/processed.va.data"])
def test_packed_and_unpacked_files_have_the_same_content(relative, tmp_path, monkeypatch):
    data = files.content(relative)
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path))
    put(tmp_path / files.plain(relative), data)
    assert files.content(relative) == data


@pytest.mark.data(*(relative for relative, known in loaders.SHA256.items() if known))
def test_every_file_is_the_one_whose_checksum_is_known():
    for relative, known in loaders.SHA256.items():
        if known:
            assert files.verified(relative, known)


@pytest.mark.parametrize("name", [name for name, data in loaders.DATASETS.items() if data.files])
def test_no_altered_file_is_read(home, name):
    for relative in loaders.DATASETS[name].files:
        put(home / "data" / relative, b"altered")
    with pytest.raises(DataError, match=r"data file .*(truncated or altered|not an IDX file).*get it again"):
        load(name)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-100], lambda data: data[:-1] + b"?", lambda data: b""]
)
def test_a_truncated_or_altered_file_is_refused_by_name(home, damage):
    whole = bytes(range(256))
    digest = hashlib.sha256(whole).hexdigest()
    path = put(home / "data/libsvm/w8a.bz2", whole)
    assert files.verified("libsvm/w8a.bz2", [digest]) == whole
    path.write_bytes(damage(whole))
    with pytest.raises(DataError, match=r"w8a\.bz2 is truncated or altered.*get it again"):
        files.verified("libsvm/w8a.bz2", [digest])
    with pytest.raises(DataError, match=r"w8a\.bz2 is truncated or altered"):
        load("w8a")


def idx_bytes(shape=(2, 3), body=6, magic=(0, 0, 8, 2)):
    return bytes(magic) + np.array(shape, ">u4").tobytes() + bytes(range(body))


def test_idx_reads_what_was_written():
    for data in (gzip.compress(idx_bytes()), idx_bytes()):
        np.testing.assert_array_equal(files.idx("f", data, (2, 3)), np.arange(6).reshape(2, 3))
    assert files.idx_header((2, 3)) == idx_bytes(body=0)


def packed(data):
    """Compressed without the time of day: it becomes part of a test's name."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no gzip",
        packed(idx_bytes())[:-9],
        packed(idx_bytes())[:-8] + bytes(8),
        packed(b""),
        packed(idx_bytes(magic=(0, 0, 9, 2))),
        packed(idx_bytes(magic=(0, 0, 8, 3))),
        packed(idx_bytes(shape=(3, 2))),
        packed(idx_bytes(shape=(2**32 - 1, 2**32 - 1))),
        packed(idx_bytes(body=5)),
        packed(idx_bytes(body=7)),
        packed(idx_bytes() + bytes(10**7)),
    ],
)
def test_idx_refuses_what_is_not_the_array_it_expects(data):
    with pytest.raises(DataError, match=r"data file f .*get it again"):
        files.idx("f", data, (2, 3))


# OpenML

IMAGES = "mnist/train-images-idx3-ubyte.gz"


@pytest.fixture
def small(home, monkeypatch):
    """A machine with internet, and an OpenML whose MNIST has three training and two test pictures."""
    monkeypatch.setenv("FEDSHED_OFFLINE", "0")
    monkeypatch.setattr(openml, "TRAINING", 3)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 784))
    bunch = SimpleNamespace(data=pixels.astype(float), target=np.array(list("50419"), dtype=object))
    made = {}
    for part, rows in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        shape = (rows.stop - rows.start, 28, 28)
        made[f"mnist/{part}-images-idx3-ubyte.gz"] = pixels[rows].astype(np.uint8).tobytes(), shape
        made[f"mnist/{part}-labels-idx1-ubyte.gz"] = bytes([5, 0, 4, 1, 9][rows]), shape[:1]
    content = {name: files.idx_header(shape) + data for name, (data, shape) in made.items()}
    known = {name: (hashlib.sha256(data).hexdigest(),) for name, data in content.items()}
    monkeypatch.setattr(openml, "SHA256", known)
    return SimpleNamespace(bunch=bunch, content=content, home=home)


def test_images_are_fetched_once_checked_and_kept_in_the_cache(small, monkeypatch):
    asked = []

    def fetch(name, **options):
        asked.append(name)
        assert options["version"] == 1
        assert options["n_retries"] == 1
        assert options["data_home"] == str(small.home / "cache/fedshed/scikit-learn")
        assert 0 < socket.getdefaulttimeout() <= 10
        return small.bunch

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    for _ in range(2):
        for name, data in small.content.items():
            assert openml.obtained(name) == data
    assert asked == ["mnist_784"]
    assert socket.getdefaulttimeout() is None
    assert (small.home / "cache/fedshed" / files.plain(IMAGES)).read_bytes() == small.content[IMAGES]


@pytest.mark.parametrize(
    "error",
    [
        URLError("no route\nto host"),
        TimeoutError(),
        ValueError("md5 differs"),
        EOFError(),
        OSError(28, "full"),
    ],
)
def test_whatever_goes_wrong_on_the_way_is_one_sentence_with_advice(small, monkeypatch, error):
    def fetch(name, **options):
        raise error

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    with pytest.raises(
        DataError, match=r"^[^\n]*OpenML's Fashion-MNIST could not be fetched.*FEDSHED_DATA[^\n]*$"
    ):
        load("fashion-mnist")
    assert socket.getdefaulttimeout() is None
    assert not (small.home / "cache/fedshed/fashion_mnist").exists()


def test_scikit_learn_itself_gives_up_at_once_where_there_is_no_network(small, monkeypatch):
    def refuse(*address, **options):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    started = time.monotonic()
    with pytest.raises(
        DataError, match=r"mnist_784 could not be fetched \(.*Network is unreachable.*FEDSHED_DATA"
    ):
        openml.obtained(IMAGES)
    assert time.monotonic() - started < 5


def test_what_is_not_the_set_is_refused_and_nothing_is_kept(small, monkeypatch):
    small.bunch.data[0, 0] += 1
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda name, **options: small.bunch)
    with pytest.raises(DataError, match="its rows are not those of mnist/train-images"):
        openml.obtained(IMAGES)
    small.bunch.data = small.bunch.data[:, :700]
    with pytest.raises(DataError, match="be fetched"):
        openml.obtained(IMAGES)
    assert not (small.home / "cache/fedshed/mnist").exists()


def test_offline_means_no_attempt(small, monkeypatch):
    monkeypatch.setenv("FEDSHED_OFFLINE", "1")
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda name, **options: pytest.fail("asked"))
    with pytest.raises(DataError, match=f"data file {IMAGES} was not found: set FEDSHED_DATA"):
        openml.obtained(IMAGES)
    monkeypatch.setenv("FEDSHED_OFFLINE", "")
    put(small.home / "data" / IMAGES, b"altered")
    with pytest.raises(DataError, match="truncated or altered"):
        openml.obtained(IMAGES)


@pytest.mark.data("fashion_mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-images-idx3-ubyte.gz")
@pytest.mark.parametrize("folder", openml.NAMES)
def test_the_published_rows_in_the_order_of_openml_pass_the_check(folder):
    parts = [("train", 60_000), ("t10k", 10_000)]
    names_ = [
        f"{folder}/{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1") for part, _ in parts
    ]
    read = [files.verified(name, loaders.SHA256[name]) for name in names_]
    shapes = [(rows, 28, 28) for _, rows in parts] + [(rows,) for _, rows in parts]
    arrays = [files.idx(name, data, shape) for name, data, shape in zip(names_, read, shapes, strict=True)]
    made = openml._files(folder, (np.concatenate(arrays[:2]).reshape(-1, 784), np.concatenate(arrays[2:])))
    assert set(made) == set(names_)
