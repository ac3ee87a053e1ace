"""The time model of a comparison: linear, monotone, the CPU order where messages cost nothing, one map."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf

import pytest
from msgspec.structs import replace

import fedshed
from fedshed._utils.figure_style import look
from fedshed.algorithms.costs import HERE, time_in_words
from fedshed.cli.compare import _files, _print_summary
from fedshed.cli.show import to_json
from fedshed.experiments.sources import times_of
from fedshed.experiments.study import facts
from fedshed.experiments.times import LATENCIES, RATES

NAMES = ("newton", "newton-seldom", "pen", "qn-shed", "agd")
PLACES = [(latency, rate) for latency in (0.0, 0.003, 1.0) for rate in (100.0, 1e6, inf)]


@pytest.fixture(scope="module")
def found():
    """A comparison in which one algorithm does not reach the tolerance."""
    return fedshed.compare(fedshed.datasets.load("digits", agents=4), NAMES, l2=1e-2, max_iterations=40)


@pytest.fixture(scope="module")
def repeated():
    several = [fedshed.datasets.load("digits", agents=4, seed=seed) for seed in (1, 2, 3)]
    return fedshed.compare(several, ("newton", "qn-shed"), l2=1e-2)


def test_only_runs_that_reached_the_tolerance_take_part_and_the_others_are_named(found):
    assert set(found.time(0.1, 1e6)) == set(NAMES) - {"agd"}
    assert found.time_map().left_out == ("agd",)
    assert any("agd" in note for note in found.time_map().notes())


def test_with_a_gap_times_count_up_to_it_and_runs_that_reach_it_take_part(found):
    gap = 2 * found.results["agd"].trace[-1].gap  # agd has not converged, but came as near as that
    early = replace(found, target_gap=gap)
    whole, until = found.time(0.1, 1e6), early.time(0.1, 1e6)
    assert set(until) == set(NAMES)
    assert early.time_map().left_out == ()
    for name in whole:
        row, end = found.results[name].trace.first_below(gap), found.results[name].trace[-1]
        assert until[name] < whole[name]
        assert early.time(1.0, inf)[name] - early.time(0.0, inf)[name] == pytest.approx(row.exchanges)
        bits = early.time(0.0, 1.0)[name] - early.time(0.0, inf)[name]
        all_bits = found.time(0.0, 1.0)[name] - found.time(0.0, inf)[name]
        sent = row.uplink_bytes + row.downlink_bytes
        assert bits / all_bits == pytest.approx(sent / (end.uplink_bytes + end.downlink_bytes))
    nearer = replace(found, target_gap=1e-300).time_map()
    assert nearer is None or "a gap below 1e-300" in nearer.notes()[-1]


def test_time_is_linear_in_latency_and_in_the_time_of_a_bit(found, repeated):
    for comparison in (found, repeated):
        exchanges = {one.algorithm: one.exchanges for one in comparison.summary()}
        for rate in (1e3, 1e9):
            near, far, farther = (comparison.time(latency, rate) for latency in (0.5, 1.5, 3.5))
            for name in near:
                assert far[name] - near[name] == pytest.approx(exchanges[name])
                assert farther[name] - far[name] == pytest.approx(2 * exchanges[name])
        fast, half, quarter = (comparison.time(0.1, rate) for rate in (inf, 2e3, 1e3))
        for name in fast:
            assert quarter[name] - fast[name] == pytest.approx(2 * (half[name] - fast[name]))


def test_bytes_are_those_of_the_busiest_link_both_ways(found):
    slow, fast = found.time(0.0, 8.0), found.time(0.0, inf)
    for name, seconds in slow.items():
        links = [site.uplink_bytes + site.downlink_bytes for site in found.results[name].sites.values()]
        assert seconds - fast[name] == pytest.approx(max(links))


def test_time_does_not_fall_with_latency_nor_rise_with_the_rate(found):
    for name in found.time(0.0, 1.0):
        for rate in RATES:
            assert all(found.time(a, rate)[name] < found.time(b, rate)[name] for a, b in pairwise(LATENCIES))
        for latency in LATENCIES:
            assert all(
                found.time(latency, a)[name] > found.time(latency, b)[name] for a, b in pairwise(RATES)
            )


def test_without_latency_and_at_any_rate_it_is_the_order_of_cpu(found):
    cpu = found.trials[0].cpu
    assert found.time(0.0, inf) == {name: cpu[name] for name in NAMES if name != "agd"}
    assert found.time_map().here == found.time(HERE.latency, HERE.rate)


def test_the_limits_are_fewest_exchanges_and_fewest_bytes(found):
    summary = [one for one in found.summary() if one.converged]
    few = {one.algorithm for one in summary if one.exchanges == min(each.exchanges for each in summary)}
    assert found.fastest(1e9, inf)[0] in few
    times = found.time(0.0, 1e-6)
    assert found.fastest(0.0, 1e-6) == (min(times, key=times.get), min(times.values()))


@pytest.mark.parametrize(("latency", "rate"), PLACES)
def test_the_fastest_is_the_least_time(found, latency, rate):
    name, seconds = found.fastest(latency, rate)
    times = found.time(latency, rate)
    assert seconds == times[name] == min(times.values())


def test_the_map_agrees_with_time_in_numbers_text_and_report(found):
    whole = found.time_map()
    shown = times_of(whole)
    assert len(whole.records()) == len(LATENCIES)
    for i, latency in enumerate(LATENCIES):
        for j, rate in enumerate(RATES):
            assert whole.times[i][j] == found.time(latency, rate)
            name, seconds = whole.cells[i][j]
            assert (name, seconds) == found.fastest(latency, rate)
            assert (shown.names[i][j], shown.seconds[i][j]) == (name, seconds)
            text = f"{name} {shown.words[i][j]}"
            assert list(whole.records()[i].values())[1 + j] == shown.ranked[i][j][0] == text
    assert shown.latencies == ("1 ms", "10 ms", "100 ms", "1 s")
    assert shown.rates == ("10 kbit/s", "1 Mbit/s", "100 Mbit/s")


def test_the_figure_has_a_cell_for_each_network_in_the_colours_of_the_fastest(found, tmp_path):
    whole, ax = found.time_map(), found.plot_times().axes[0]
    cells = [cell for row in whole.cells for cell in row]
    assert [text.get_text() for text in ax.texts] == [
        said for name, seconds in cells for said in (name, time_in_words(seconds))
    ]
    marks = [(line.get_marker(), line.get_color()) for line in ax.lines]
    assert marks == [(look(name).marker, look(name).color) for name, _ in cells]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["10 kbit/s", "1 Mbit/s", "100 Mbit/s"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1 ms", "10 ms", "100 ms", "1 s"]
    written = [path.name for path in _files(tmp_path, found, {}, None)]
    assert {"networks.png", "networks.svg"} <= set(written)


def test_where_nothing_reached_the_tolerance_there_is_no_map(capsys, tmp_path):
    nothing = fedshed.compare(fedshed.datasets.load("digits", agents=4), ["agd"], max_iterations=2)
    assert nothing.time_map() is None
    assert nothing.time(0.1, 1e6) == {}
    with pytest.raises(fedshed.ConfigError, match="no algorithm reached the tolerance"):
        nothing.fastest(0.1, 1e6)
    with pytest.raises(fedshed.ConfigError, match="no algorithm reached the tolerance"):
        nothing.plot_times()
    assert not [path for path in _files(tmp_path, nothing, {}, None) if path.stem == "networks"]
    _print_summary(nothing, every_column=False)
    assert "no map of latency and rate: no algorithm reached the tolerance" in capsys.readouterr().out


def test_a_network_that_cannot_be_has_no_times(found):
    with pytest.raises(fedshed.ConfigError, match="rate > 0"):
        found.time(0.1, 0.0)


def test_the_command_prints_the_map_within_80_columns_and_gives_it_as_json(found, capsys):
    _print_summary(found, every_column=False)
    printed = capsys.readouterr().out
    lines = printed[printed.index("Fastest by latency") :].splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    for record in found.time_map().records():
        assert any(all(text in line for text in record.values()) for line in lines)
    times = json.loads(to_json(facts({}, found)))["times"]
    assert (times["latencies"], times["rates"]) == (list(LATENCIES), list(RATES))
    assert times["times"][2][1] == found.time(LATENCIES[2], RATES[1])
