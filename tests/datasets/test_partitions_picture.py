"""The picture of a partition: what is drawn adds up to the rows that are held."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedshed.datasets import labels, load
from fedshed.datasets.picture import BINS, MOST_CLASSES, draw, draw_labels
from fedshed.tables import Federation


def dealt(agents, classes, seed=0, kind="agent"):
    """Labels of very unequal agents."""
    rng = np.random.default_rng(seed)
    return {f"{kind}-{i:03d}": rng.integers(0, classes, rng.integers(1, 90)) for i in range(agents)}


def heights(ax):
    """The height of each agent's bar, from its blocks."""
    return np.sum([[block.get_height() for block in group] for group in ax.containers], axis=0)


@pytest.mark.parametrize("agents", [1, 4, 30, 200])
@pytest.mark.parametrize("classes", [1, 2, 10, MOST_CLASSES])
def test_the_blocks_of_a_bar_are_the_rows_of_each_class(agents, classes):
    given = dealt(agents, classes)
    figure = draw_labels(given, "toy")
    (ax,) = figure.axes
    found = np.unique(np.concatenate(list(given.values())))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [str(k) for k in found[::-1]]
    assert heights(ax).tolist() == [len(y) for y in given.values()]
    for label, group in zip(found, ax.containers, strict=True):
        assert [block.get_height() for block in group] == [np.sum(y == label) for y in given.values()]
    looks = {(group[0].get_facecolor(), group[0].get_hatch()) for group in ax.containers}
    assert len(looks) == len(found)


@pytest.mark.parametrize("agents", [1, 4, 200])
def test_many_values_are_bars_of_rows_above_shares_of_intervals(agents):
    rng = np.random.default_rng(0)
    given = {f"agent-{i:03d}": rng.normal(i, 1, rng.integers(30, 60)) for i in range(agents)}
    upper, lower, _ = draw_labels(given).axes
    assert heights(upper).tolist() == [len(y) for y in given.values()]
    shares = lower.collections[0].get_array()
    assert shares.shape == (BINS, agents)
    np.testing.assert_allclose(shares.sum(axis=0), 1)


def test_a_few_huge_values_do_not_squeeze_the_others_and_text_is_drawn_too():
    y = np.append(np.random.default_rng(0).normal(size=1000), 1e6)
    lower = draw_labels({"one": y, "two": y}).axes[1]
    assert "edges" in lower.get_ylabel()
    assert max(lower.get_ylim()) < 10
    words = np.array([f"word{k}" for k in range(50)])
    assert draw_labels({"one": words, "two": words[:9]}).axes[1].collections[0].get_array().shape == (BINS, 2)


@pytest.mark.parametrize(("agents", "most"), [(4, 4), (70, 70), (71, 36), (200, 67)])
def test_names_of_agents_are_thinned_out_before_they_touch(agents, most):
    ax = draw_labels(dealt(agents, 2, kind="school")).axes[0]
    assert ax.get_xlabel() == "school"
    assert len(ax.get_xticks()) == most
    assert ax.get_xticklabels()[1].get_text() == ("001" if agents <= 70 else f"{-(-agents // 70):03d}")


def test_a_federation_is_drawn_site_by_site_and_can_be_saved(tmp_path):
    fed = Federation.from_arrays(np.eye(6), list("yynyyy"), ["b", "a", "b", "a", "c", "b"], name="toy")
    figure = draw(fed)
    assert isinstance(figure, Figure)
    assert heights(figure.axes[0]).tolist() == list(fed.rows.values())
    assert figure.get_suptitle() == "toy: 3 agents, 6 rows, 1 to 3 each"
    figure.savefig(tmp_path / "toy.png")
    assert (tmp_path / "toy.png").stat().st_size > 1000


def test_labels_are_those_that_load_deals():
    options = {"agents": 9, "partition": "one-label", "target": 3}
    given, fed = labels("digits", **options), load("digits", **options)
    assert tuple(given) == fed.sites
    for site, classes in given.items():
        np.testing.assert_array_equal(np.where(classes == 3, 1, -1), fed.tables[site].y)
    assert len(draw_labels(given).axes[0].containers) == 9
