"""Claims: a word means one ratio, of the median or with every seed; what is not known is not granted."""

from __future__ import annotations

from math import inf

import pytest

from fedshed import ConfigError
from fedshed.experiments.measured import shown
from fedshed.experiments.repeats import Amount, exactly, middle
from fedshed.experiments.verdicts import (
    NAMED,
    Case,
    decided_by,
    ratio_in_words,
    table,
    threshold,
    verdict,
)

MORE_THAN_750 = Amount(750.0, inf)


def case(by, of, over):
    of, over = (
        tuple(one if isinstance(one, Amount) else exactly(one) for one in each) for each in (of, over)
    )
    return Case("a/0", "rounds", "a / b", of, over, by)


@pytest.mark.parametrize(
    ("by", "ratio", "met"),
    [
        ("similar", 648 / 444, False),  # was once called similar
        ("similar", 1.25, True),
        ("similar", 0.8, True),
        ("similar", 0.79, False),
        ("much", 471 / 458, False),  # was once called a large advantage
        ("much", 2.0, True),
        ("much", 1.99, False),
        ("slightly", 1.0, False),
        ("slightly", 1.2, True),
        ("slightly", 1.26, False),
        ("hardly", 0.1, True),
        ("hardly", 1.25, True),
        ("hardly", 1.26, False),
        ("more", 1.0, False),
        ("more", 1.001, True),
        ("no less", 1.0, True),
        ("no less", 0.999, False),
        ("about 2.5", 2.0, True),
        ("about 2.5", 3.2, False),
        ("at least 10", 10.0, True),
        ("at least 10", 9.99, False),
        ("more than 8", 8.0, False),
        ("at most 3", 3.0, True),
        ("at most 3", 3.01, False),
    ],
)
def test_a_word_means_a_ratio(by, ratio, met):
    assert case(by, [1000 * ratio], [1000]).met is met


def test_every_seed_or_the_median_decides_as_the_threshold_says():
    of, over = [210, 190, 400], [100, 100, 100]  # the median is 2.1 times, one seed is below 2
    assert not case("much", of, over).met
    assert case("much", [210, 200, 400], over).met
    assert case("similar", [100, 124, 300], over).met  # one seed may be far off
    for name, one in NAMED.items():
        assert one.every_seed is ("every seed" in one.means), name


def test_what_is_not_known_is_not_granted():
    assert case("much", [MORE_THAN_750], [375]).met
    assert not case("much", [MORE_THAN_750], [376]).met  # it may be less than 2 times
    assert not case("similar", [MORE_THAN_750], [700]).met
    assert not case("no less", [MORE_THAN_750], [MORE_THAN_750]).met
    assert case("hardly", [100], [MORE_THAN_750]).met
    assert case("more", [MORE_THAN_750], [MORE_THAN_750]).ratio == "not known"
    assert ratio_in_words(exactly(1.2).over(exactly(1.0))) == "1.2"
    assert ratio_in_words(MORE_THAN_750.over(exactly(300.0))) == "more than 2.5"
    assert ratio_in_words(exactly(300.0).over(MORE_THAN_750)) == "less than 0.4"


def test_a_median_is_known_if_most_runs_ended():
    assert middle([exactly(3), exactly(5), MORE_THAN_750]) == exactly(5)
    assert middle([exactly(3), Amount(800, inf), MORE_THAN_750]) == MORE_THAN_750
    assert shown([exactly(3), exactly(5), MORE_THAN_750], "rounds") == "5 (3 to > 750)"
    assert shown([MORE_THAN_750], "rounds") == "> 750"
    assert shown([exactly(3e-5)], "gap@20") == r"$3 \times 10^{-5}$"


def test_a_verdict_counts_cases_and_says_what_decided():
    met, unmet = case("much", [4], [1]), case("much", [1], [1])
    assert verdict([met, met]) == "**holds**"
    assert verdict([met, unmet, unmet]) == "**holds in 1 of 3**"
    assert verdict([unmet]) == "**does not hold**"
    assert decided_by([met, unmet]) == "much: at least 2 times, with every seed"
    assert decided_by([case("about 2.5", [1], [1])]) == "about 2.5 times: at most 25 % more or less"
    assert all(one.means in table() for one in NAMED.values())


def test_an_unknown_threshold_is_refused():
    with pytest.raises(ConfigError, match="unknown threshold 'roughly'; known: similar"):
        threshold("roughly")
