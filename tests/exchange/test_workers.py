"""Workers that host many sites: what travels, the same bits as in one process, workers that die or stall."""

from __future__ import annotations

import os.path
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import fedshed
from conftest import make_federation
from fedshed.algorithms import Shed, build
from fedshed.exchange import InProcess
from fedshed.exchange.bundles import (
    Packer,
    common_start,
    pack_requests,
    replies_of,
    unpack_replies,
    unpack_requests,
)
from fedshed.exchange.site import Site
from fedshed.exchange.site_arrays import Crew, pack_sites, unpack_sites
from fedshed.exchange.worker import Worker
from fedshed.exchange.workers import MOST_DEATHS, WorkerDiedError, WorkerSites, assign_sites
from fedshed.linalg.tall import Tall
from fedshed.objectives import Logistic, stacked
from fedshed.objectives.families import family_of

FEDERATION = make_federation("logistic")
COUNTS = ("uplink_bytes", "downlink_bytes", "uplink_vectors", "exchanges", "hessians")
ALGORITHMS = ("newton", "lbfgs", "fib-shed", "qn-shed", "pen", "fednl")


class PoolInProcess:
    """Workers in this process; a test kills them, or lets them stall, before they answer a call."""

    def __init__(self, parts, strike=lambda pool, number: None):
        self._shipments, self._strike = [pack_sites(part) for part in parts], strike
        self._workers: dict[int, Worker | None] = {}
        self._results: dict[int, Any | None] = {}  # None: its worker died
        self.stalled: set[int] = set()
        self.starts = [0] * len(parts)
        self.asked = 0
        self._stalled_calls: list[tuple[int, int, tuple[bytes, bool]]] = []

    def start(self, worker, saved=None):
        self.starts[worker] += 1
        self._workers[worker] = Worker()
        self._workers[worker].host(self._shipments[worker], saved or b"")
        return self._ended(((b"", []), b""))

    def ask(self, worker, bundle, save):
        self.asked += 1
        self._strike(self, self.asked)
        if worker in self.stalled:
            call = self._ended(None)
            del self._results[call]
            self._stalled_calls.append((worker, call, (bundle, save)))
            return call
        there = self._workers[worker]
        return self._ended(None if there is None else there.answer(bundle, save))

    def _ended(self, result):
        call = self._next = getattr(self, "_next", 0) + 1
        self._results[call] = result
        return call

    def kill(self, worker):
        self._workers[worker] = None

    def resume(self, worker):
        """Let a worker answer what it was asked while it stalled."""
        self.stalled.discard(worker)
        for at, call, asked in self._stalled_calls:
            if at == worker:
                self._results[call] = self._workers[worker].answer(*asked)

    def first(self, calls, seconds):
        return next((call for call in calls if call in self._results), None)

    def result(self, call):
        result = self._results.pop(call)
        if result is None:
            raise WorkerDiedError("it was killed")
        return result

    def close(self):
        self._workers = {}


def at_workers(count, strike=lambda pool, number: None, made=None):
    """What makes a transport to a number of workers in this process."""

    def connect(sites):
        parts = assign_sites(dict.fromkeys(sites, 1), count)
        pool = PoolInProcess([[sites[name] for name in part] for part in parts], strike)
        if made is not None:
            made.append(pool)
        return WorkerSites(parts, pool, deadline=1.0, start_within=1.0)

    return connect


def fit(name="fib-shed", **options):
    return fedshed.optimize(FEDERATION, **{"algorithm": name, "l2": 1e-3, "tol": 1e-9, **options})


def final(result):
    return [getattr(result.trace[-1], count) for count in COUNTS]


@given(st.binary(max_size=30), st.lists(st.binary(max_size=9), min_size=1, max_size=6), st.randoms())
def test_requests_come_out_as_they_went_in_and_what_they_share_travels_once(common, own, random):
    payloads = [common + tail for tail in own]
    names = [f"site-{k}" for k in range(8)]
    places = sorted(random.sample(range(8), len(own)))
    bundle = pack_requests(payloads, places, len(names))
    assert unpack_requests(bundle, names) == dict(zip((names[k] for k in places), payloads, strict=True))
    assert common_start(payloads) == os.path.commonprefix(payloads)  # noqa: RUF071
    assert len(bundle) <= len(common) + sum(map(len, own)) + 4 * len(own) + 8


@given(st.lists(st.binary(max_size=9), max_size=6).map(lambda some: some * 99))
def test_replies_come_out_as_they_went_in_and_a_missing_one_is_an_error(replies):
    packer = Packer()
    for reply in replies:
        packer.add(reply)
    packed = packer.packed()
    assert list(replies_of(unpack_replies(packed, len(replies)).lengths, packed[1])) == replies
    with pytest.raises(fedshed.ProtocolError, match=f"{len(replies)} replies for {len(replies) + 1} sites"):
        unpack_replies(packed, len(replies) + 1)
    with pytest.raises(fedshed.ProtocolError, match="or incomplete ones"):
        unpack_replies((packed[0], [*packed[1], np.zeros(1, np.uint8)]), len(replies))


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([-1, 3], [2]), ([2] * 256 + [4], [513, 3]), ([2] * 257, [514]), ([1, 1], [1, 1])],
    ids=["negative", "over the end", "too few pieces", "too many pieces"],
)
def test_replies_that_do_not_lie_where_they_are_said_to_are_refused(lengths, sizes):
    chunks = [np.zeros(size, np.uint8) for size in sizes]
    with pytest.raises(fedshed.ProtocolError, match="or incomplete ones"):
        unpack_replies((msgspec.msgpack.encode([lengths, False, False, "", ""]), chunks), len(lengths))


def test_a_truncated_description_of_replies_is_refused():
    with pytest.raises(fedshed.ProtocolError, match="are not replies"):
        unpack_replies((msgspec.msgpack.encode([[1], False])[:-1], [np.zeros(1, np.uint8)]), 1)


def tables():
    """Rows of every kind that a site may have."""
    X = np.where(np.random.default_rng(0).random((20, 4)) < 0.5, 0.0, 1.5)
    return {
        "by-rows": X, "by-columns": np.asfortranarray(X), "cut": np.asfortranarray(np.vstack([X, X]))[:20],
        "sparse": csr_array(X), "tall": Tall(X), "tall-by-columns": Tall(np.asfortranarray(X)),
        "chosen": Tall(X)[:, [3, 0, 1, 2]],
    }  # fmt: skip


@pytest.mark.parametrize("together", [lambda models: models, stacked], ids=["alone", "together"])
def test_sites_come_out_of_a_few_arrays_as_they_went_in(together):
    """Dense, sparse or tall, with weights, offsets and clusters: costs and gradients to the last bit."""
    y, weights = np.where(np.arange(20) % 2, 1.0, -1.0), np.arange(1.0, 21.0)
    conversation = build("fib-shed+")
    models = {}
    for name, X in tables().items():
        for k, (w, offset) in enumerate([(None, None), (weights, None), (weights, weights / 9)]):
            models[f"{name}-{k}"] = model = Logistic(X, y, w, offset)
            model.clusters, model.least = np.arange(20) // 2, 1 + k
    sites = [Site(name, model, conversation) for name, model in together(models).items()]
    description, arrays = pack_sites(sites)
    assert len(arrays) <= 3  # one for each type of number
    again = unpack_sites(description, arrays)
    assert list(again) == [site.name for site in sites]
    for site in sites:
        one, other = site.objective, again[site.name].objective
        assert again[site.name].conversation == conversation
        assert type(other.X) is type(one.X)
        assert (other.least, other.held, other.weight) == (one.least, one.held, one.weight)
        assert np.array_equal(other.clusters, one.clusters)
        for theta in np.eye(4):
            assert one.at(theta).value == other.at(theta).value
            assert np.array_equal(one.at(theta).gradient, other.at(theta).gradient)


@pytest.mark.parametrize("loss", ["multinomial", "poisson", "tweedie(1.6)"])
def test_a_site_keeps_its_loss_its_classes_and_its_parameter(loss):
    kind = family_of(loss).objective
    more = {"classes": 3} if loss == "multinomial" else {}
    X, y = np.random.default_rng(1).normal(size=(12, 2)), np.arange(12) % 3
    model = kind(X, y if more else y.astype(float), **more)
    (other,) = unpack_sites(*pack_sites([Site("a", model, build("newton"))])).values()
    assert type(other.objective) is kind
    theta = np.full(model.dim, 0.3)
    assert np.array_equal(other.objective.at(theta).gradient, model.at(theta).gradient)


def test_what_cannot_be_sent_is_refused_with_the_name_of_the_site():
    class Mine(Shed, frozen=True, tag="mine"):
        pass

    rows, y = np.ones((2, 1)), np.array([1.0, -1.0])
    with pytest.raises(fedshed.ConfigError, match=r"own algorithms, not test_workers"):
        pack_sites([Site("a", Logistic(rows, y), Mine())])
    with pytest.raises(fedshed.ConfigError, match=r"site 'a': an array of object"):
        pack_sites([Site("a", Logistic(rows, y.astype(object)), build("newton"))])
    sites = [Site(name, Logistic(rows, y), build(name)) for name in ("newton", "lbfgs")]
    with pytest.raises(fedshed.ConfigError, match="one conversation"):
        pack_sites(sites)


def test_sites_on_a_device_are_refused():
    pytest.importorskip("array_api_strict")
    with pytest.raises(fedshed.ConfigError, match=r"is on a device, but workers compute on CPUs"):
        fit(transport=at_workers(2), device="array_api_strict")


def test_a_worker_of_another_version_says_so():
    site = Site("a", Logistic(np.ones((2, 1)), np.array([1.0, -1.0])), build("newton"))
    description, arrays = pack_sites([site])
    crew = msgspec.structs.replace(msgspec.msgpack.decode(description, type=Crew), version="0.0.1")
    with pytest.raises(fedshed.ConfigError, match=r"0\.0\.1; install the same version"):
        unpack_sites(msgspec.msgpack.encode(crew), arrays)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 10**6), min_size=1), st.integers(1, 5))
def test_every_site_has_one_worker_and_no_worker_much_more_than_another(sizes, workers):
    """Greedy: the loads of two workers differ by no more than the dearest site."""
    parts = assign_sites(sizes, workers)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    assert all(part and part == sorted(part) for part in parts)
    assert len(parts) == min(workers, len(sizes))
    cost = [sum(sizes[name] + 5000 for name in part) for part in parts]
    assert max(cost) - min(cost) <= max(sizes.values()) + 5000


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_bits_and_counts_as_in_one_process(name, workers):
    there, here = fit(name, transport=at_workers(workers)), fit(name)
    assert np.array_equal(there.theta, here.theta)
    assert final(there) == final(here)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("when", [3, 8, 13])
def test_a_worker_that_dies_costs_no_round_and_no_bit(name, when):
    """Built again as it was saved and asked again what it was asked since, it is the same worker."""

    def strike(pool, number):
        if number == when:
            pool.kill(0)

    made: list[PoolInProcess] = []
    there, here = fit(name, transport=at_workers(2, strike, made)), fit(name)
    assert made[0].starts == [2, 1]
    assert np.array_equal(there.theta, here.theta)
    assert final(there) == final(here)
    assert made[0].asked <= 2 * here.trace[-1].exchanges + 2  # the open request, and what came after the save


def test_a_worker_that_dies_again_and_again_ends_the_run_with_a_sentence():
    def strike(pool, number):
        if number > 5:
            pool.kill(1)

    made: list[PoolInProcess] = []
    with pytest.raises(
        fedshed.ProtocolError, match=rf"worker 1, which hosts .* died {MOST_DEATHS} times .*it was killed"
    ):
        fit(transport=at_workers(2, strike, made))
    assert made[0].starts == [1, MOST_DEATHS]
    assert made[0]._workers == {}  # closed


def test_deaths_with_answers_in_between_do_not_add_up():
    def strike(pool, number):
        if number in (4, 9, 14, 19, 24):
            pool.kill(0)

    made: list[PoolInProcess] = []
    there = fit(transport=at_workers(2, strike, made))
    assert made[0].starts[0] > MOST_DEATHS
    assert np.array_equal(there.theta, fit().theta)


def sites_of(name="newton"):
    rows = FEDERATION.tables
    models = {i: Logistic(rows[i].X, np.where(rows[i].y == "yes", 1.0, -1.0)) for i in rows}
    return {i: Site(i, model, build(name)) for i, model in models.items()}


def requests(sites, count):
    """Requests without parts, one after the other: every site answers with nothing but their number."""
    codec = next(iter(sites.values())).codec
    common = (codec.encode_common(b"run", k, []) for k in range(1, count + 1))
    return [dict.fromkeys(sites, codec.encode_request(one, None)) for one in common]


def test_what_a_stalled_worker_says_comes_once_with_a_later_exchange():
    made: list[PoolInProcess] = []
    sites = sites_of()
    transport = at_workers(len(sites), made=made)(sites)
    payloads = requests(sites, 3)
    first, *rest = sorted(sites)
    made[0].stalled.add(0)
    assert [i for i, _ in transport.exchange(payloads[0])] == rest
    made[0].resume(0)
    late, *now = transport.exchange(payloads[1])
    assert late == (first, sites[first].handle(payloads[0][first]))
    assert now == list(InProcess(sites).exchange(payloads[1]))
    assert list(transport.exchange(payloads[2])) == list(InProcess(sites).exchange(payloads[2]))


def test_a_worker_that_dies_after_the_deadline_is_not_asked_the_old_request_again():
    made: list[PoolInProcess] = []
    sites = sites_of()
    transport = at_workers(len(sites), made=made)(sites)
    one, two = requests(sites, 2)
    made[0].stalled.add(0)
    list(transport.exchange(one))
    made[0].stalled.clear()
    for _, call, _ in made[0]._stalled_calls:
        made[0]._results[call] = None  # it died while it stalled
    assert list(transport.exchange(two)) == list(InProcess(sites).exchange(two))
    assert made[0].starts[0] == 2


def test_an_error_at_a_site_is_the_error_of_a_run_in_one_process():
    sites = sites_of()
    garbage = dict.fromkeys(sites, b"no request")
    with pytest.raises(fedshed.CodecError) as here:
        InProcess(sites).exchange(garbage)
    with pytest.raises(fedshed.CodecError) as there:
        list(at_workers(2)(sites).exchange(garbage))
    assert str(there.value) == str(here.value)


def test_workers_that_do_not_start_are_named():
    class Never(PoolInProcess):
        def first(self, calls, seconds):
            return None

    sites = sites_of()
    pool = Never([list(sites.values())])
    with pytest.raises(fedshed.ProtocolError, match=r"workers \[0\] did not start within 1 s"):
        WorkerSites([list(sites)], pool, deadline=1.0, start_within=1.0)
    assert pool._workers == {}


def test_without_ray_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(fedshed.ConfigError, match=r"running on Ray needs ray: pip install 'fedshed\[ray\]'"):
        fedshed.RaySites(workers=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 0}, "workers must be a whole number >= 1, not 0"),
        ({"workers": 1.5}, "workers must be a whole number >= 1, not 1.5"),
        ({"workers": "2"}, "workers must be a whole number >= 1, not '2'"),
        ({"workers": True}, "workers must be a whole number >= 1, not True"),
        ({"workers": {"north": None}}, r"transport takes RaySites\(\), with the parentheses"),
        ({"address": 6379}, "address must be text such as"),
        ({"deadline": 0}, "deadline must be a number of seconds above 0, not 0"),
        ({"deadline": float("nan")}, "deadline must be a number of seconds above 0"),
        ({"start_within": -1.0}, "start_within must be a number of seconds above 0"),
    ],
)
def test_workers_that_cannot_be_are_refused(options, said):
    with pytest.raises(fedshed.ConfigError, match=said):
        fedshed.RaySites(**options)


def test_fedshed_does_not_import_ray_before_it_is_needed():
    code = "import sys, fedshed; fedshed.RaySites; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_deployed_study_refuses_a_transport_of_ray():
    from fedshed.deployment.master import conduct_study

    transport = at_workers(2)(sites_of())
    transport.simulation = fedshed.RaySites.simulation
    with pytest.raises(fedshed.ConfigError, match=r"cannot use WorkerSites: Ray pickles .* simulations"):
        conduct_study(SimpleNamespace(sites=(), deadline=0.0), transport)


def test_a_deployed_node_refuses_a_process_that_is_part_of_a_ray_cluster(monkeypatch):
    from fedshed.deployment.node import Node

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(fedshed.ConfigError, match="this process is part of a Ray cluster"):
        Node(SimpleNamespace(name="a"))
