"""Calls that fail at once are repeated until the deadline, whatever engine reports them."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from fedshed.deployment import backoff as module
from fedshed.deployment.backoff import Backoff

pytestmark = pytest.mark.deployment  # it needs the engines' packages


class Clock:
    """A clock that only sleep moves: what is measured does not depend on what else the machine does."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def asked(backoff: Backoff, clock: Clock, answers: Callable[[str], bool]) -> list[tuple[str, float]]:
    """Who was asked and when, if every call ends at once."""
    calls = []
    while backoff.open:
        for site in backoff.due():
            calls.append((site, clock.now))
            if not answers(site):
                backoff.failed(site)
        clock.sleep(backoff.seconds() if backoff.open else 0.0)
    return calls


def test_a_site_that_answers_is_asked_once_and_one_that_fails_until_the_deadline(clock):
    backoff = Backoff(("a", "b"), 60.0)
    calls = asked(backoff, clock, lambda site: site == "a")
    assert backoff.left == 0.0
    assert [site for site, _ in calls].count("a") == 1
    times = [when for site, when in calls if site == "b"]
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10])  # up to the longest
    assert times[-1] < 60.0


def test_when_all_have_answered_nothing_waits_for_the_deadline(clock):
    assert len(asked(Backoff(("a", "b"), 60.0), clock, lambda site: True)) == 2
    assert clock.now == 0.0


class Results(list):
    """What NVFlare's group call gives: pairs to iterate over, and the failures by site."""

    def __init__(self, found: list, failures: dict[str, Exception]) -> None:
        super().__init__(found)
        self.failures = failures


class Job:
    """A stand-in for NVFlare's facade: a site that is away fails at once, as a real one does."""

    def __init__(self, away: dict[str, float]) -> None:
        self.away, self.began, self.calls = away, time.monotonic(), list[str]()
        self.timeouts = list[float]()

    def get_clients(self, sites):
        return lambda blocking, timeout: self._group(sites[0], timeout)

    def _group(self, site, timeout):
        job = self

        class Group:
            def handle(self, payload):
                job.calls.append(site)
                job.timeouts.append(timeout)
                if time.monotonic() - job.began < job.away.get(site, 0.0):
                    return Results([], {site: RuntimeError("target_unreachable")})
                return Results([(site, payload + site.encode())], {})

        return Group()


@pytest.fixture
def nvflare():
    pytest.importorskip("nvflare")
    from fedshed.deployment.nvflare import NVFlare

    return NVFlare


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_over_nvflare_a_site_that_comes_back_in_time_is_heard(nvflare):
    job = Job({"b": 0.3})
    replies = dict(nvflare(job, 20.0).exchange({"a": b"1", "b": b"2"}))
    assert replies == {"a": b"1a", "b": b"2b"}
    assert job.calls.count("a") == 1
    assert 2 <= job.calls.count("b") <= 4
    assert time.monotonic() - job.began < 5.0
    assert all(0 < seconds <= 20.0 for seconds in job.timeouts)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_over_nvflare_an_exchange_with_a_dead_site_lasts_its_deadline(nvflare, caplog):
    job = Job({"b": 60.0})
    replies = nvflare(job, 1.0).exchange({"a": b"1", "b": b"2"})
    assert list(replies) == [("a", b"1a")]
    assert 1.0 <= time.monotonic() - job.began < 2.0
    assert 2 <= job.calls.count("b") <= 5
    assert "site b: target_unreachable" in caplog.text
    assert list(nvflare(job, 1.0).exchange({})) == []
