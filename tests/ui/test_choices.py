"""What the form offers can be run, and nothing else is taken from a request."""

from __future__ import annotations

import json

import pytest

from fedshed._utils.errors import ConfigError
from fedshed.algorithms import ALGORITHMS
from fedshed.datasets.loaders import DATASETS
from fedshed.datasets.partitions import PARTITIONS
from fedshed.experiments import ComparisonSpec
from fedshed.ui.choices import DEALT, WrongFieldError, check, choices, read_settings


@pytest.fixture(scope="module")
def offered():
    return choices()


def test_every_data_set_partition_and_algorithm_is_offered_with_words(offered):
    assert [one.name for one in offered.datasets] == list(DATASETS)
    assert set(DEALT) == set(PARTITIONS) == {one.name for one in offered.partitions}
    assert {one.name.removesuffix("+") for one in offered.algorithms} == set(ALGORITHMS)
    assert all(one.about for one in (*offered.datasets, *offered.partitions, *offered.algorithms))


def test_all_that_is_offered_for_a_data_set_can_be_prepared(offered):
    """Whatever is ticked, the comparison accepts it, and an algorithm for another loss is not there."""
    for data in offered.datasets:
        study = ComparisonSpec(dataset=data.name, algorithms=data.algorithms)
        assert set(study.resolved().prepared()) == set(data.algorithms)
        assert set(data.usual) <= set(data.algorithms)
        assert data.partition in data.partitions
    by_name = {data.name: data for data in offered.datasets}
    assert "shed-ls" in by_name["news"].algorithms
    assert "shed-ls" not in by_name["digits"].algorithms


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_partition_is_offered_where_it_deals_rows(offered, partition):
    (digits,) = (data for data in offered.datasets if data.name == "digits")
    study = ComparisonSpec(partition=partition, agents=None if partition == "one-label" else 4)
    if partition in digits.partitions:
        check(study)
        assert len(study.resolved().data().sites) == (10 if partition == "one-label" else 4)
    else:
        with pytest.raises(WrongFieldError, match="choose one of iid, two-class"):
            check(study)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"algorithms": ("fib-shd",)}, "algorithms", "did you mean 'fib-shed'"),
        ({"algorithms": ("shed-ls",)}, "algorithms", "cannot be used with the logistic loss"),
        ({"algorithms": ()}, "algorithms", "at least one"),
        ({"dataset": "digts"}, "dataset", "did you mean 'digits'"),
        ({"budget": "raleigh"}, "budget", "rayleigh"),
        ({"agents": 0}, "agents", "at least 1"),
        ({"l2": -1.0}, "l2", "not negative"),
        ({"l2": float("nan")}, "l2", "not negative"),
        ({"tol": float("inf")}, "tol", "not negative"),
        ({"max_iterations": 0}, "max_iterations", "between 1 and"),
        ({"max_iterations": 10**9}, "max_iterations", "between 1 and"),
        ({"seed": -1}, "seed", "not be negative"),
    ],
)
def test_what_is_not_offered_is_refused_with_its_field(changes, field, words):
    with pytest.raises(WrongFieldError, match=words) as refused:
        check(ComparisonSpec(**changes))
    assert refused.value.field == field


def test_a_request_cannot_have_a_file_executed(tmp_path):
    """`fedshed compare --algorithms my.py:Mine` runs a file; a form must not."""
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    with pytest.raises(WrongFieldError, match="unknown algorithm"):
        check(ComparisonSpec(algorithms=(f"{trap}:Mine",)))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"l2": "much"}, "l2: write a number"),
        ({"agents": 2.5}, "agents: write a whole number"),
        ({"algorithms": "newton"}, "algorithms: write a list of names"),
        ({"line_search": "fused"}, "unknown setting 'line_search'"),
        ({"preprocessing": "pca-rescaled"}, "unknown setting 'preprocessing'"),
        ({"repeats": 3}, "unknown setting 'repeats'"),
        ({"agent": 3}, "did you mean 'agents'"),
    ],
)
def test_settings_of_another_kind_are_refused_in_words(sent, words):
    with pytest.raises(ConfigError, match=words):
        read_settings(json.dumps(sent).encode())


def test_what_is_no_json_is_refused():
    for body in (b"", b"[]", b"\xff", b'{"l2": NaN}'):
        with pytest.raises(ConfigError, match="not JSON"):
            read_settings(body)


def test_empty_settings_are_those_of_the_data_set():
    study = read_settings(b'{"dataset": "digits"}')
    check(study)
    assert study.resolved().agents == 20
