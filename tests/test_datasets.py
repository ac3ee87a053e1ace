"""Named data sets: what each agent gets, and which files and parameters are refused."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedshed.datasets import files, load, loaders, names
from fedshed.datasets.partitions import PARTITIONS, iid, two_class
from fedshed.errors import ConfigError, DataError

TEN = np.random.default_rng(0).integers(0, 10, 2000)
BINARY = np.where(np.random.default_rng(1).random(1000) < 0.1, 1, -1)
cases = pytest.mark.parametrize(("y", "target"), [(TEN, 1), (BINARY, 1), (BINARY, None), (BINARY, -1)])


def loaded(name, **options):
    """The data set, or a skip with the loader's own sentence."""
    dataset = loaders.DATASETS[name]
    try:
        for relative in loaders.SHA256:
            if dataset.folder and relative.startswith(dataset.folder + "/"):
                files.find(relative)
    except DataError as sentence:
        pytest.skip(str(sentence))
    return load(name, **options)


# Partitions


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("agents", [1, 2, 7, 20])
@cases
def test_no_row_is_used_twice_and_the_seed_decides(name, agents, y, target):
    deal = PARTITIONS[name]
    parts = deal(y, agents, 5, target)
    rows = np.concatenate(parts)
    assert len(parts) == agents
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(y)
    assert all(np.array_equal(a, b) for a, b in zip(parts, deal(list(y), agents, 5, target), strict=True))
    if agents > 1:
        assert not np.array_equal(parts[0], deal(y, agents, 6, target)[0])


@given(rows=st.integers(1, 200), agents=st.integers(1, 40), seed=st.integers(0, 2**40))
def test_iid_uses_every_row_and_sizes_differ_by_at_most_one(rows, agents, seed):
    y = np.linspace(0, 1, rows)
    if agents > rows:
        with pytest.raises(ConfigError, match=f"{agents} agents .* found {rows}"):
            iid(y, agents, seed)
        return
    parts = iid(y, agents, seed)
    sizes = [len(part) for part in parts]
    assert sorted(np.concatenate(parts)) == list(range(rows))
    assert max(sizes) - min(sizes) <= 1


def test_iid_ignores_the_target_of_a_binary_set():
    assert sum(map(len, iid(BINARY, 7, 0, 1))) == len(BINARY)


@pytest.mark.parametrize("agents", [1, 4, 28])
def test_iid_with_a_target_is_half_target_and_half_the_others_mixed_equally(agents):
    others = [label for label in range(10) if label != 3]
    for part in iid(TEN, agents, 0, 3):
        counts = np.bincount(TEN[part], minlength=10)
        assert counts[3] == counts[others].sum() == (TEN == 3).sum() // agents
        assert np.ptp(counts[others]) <= 1


def test_iid_with_a_target_shrinks_to_the_smallest_class():
    y = np.repeat([0, 1, 2], [100, 100, 10])
    for part in iid(y, 5, 0, 0):
        assert np.bincount(y[part]).tolist() == [4, 2, 2]


@pytest.mark.parametrize("agents", [2, 4, 28])
def test_two_class_gives_agent_i_the_target_and_class_i_mod_K(agents):
    others = [label for label in range(10) if label != 3]
    for i, part in enumerate(two_class(TEN, agents, 0, 3)):
        counts = np.bincount(TEN[part], minlength=10)
        assert set(np.flatnonzero(counts)) == {3, others[i % 9]}
        assert counts[3] == counts[others[i % 9]] == (TEN == 3).sum() // agents


def test_two_class_shrinks_to_what_every_class_can_give():
    y = np.repeat(["a", "b", "c"], [100, 100, 7])
    parts = two_class(y, 6, 0, "a")  # class c serves three agents: two rows each
    assert [len(part) for part in parts] == [4] * 6
    assert {tuple(sorted(set(y[part]))) for part in parts} == {("a", "b"), ("a", "c")}


@pytest.mark.parametrize("agents", [1, 2, 5, 62])
@pytest.mark.parametrize("target", [1, -1, None])
def test_two_class_on_a_binary_set_gives_the_target_to_the_first_half(agents, target):
    wanted = 1 if target is None else target
    parts = two_class(BINARY, agents, 0, target)
    targets = np.array([(BINARY[part] == wanted).sum() for part in parts])
    holders = -(-agents // 2)
    assert (targets > 0).sum() == holders == np.flatnonzero(targets).max() + 1
    assert np.ptp(targets[:holders]) <= 1
    assert np.ptp([(BINARY[part] != wanted).sum() for part in parts]) <= 1
    assert sum(map(len, parts)) == len(BINARY)


@pytest.mark.parametrize("deal", [iid, two_class])
def test_too_few_rows_is_an_error_with_the_numbers(deal):
    with pytest.raises(ConfigError, match=r"500 agents .* 1\D"):
        deal(TEN, 500, 0, 1)
    with pytest.raises(ConfigError, match=r"3 agents .* found (2|1 and 1)"):
        deal([0, 1], 3, 0, 1)


@pytest.mark.parametrize("deal", [iid, two_class])
@pytest.mark.parametrize("agents", [0, -1, 2.0, "3", True, None])
def test_agents_and_seed_are_whole_numbers(deal, agents):
    with pytest.raises(ConfigError, match="agents must be an integer of at least 1"):
        deal(TEN, agents, 0, 1)
    with pytest.raises(ConfigError, match="seed must be an integer of at least 0"):
        deal(TEN, 2, -1, 1)


def test_two_class_needs_a_target_among_the_classes():
    with pytest.raises(ConfigError, match="needs a target"):
        two_class(TEN, 2, 0, None)
    with pytest.raises(ConfigError, match="needs a target and another class"):
        two_class([1, 1], 1, 0, 1)
    for deal in (iid, two_class):
        with pytest.raises(ConfigError, match="target 11 is not a class; choose one of 0, 1, 2"):
            deal(TEN, 2, 0, 11)


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


def test_w8a_is_sparse_and_its_positives_are_at_half_of_the_agents():
    fed = loaded("w8a")
    report = fed.report()
    assert [row["y=1"] > 0 for row in report] == [True] * 31 + [False] * 31
    assert all(700 <= row["rows"] <= 900 for row in report)
    assert sum(row["rows"] for row in report) == 49_749
    assert sum(row["y=1"] for row in report) == 1479
    assert isinstance(fed.pooled().X, scipy.sparse.csr_array)
    assert set(fed.pooled().X.data) == {1.0}


def test_fashion_mnist_is_dealt_as_the_paper_says():
    fed = loaded("fashion-mnist")
    assert fed.dim == 300
    assert [(row["rows"], row["y=1"]) for row in fed.report()] == [(428, 214)] * 28
    first = fed.pooled().X[:, 0]
    assert (first > 0).all()  # not centred: the first direction is near the mean picture
    assert np.linalg.norm(fed.pooled().X, axis=1).max() <= 28


def test_principal_coordinates_are_those_of_the_svd_without_centring():
    images = np.random.default_rng(0).integers(0, 256, (50, 12)).astype(np.uint8)
    U, S, _ = np.linalg.svd(images / 255, full_matrices=False)
    Z = loaders.principal_coordinates(images, 5)
    np.testing.assert_allclose(np.abs(Z), np.abs(U * S)[:, :5], atol=1e-10)
    basis = np.linalg.lstsq(images / 255, Z, rcond=None)[0]
    assert (basis[np.abs(basis).argmax(axis=0), range(5)] > 0).all()


@pytest.mark.parametrize("name", ["digits", "w8a"])
def test_a_record_describes_its_data(name):
    loaded(name)
    dataset = loaders.DATASETS[name]
    X, classes, columns = dataset.read()
    assert X.shape == (dataset.rows, dataset.columns) == (len(classes), len(columns))
    assert tuple(np.unique(classes)) == dataset.classes


def test_the_defaults_of_every_record_are_possible():
    assert names() == tuple(loaders.DATASETS)
    for name, dataset in loaders.DATASETS.items():
        assert dataset.name == name
        assert dataset.partition in PARTITIONS
        assert dataset.target in dataset.classes


def test_unknown_names_are_refused_with_a_guess():
    with pytest.raises(ConfigError, match=r"'fashion-minst'; did you mean 'fashion-mnist'.*digits"):
        load("fashion-minst")
    with pytest.raises(ConfigError, match=r"'two-clas'; did you mean 'two-class'.*iid"):
        load("digits", partition="two-clas")
    with pytest.raises(ConfigError, match=r"target 10 .*choose one of 0, 1"):
        load("digits", target=10)
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
    with pytest.raises(DataError, match=r"^[^\n]*FEDSHED_DATA to a folder that holds libsvm/w8a.bz2$"):
        load("w8a")
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
    np.testing.assert_array_equal(
        files.idx("f", gzip.compress(idx_bytes()), (2, 3)), np.arange(6).reshape(2, 3)
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no gzip",
        gzip.compress(idx_bytes())[:-9],
        gzip.compress(idx_bytes())[:-8] + bytes(8),
        gzip.compress(b""),
        gzip.compress(idx_bytes(magic=(0, 0, 9, 2))),
        gzip.compress(idx_bytes(magic=(0, 0, 8, 3))),
        gzip.compress(idx_bytes(shape=(3, 2))),
        gzip.compress(idx_bytes(shape=(2**32 - 1, 2**32 - 1))),
        gzip.compress(idx_bytes(body=5)),
        gzip.compress(idx_bytes(body=7)),
        gzip.compress(idx_bytes() + bytes(10**7)),
    ],
)
def test_idx_refuses_what_is_not_the_array_it_expects(data):
    with pytest.raises(DataError, match=r"data file f .*get it again"):
        files.idx("f", data, (2, 3))
