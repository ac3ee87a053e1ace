"""`auto`: the estimate decides, and it is what the messages and the sizes say it is."""

from __future__ import annotations

from math import inf

import pytest

import fedshed
from conftest import make_federation
from fedshed import Network
from fedshed.algorithms.auto import CANDIDATES, MARGIN, MEMORY, MOMENT, choose, choose_summable
from fedshed.algorithms.costs import (
    HERE,
    LARGEST,
    MEASURED,
    Shape,
    estimate,
    rate_in_words,
    size_in_words,
    time_in_words,
)
from fedshed.exchange import InProcess, Stateless

SHAPES = [Shape(n, agents, 100.0 * agents) for n in (5, 60, 300, 900, 3000) for agents in (2, 50, 5000)] + [
    Shape(47_000, 20, 20_000.0, 1.5e6),
    Shape(40, 3, 1e6, quadratic=True),
    Shape(90, 4, 800.0, contrasts=9),
]
NETWORKS = [HERE, Network(), Network(5.0, 1e9), Network(0.0, 1e4), Network(0.001, 1e8)]


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
@pytest.mark.parametrize("network", NETWORKS, ids=repr)
def test_what_is_chosen_is_estimated_to_end_soonest_among_what_there_is_room_for(shape, network):
    algorithm, why = choose(shape, None, network)
    name = why.partition(":")[0]
    assert type(algorithm) is type(fedshed.ALGORITHMS[name].algorithm)
    room = shape.agents * shape.n**2 <= 2 * MEMORY
    named = [name, *(one for one in CANDIDATES if f" {one} " in why.replace("(", " "))]
    rivals = ("newton", "newton-seldom", "qn-shed") if room else ("qn-shed",)
    least = min(estimate(one, shape).seconds(network) for one in rivals)
    assert estimate(name, shape).seconds(network) <= MARGIN * least + MOMENT
    assert room or name == "qn-shed"
    assert "estimated" in why
    quickest = min(estimate(one, shape).seconds(network) for one in named)
    assert ("the simplest of those" in why) == (estimate(name, shape).seconds(network) > quickest)
    assert ("extrapolated" in why) == (shape.n > LARGEST)
    assert "\n" not in why
    assert ("in this process" in why) == (network == HERE)


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_agents_that_forget_and_links_with_budgets_keep_their_rules(shape):
    for network in NETWORKS:
        assert not choose(shape, None, network, stateless=True)[1].startswith("pen")
        assert choose(shape, fedshed.Constant(3), network)[1].startswith("qn-shed: links with a budget")


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_seconds_are_linear_in_latency_and_in_the_time_of_a_bit(name, shape):
    found = estimate(name, shape)
    far, slow = Network(2.0, inf), Network(0.0, 100.0)
    still = Network(0.0, 1e300)
    assert found.seconds(far) - found.seconds(still) == pytest.approx(2.0 * found.exchanges)
    assert found.seconds(slow) - found.seconds(still) == pytest.approx(0.08 * found.link_bytes)
    assert found.seconds(HERE) == found.cpu >= found.apart > 0


def test_more_of_anything_costs_no_less():
    for name in CANDIDATES:
        for n, agents, rows in ((5, 2, 100.0), (200, 30, 5000.0), (900, 4, 1e5)):
            least = estimate(name, Shape(n, agents, rows))
            for larger in (
                Shape(2 * n, agents, rows),
                Shape(n, 2 * agents, rows),
                Shape(n, agents, 2 * rows),
            ):
                more = estimate(name, larger)
                assert more.cpu >= least.cpu
                assert more.link_bytes >= least.link_bytes
            assert estimate(name, Shape(n, agents, rows, rows)).cpu <= least.cpu  # one number a row is stored


@pytest.mark.parametrize("name", ["newton", "newton-seldom"])
def test_estimated_bytes_of_exact_messages_are_those_of_a_run_of_as_many_exchanges(name):
    federation = fedshed.datasets.load("digits", agents=4)
    result = fedshed.optimize(federation, l2=1e-2, algorithm=CANDIDATES[name])
    end, n = result.trace[-1], len(result.theta)
    (a, b), (c, d) = MEASURED[name].up, MEASURED[name].down
    expected = 4 * n * (n + 1) * end.hessians + end.exchanges * (a + c + (b + d) * n)
    for site in result.sites.values():
        assert site.uplink_bytes + site.downlink_bytes == pytest.approx(expected, rel=0.02)


def test_where_a_run_happens_decides_and_the_reader_may_say_otherwise():
    federation, many = make_federation("logistic"), fedshed.datasets.load("digits", agents=4)
    here = fedshed.optimize(federation, l2=1e-3)
    assert here.algorithm.startswith("newton: all sites are in this process, so CPU time decides; estimated ")
    there = fedshed.optimize(federation, l2=1e-3, transport=lambda sites: InProcess(sites))
    assert "over a network of 50 ms per exchange and 10 Mbit/s" in there.algorithm
    assert "over a network" in fedshed.optimize(federation, l2=1e-3, transport=Stateless).algorithm
    slow = fedshed.optimize(many, l2=1e-2, network=Network(0.01, 1e4))
    assert slow.algorithm.startswith("pen: over a network of 10 ms per exchange and 10 kbit/s")
    assert fedshed.optimize(many, l2=1e-2, budget=2).algorithm.startswith("qn-shed")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"latency": -1.0}, "latency >= 0"),
        ({"latency": inf}, "latency >= 0"),
        ({"rate": 0.0}, "rate > 0"),
        ({"rate": float("nan")}, "rate > 0"),
        ({"rate": "fast"}, "rate of a Network must be a number"),
    ],
)
def test_a_network_that_cannot_be_is_refused(options, said):
    with pytest.raises(fedshed.ConfigError, match=said):
        Network(**options)


@pytest.mark.parametrize("n", [3, 60, 1001])
def test_the_reason_with_groups_says_nothing_that_is_true_of_protected_studies_only(n):
    why = choose_summable(n)[1]
    assert "add up over sites" in why
    assert "mask" not in why


def test_a_network_must_be_one():
    with pytest.raises(fedshed.ConfigError, match="network must be a Network"):
        fedshed.optimize(make_federation("logistic"), l2=1e-3, network=0.05)


def test_durations_sizes_and_rates_are_read_with_their_units():
    assert [time_in_words(s) for s in (0.0, 0.00035, 0.05, 0.996, 1.24, 150.0, 12_345.0)] == [
        "0 ms", "0.35 ms", "50 ms", "1 s", "1.2 s", "150 s", "12,000 s",
    ]  # fmt: skip
    assert [size_in_words(b) for b in (12, 999, 1240, 3.6e6, 2e9)] == [
        "12 bytes", "1 KB", "1.2 KB", "3.6 MB", "2 GB",
    ]  # fmt: skip
    assert [rate_in_words(r) for r in (300, 1e4, 1e6, 2.5e9, inf)] == [
        "300 bit/s", "10 kbit/s", "1 Mbit/s", "2.5 Gbit/s", "links without limit",
    ]  # fmt: skip
