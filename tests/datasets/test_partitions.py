"""Partitions: no row twice, deterministic by seed, and for each what its name promises."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedshed._utils.errors import ConfigError
from fedshed.datasets.partitions import PARTITIONS, dirichlet, iid, natural, one_label, two_class

TEN = np.random.default_rng(0).integers(0, 10, 2000)
BINARY = np.where(np.random.default_rng(1).random(1000) < 0.1, 1, -1)
cases = pytest.mark.parametrize(("y", "target"), [(TEN, 1), (BINARY, 1), (BINARY, None), (BINARY, -1)])

labels = st.integers(1, 60).flatmap(lambda rows: arrays(np.int64, rows, elements=st.integers(0, 5)))
seeds = st.integers(0, 2**40)


def equal(parts, others):
    return all(np.array_equal(a, b) for a, b in zip(parts, others, strict=True))


@pytest.mark.parametrize("name", PARTITIONS)
@given(y=labels, agents=st.integers(1, 12), seed=seeds, target=st.one_of(st.none(), st.integers(0, 5)))
def test_agents_hold_distinct_rows_sorted_or_there_is_an_error_with_advice(name, y, agents, seed, target):
    sites = np.array([f"site-{label % 3}" for label in y])
    try:
        parts = PARTITIONS[name](y, agents, seed, target, sites)
    except ConfigError as error:
        advised = re.search("fewer agents|leave agents out|needs a target|choose one", str(error))
        assert advised, error  # noqa: PT017
        return
    rows = np.concatenate(parts)
    assert len(parts) == agents
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(y)
    assert equal(parts, PARTITIONS[name](y.tolist(), agents, seed, target, sites.tolist()))


@pytest.mark.parametrize("name", ["iid", "two-class", "dirichlet"])
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
    assert equal(parts, deal(list(y), agents, 5, target))
    if agents > 1:
        assert not np.array_equal(parts[0], deal(y, agents, 6, target)[0])


@given(rows=st.integers(1, 200), agents=st.integers(1, 40), seed=st.integers(0, 2**40))
def test_iid_uses_every_row_and_sizes_differ_by_at_most_one(rows, agents, seed):
    y = np.linspace(0, 1, rows)
    if agents > rows:
        with pytest.raises(ConfigError, match=f"{agents} agents .* the data have {rows}"):
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
    with pytest.raises(ConfigError, match=r"3 agents .* the data have (2|1 and 1)"):
        deal([0, 1], 3, 0, 1)


@pytest.mark.parametrize("deal", PARTITIONS.values())
@pytest.mark.parametrize("agents", [0, -1, 2.0, "3", True])
def test_agents_and_seed_are_whole_numbers(deal, agents):
    with pytest.raises(ConfigError, match="agents must be an integer of at least 1"):
        deal(TEN, agents, 0, 1, TEN)
    with pytest.raises(ConfigError, match="seed must be an integer of at least 0"):
        deal(TEN, 2, -1, 1, TEN)


@pytest.mark.parametrize("deal", [iid, two_class, dirichlet])
def test_the_number_of_agents_is_needed_where_the_data_do_not_give_it(deal):
    with pytest.raises(ConfigError, match="agents must be an integer of at least 1, not None"):
        deal(TEN, None, 0, 1)


def test_two_class_needs_a_target_among_the_classes():
    with pytest.raises(ConfigError, match="needs a target"):
        two_class(TEN, 2, 0, None)
    with pytest.raises(ConfigError, match="needs a target and another class"):
        two_class([1, 1], 1, 0, 1)
    for deal in (iid, two_class):
        with pytest.raises(ConfigError, match="target 11 is not a class; choose one of 0, 1, 2"):
            deal(TEN, 2, 0, 11)


@given(y=labels, seed=seeds)
def test_one_label_without_a_number_is_an_agent_for_each_label_with_all_its_rows(y, seed):
    parts = one_label(y, None, seed)
    assert [set(y[part]) for part in parts] == [{label} for label in np.unique(y)]
    assert sorted(np.concatenate(parts)) == list(range(len(y)))


@given(y=labels, agents=st.integers(1, 8), seed=seeds)
def test_one_label_takes_the_largest_labels_in_their_order(y, agents, seed):
    values, counts = np.unique(y, return_counts=True)
    if agents > len(values):
        with pytest.raises(ConfigError, match=f"{agents} agents .* the data have {len(values)}; use fewer"):
            one_label(y, agents, seed)
        return
    parts = one_label(y, agents, seed)
    held = [int(y[part[0]]) for part in parts]
    assert held == sorted(held)
    assert sorted(map(len, parts)) == sorted(counts)[len(counts) - agents :]
    assert all(
        np.array_equal(part, np.flatnonzero(y == label)) for part, label in zip(parts, held, strict=True)
    )


def test_one_label_of_equally_many_rows_prefers_the_smaller_label():
    assert [part.tolist() for part in one_label([1999.5, 2001.0, 1980.25], 2, 0)] == [[2], [0]]


@given(y=labels, agents=st.integers(1, 60), seed=seeds)
def test_dirichlet_uses_every_row_and_leaves_nobody_without(y, agents, seed):
    if agents > len(y):
        with pytest.raises(ConfigError, match=f"{agents} agents .* the data have {len(y)}"):
            dirichlet(y, agents, seed)
        return
    parts = dirichlet(y, agents, seed)
    assert sorted(np.concatenate(parts)) == list(range(len(y)))
    assert min(map(len, parts)) >= 1


def test_dirichlet_shares_have_the_mean_and_variance_of_their_distribution():
    """Shares of Dir(1/2, ..., 1/2) over M agents: mean 1/M, variance (1/M)(1 - 1/M) / (M/2 + 1)."""
    M, y = 5, np.zeros(2000)
    shares = np.array([[len(part) / len(y) for part in dirichlet(y, M, seed)] for seed in range(400)])
    np.testing.assert_allclose(shares.mean(axis=0), 1 / M, atol=0.04)
    np.testing.assert_allclose(shares.var(axis=0), (1 / M) * (1 - 1 / M) / (M / 2 + 1), rtol=0.25)


@given(sites=st.lists(st.sampled_from(["b", "a", "c", "B"]), min_size=1, max_size=40), seed=seeds)
def test_natural_gives_each_site_its_rows_in_the_order_of_names(sites, seed):
    parts = natural(np.zeros(len(sites)), None, seed, None, sites)
    assert [{sites[row] for row in part} for part in parts] == [{name} for name in sorted(set(sites))]
    assert sorted(np.concatenate(parts)) == list(range(len(sites)))


def test_natural_refuses_another_number_of_agents_and_data_without_sites():
    assert len(natural([0, 1, 1], 2, 0, None, ["u", "v", "v"])) == 2
    with pytest.raises(ConfigError, match="2 sites, not 3; leave agents out"):
        natural([0, 1, 1], 3, 0, None, ["u", "v", "v"])
    with pytest.raises(
        ConfigError, match=r"needs a site for each row.*use iid, two-class, one-label, dirichlet"
    ):
        natural([0, 1, 1], None, 0)
