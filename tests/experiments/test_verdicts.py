"""Claims: a word means one ratio, of the median or with every seed; what is not known stays open."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed import ConfigError
from fedshed.experiments.measured import shown
from fedshed.experiments.repeats import Amount, exactly, middle
from fedshed.experiments.verdicts import (
    NAMED,
    Case,
    Tally,
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
        ("similar", 2.0, True),
        ("similar", 0.5, True),
        ("similar", 2.01, False),
        ("similar", 0.49, False),
        ("much", 471 / 458, False),  # was once called a large advantage
        ("much", 1.5, True),
        ("much", 1.49, False),
        ("not much", 1.5, True),
        ("not much", 1.51, False),
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
    of, over = [160, 140, 400], [100, 100, 100]  # the median is 1.6 times, one seed is below 1.5
    assert case("much", of, over).met is False
    assert case("much", [160, 150, 400], over).met is True
    assert case("similar", [100, 190, 300], over).met is True  # one seed may be far off
    for name, one in NAMED.items():
        assert one.every_seed is ("every seed" in one.means), name


def test_what_a_capped_run_leaves_open_is_neither_granted_nor_denied():
    assert case("much", [MORE_THAN_750], [500]).met is True
    assert case("much", [MORE_THAN_750], [501]).met is None  # it may be less than 1.5 times
    assert case("similar", [MORE_THAN_750], [700]).met is None
    assert case("similar", [MORE_THAN_750], [374]).met is False  # more than twice, however it goes on
    assert case("no less", [MORE_THAN_750], [MORE_THAN_750]).met is None
    assert case("hardly", [100], [MORE_THAN_750]).met is True
    assert case("more", [100], [MORE_THAN_750]).met is False
    assert case("much", [MORE_THAN_750, 100, 900], [500, 100, 500]).met is False  # a seed denies it
    assert [case("much", [n], [1]).mark for n in (2, 1)] == ["✓", "✗"]
    assert case("more", [MORE_THAN_750], [MORE_THAN_750]).mark == "?"
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
    assert shown([Amount(1e-15, 3e-5)], "gap@20") == r"$\le 3 \times 10^{-5}$"


def test_a_verdict_counts_cases_and_says_what_decided():
    met, unmet, unknown = case("much", [4], [1]), case("much", [1], [1]), case("much", [MORE_THAN_750], [700])
    assert verdict([met, met]) == "**holds**"
    assert verdict([met, unmet, unmet]) == "**holds partly** (1 of 3)"
    assert verdict([unmet]) == "**does not hold**"
    assert decided_by([met, unmet]) == "much: at least 1.5 times, with every seed"
    assert decided_by([case("about 2.5", [1], [1])]) == "about 2.5 times: at most 25 % more or less"
    assert all(one.means in table() for one in NAMED.values())
    assert NAMED["goal"].means not in table("goal")
    assert verdict([unknown]) == "**undecided**"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_a_claim_is_undecided_if_open_cases_could_change_its_verdict(met, unmet, unknown):
    """Whatever the open cases turn out to be, a verdict that is given stays."""
    if met + unmet + unknown == 0:
        return
    found = {Tally(met + k, unmet + unknown - k, 0).verdict for k in range(unknown + 1)}
    assert Tally(met, unmet, unknown).verdict == (found.pop() if len(found) == 1 else "undecided")


def test_an_unknown_threshold_is_refused():
    with pytest.raises(ConfigError, match="unknown threshold 'roughly'; known: similar"):
        threshold("roughly")
