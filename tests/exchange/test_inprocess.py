"""All agents in one process: replies coded and read in batches give the run of single replies."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from conftest import CASES
from fedshed import Differences, EntropyCoded, Federation
from fedshed.algorithms import Newton, QnShed, Shed
from fedshed.exchange import InProcess, wire
from fedshed.exchange.inprocess import answer_in_batches
from fedshed.exchange.site import FAILED, Site
from fedshed.objectives import Logistic, Poisson, stacked
from fedshed.protocol import codec
from fedshed.protocol.codec import WRITTEN, codec_of, encode
from fedshed.protocol.links import FirstExchange
from fedshed.protocol.messages import Costs, Declined, Search, Share, Undefined, Update


class OneByOne:
    """A site that is no `Site`, so that it answers by itself."""

    def __init__(self, site):
        self.handle, self.forget = site.handle, site.forget


@pytest.fixture
def read_alone(monkeypatch):
    """A function that makes the Master read every reply alone from then on."""
    monkeypatch.setattr(wire, "token_bytes", lambda count: b"run!"[:count])  # so that bytes can be compared
    return lambda: monkeypatch.setattr(codec, "FEWEST", sys.maxsize)


def federation(loss="logistic", sites=8, rows=9, n=4, seed=0):
    """Sites of one shape, and one of another between them."""
    rng = np.random.default_rng(seed)
    tables, truth = {}, rng.normal(size=n)
    for i in range(sites):
        X = rng.normal(size=(rows + (i == 3), n))
        z = X @ truth + rng.logistic(size=len(X))
        tables[f"site {i}"] = X, z if loss == "least-squares" else z > 0
    return Federation.from_sites(tables)


def recorded(log, alone=False, tampering=None):
    """A transport that notes every byte, to sites whose replies are coded alone or in batches."""

    class Recorded(InProcess):
        def __init__(self, sites):
            super().__init__({i: OneByOne(site) for i, site in sites.items()} if alone else sites)
            self.late = []

        def exchange(self, payloads):
            replies = list(super().exchange(payloads))
            log.append((dict(payloads), replies))
            return replies if tampering is None else tampering(self, len(log), replies)

    return Recorded


def seen(result):
    """All that a run says, but for its seconds."""
    rows = [replace(row, seconds=0.0) for row in result.trace]
    return result.theta.tobytes(), result.reason, rows, result.sites, result.refusals, result.traffic


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_algorithm_gives_the_same_bytes_and_counts_in_batches(case, read_alone):
    name, loss = case
    options = {"algorithm": name, "loss": loss, "l2": 1e-2, "max_iterations": 4}
    streamed = fedshed.optimize(federation(loss), **options)
    batched, alone = [], []
    together = fedshed.optimize(federation(loss), **options, transport=recorded(batched))
    read_alone()
    apart = fedshed.optimize(federation(loss), **options, transport=recorded(alone, alone=True))
    assert batched == alone
    assert seen(streamed) == seen(together) == seen(apart)


def tampering_with(made, large):
    """Late, repeated, unreadable, lying, infinite and too large replies among honest ones."""

    def changed(data, **fields):
        reply = made.decode_reply(data)
        parts = [replace(p, **fields) if hasattr(p, "gradient") else p for p in reply.parts]
        return made.encode_reply(replace(reply, parts=parts))

    def tampered(transport, count, replies):
        came, transport.late = dict(replies), transport.late if count % 3 else []
        found = [*transport.late, ("ghost", b"boo")]
        transport.late = [(i, data) for i, data in replies if i == "site 1" and count % 3 == 1]
        n = 4
        lies = {
            ("site 0", 1): lambda data: made.encode_reply(replace(made.decode_reply(data), hessians=5000)),
            ("site 4", 1): lambda data: b"?",
            ("site 5", 0): lambda data: changed(data, loss=-1e6),
            ("site 6", 2): lambda data: changed(data, gradient=np.full(n, np.nan)),
            ("site 7", 2): lambda data: changed(data, gradient=np.full(n, large)),
        }
        for i, data in came.items():
            if any(i == name for name, _ in transport.late):
                continue
            lie = lies.get((i, count % 4))
            found += [(i, data if lie is None else lie(data))] * (2 if i == "site 2" else 1)
        return found

    return tampered


@pytest.mark.parametrize("name", ["newton", "newton-seldom", "lbfgs", "agd", "fib-shed", "qn-shed"])
@pytest.mark.parametrize("line_search", [None, fedshed.Fused()])
def test_faulty_and_lying_replies_are_refused_and_counted_as_if_read_alone(name, line_search, read_alone):
    options = {"algorithm": name, "l2": 1e-2, "max_iterations": 5}
    options |= {} if line_search is None or name == "agd" else {"line_search": line_search}
    found = []
    for _ in range(2):
        made = codec_of(fedshed.ALGORITHMS[name].algorithm, 4)
        large = 1e200 if line_search is None else 1e100  # a trial point may have numbers of any size
        transport = recorded([], tampering=tampering_with(made, large))
        found.append(fedshed.optimize(federation(), **options, transport=transport))
        read_alone()
    assert len(found[0].refusals) > 3
    assert seen(found[0]) == seen(found[1])


# --- caches ------------------------------------------------------------------------------------------------

CODED = {
    "qn-shed": {"algorithm": "qn-shed"},
    "lbfgs": {"algorithm": "lbfgs", "precision": Differences()},
    "fednl": {"algorithm": "fednl", "precision": EntropyCoded()},
    "fib-shed": {"algorithm": "fib-shed", "precision": fedshed.Bits(bits=6)},
    "newton": {"algorithm": "newton", "precision": EntropyCoded()},
}


class Recorded(InProcess):
    """Sites whose replies are coded in batches, and all that they sent."""

    def __init__(self, sites):
        super().__init__(sites)
        self.sent = []
        RECORDED.append(self)

    def exchange(self, payloads):
        self.sent.append(list(self.answer(payloads)))
        return self.sent[-1]

    def answer(self, payloads):
        return super().exchange(payloads)


class Single(Recorded):
    """The same, each reply coded alone."""

    def answer(self, payloads):
        return [(i, self.sites[i].handle(payload)) for i, payload in payloads.items()]


class Forgetful(Recorded):
    """Some sites lose their cache now and then."""

    def answer(self, payloads):
        if len(self.sent) % 3 == 2:
            for i in list(payloads)[:2]:
                self.sites[i].forget()
        return super().answer(payloads)


class ForgetfulSingle(Forgetful, Single):
    pass


RECORDED: list[Recorded] = []


@pytest.fixture(autouse=True)
def one_name_for_all_runs(monkeypatch):
    monkeypatch.setattr(wire, "token_bytes", bytes)
    RECORDED.clear()


def unequal_rows(unequal=False):
    rng = np.random.default_rng(0)
    truth, sites = rng.normal(size=9), {}
    for i in range(7):
        X = rng.normal(size=(30 + 4 * unequal * i, 9)) * np.geomspace(1, 0.1, 9)
        X[:, 8] = X[:, 7] if i == 3 else X[:, 8]
        sites[f"s{i}"] = X, X @ truth + rng.logistic(size=len(X)) > 0
    return Federation.from_sites(sites)


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("ways", [(Recorded, Single), (Forgetful, ForgetfulSingle)], ids=["", "forgetful"])
def test_bytes_and_caches_are_those_of_single_replies(name, ways, monkeypatch):
    sizes, code = [], codec.code_replies

    def counted(*args):
        coded, batches = code(*args)
        sizes.extend(len(batch.rows) for batch in batches)
        return coded, batches

    monkeypatch.setattr(codec, "code_replies", counted)
    rows = unequal_rows(unequal=name == "qn-shed")
    batched, single = (
        fedshed.optimize(rows, l2=1e-3, max_iterations=8, transport=way, **CODED[name]) for way in ways
    )
    assert max(sizes) == 7
    np.testing.assert_array_equal(batched.theta, single.theta)
    runs = [run for run in RECORDED if run.sent]
    half = len(runs) // 2
    assert half
    for one, other in zip(runs[:half], runs[half:], strict=True):
        assert one.sent == other.sent
        assert [s.save() for s in one.sites.values()] == [s.save() for s in other.sites.values()]


class SometimesUndefined(Shed, frozen=True):
    """One site does not answer once."""

    def respond(self, agent, cache, part, own_part):
        cache, answer = super().respond(agent, cache, part, own_part)
        return cache, Undefined() if agent.name == "s2" and part.t == 3 else answer


def test_answers_of_unlike_kinds_are_coded_in_batches_too():
    options = {"l2": 1e-3, "max_iterations": 5}
    options["algorithm"] = SometimesUndefined(precision=fedshed.Bits(bits=8), line_search=fedshed.Fused())
    batched, single = (
        fedshed.optimize(unequal_rows(), transport=way, **options) for way in (Recorded, Single)
    )
    one, other = (run for run in RECORDED if run.sent)
    assert any(b"Undefined" in data for sent in one.sent for _, data in sent)
    assert one.sent == other.sent
    np.testing.assert_array_equal(batched.theta, single.theta)


@pytest.mark.parametrize("name", ["qn-shed", "lbfgs", "fib-shed"])
def test_what_the_master_knows_by_its_bytes_is_what_it_decodes(name, monkeypatch):
    """Where nothing that was written is known, a run is the same."""
    known = fedshed.optimize(unequal_rows(), l2=1e-3, max_iterations=8, **CODED[name])
    monkeypatch.setattr(WRITTEN, "put", lambda key, value, size: None)
    decoded = fedshed.optimize(unequal_rows(), l2=1e-3, max_iterations=8, **CODED[name])
    assert known.theta.tobytes() == decoded.theta.tobytes()
    assert known.traffic == decoded.traffic


# --- sites that are asked directly -------------------------------------------------------------------------


def some_models(kind=Logistic, count=6, rows=5, n=3):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(count, rows, n)) * np.arange(1, count + 1)[:, None, None]
    y = np.where(rng.random((count, rows)) > 0.5, 1.0, -1.0 if kind is Logistic else 0.0)
    return stacked({f"{i:02}": kind(X[i], y[i]) for i in range(count)})


def sites_for(algorithm, models):
    made = codec_of(algorithm, next(iter(models.values())).dim)
    return {i: Site(i, model, algorithm, made) for i, model in models.items()}


def ask_sites(sites, *parts, read_here=False):
    made = next(iter(sites.values())).codec
    payload = made.encode_request(made.encode_common(b"run!", 3, parts), None)
    batches = answer_in_batches(sites, dict.fromkeys(sites, payload), read_here)
    return payload, [reply for _, replies in batches for reply in replies]


@pytest.mark.parametrize("algorithm", [QnShed(), Newton()])
@pytest.mark.parametrize("size", [1.0, 300.0, 1e5])
def test_a_site_whose_numbers_overflow_says_so_as_it_does_alone(algorithm, size):
    """At a trial point it is undefined there, elsewhere it declines; its neighbours answer."""
    direction = np.array([size, 0.0, 0.0])
    search = Search(np.zeros(3), direction, np.array([1.0, 0.5]), slopes=True)
    first = [FirstExchange(direction, -0.1)] if isinstance(algorithm, QnShed) else [Update(1, direction)]
    asks = [first] if isinstance(algorithm, QnShed) else [first, [search, Update(1, None)]]
    for parts in ([], *asks):
        sites, others = (sites_for(algorithm, some_models(Poisson)) for _ in range(2))
        payload, replies = ask_sites(sites, *parts)
        assert replies == [others[i].handle(payload) for i in others]
        assert [encode(s.cache) for s in sites.values()] == [encode(s.cache) for s in others.values()]


def test_the_order_in_which_sites_are_asked_changes_no_answer():
    algorithm, models = Newton(), some_models()
    sites = sites_for(algorithm, models)
    made, transport = sites["00"].codec, InProcess(sites)
    payload = made.encode_request(made.encode_common(b"run!", 3, [Update(1, np.ones(3))]), None)
    alone = {i: site.handle(payload) for i, site in sites_for(algorithm, models).items()}
    for names in (list(models), ["04", "01", "03"], ["02"], list(models)[::-1]):
        assert transport.exchange(dict.fromkeys(names, payload)) == [(i, alone[i]) for i in names]


def test_the_first_exchange_does_not_copy_all_tables():
    """Tables that are too large for a stack: their scaled copies are not in memory at the same time."""
    sites = sites_for(QnShed(), some_models(count=12, rows=1000, n=200))
    tracemalloc.start()
    ask_sites(sites, FirstExchange(None, -0.1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 1000 * 200 * 8


def test_replies_that_are_read_elsewhere_are_not_remembered():
    sites = sites_for(QnShed(), some_models())
    before = WRITTEN.nbytes
    ask_sites(sites, FirstExchange(None, -0.1))
    assert WRITTEN.nbytes == before
    _, replies = ask_sites(sites, FirstExchange(None, -0.1), read_here=True)
    assert WRITTEN.nbytes > before
    assert sites["00"].codec.decode_replies(replies, [])
    assert WRITTEN.nbytes == before


class RefusesLargeLosses(Newton, frozen=True):
    """A user's algorithm that refuses some answers by what they say."""

    def refusal(self, problem, part, own_part, answer):
        return "its loss is odd" if answer.loss > 0.6 else None


def test_an_algorithm_that_looks_at_numbers_refuses_them_one_by_one():
    options = {"l2": 1e-2, "max_iterations": 1, "patience": 2}
    with pytest.raises(fedshed.ProtocolError, match="its loss is odd"):
        fedshed.optimize(federation(rows=10), algorithm=RefusesLargeLosses(), **options)


@pytest.mark.parametrize("name", fedshed.ALGORITHMS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_in_respond_ends_the_run_with_its_own_error(name, workers, monkeypatch):
    """Of every registered algorithm, and with its traceback."""

    def respond(self, agent, cache, part, own_part):
        return len(0)  # a TypeError

    monkeypatch.setattr(type(fedshed.ALGORITHMS[name].algorithm), "respond", respond)
    losses = fedshed.ALGORITHMS[name].algorithm.losses or ("logistic",)
    options = {"algorithm": name, "loss": losses[0], "l2": 1e-2}
    with pytest.raises(TypeError, match="has no len") as raised:
        fedshed.optimize(federation(losses[0]), **options, transport=lambda sites: InProcess(sites, workers))
    assert raised.traceback[-1].name == "respond"


# --- requests that no Master of ours sends ------------------------------------------------------------------


@pytest.mark.parametrize("name", fedshed.ALGORITHMS)
def test_a_request_of_another_kind_is_a_protocol_error_that_names_it(name):
    algorithm = fedshed.ALGORITHMS[name].algorithm
    (site,) = sites_for(algorithm, some_models(count=1)).values()
    payload = site.codec.encode_request(site.codec.encode_common(b"run!", 3, [Costs(np.ones(2))]), None)
    with pytest.raises(fedshed.ProtocolError, match="does not expect"):
        site.handle(payload)


@pytest.mark.parametrize("have", [3, 1000])
def test_a_master_that_says_it_has_more_eigenpairs_than_there_are_is_declined(have):
    (site,) = sites_for(Shed(), some_models(count=1)).values()
    common = site.codec.encode_common(b"run!", 3, [Update(3, np.zeros(3))])
    reply = site.codec.decode_reply(
        site.handle(site.codec.encode_request(common, Share(3, have, True, None)))
    )
    assert isinstance(reply.parts[0], Declined)
    assert "cannot have been sent" in reply.parts[0].why


def test_an_update_without_a_link_is_refused_by_an_algorithm_over_links():
    (site,) = sites_for(QnShed(), some_models(count=1)).values()
    common = site.codec.encode_common(b"run!", 3, [Update(3, np.zeros(3))])
    with pytest.raises(fedshed.ProtocolError, match="without its point and units"):
        site.handle(site.codec.encode_request(common, Share(3, 0, True, None)))


def test_a_site_behind_a_process_logs_its_mistake_and_says_one_constant_sentence(caplog, monkeypatch):
    def respond(self, agent, cache, part, own_part):
        raise TypeError("a row of the table: 42")

    monkeypatch.setattr(Newton, "respond", respond)
    (site,) = sites_for(Newton(), some_models(count=1)).values()
    payload = site.codec.encode_request(site.codec.encode_common(b"run!", 3, [Update(1, np.zeros(3))]), None)
    (declined,) = site.codec.decode_reply(site.answer(payload)).parts
    assert "42" not in declined.why
    assert declined.why == FAILED
    assert "a row of the table: 42" in caplog.text


def test_no_table_outlives_its_run():
    models = some_models(count=8, rows=40, n=5)
    held = [weakref.ref(model) for model in models.values()]
    sites = sites_for(Shed(), models)
    made = next(iter(sites.values())).codec
    common = made.encode_common(b"run!", 3, [Update(3, np.zeros(5))])
    request = made.encode_request(common, Share(3, 0, True, None))
    InProcess(sites).exchange(dict.fromkeys(sites, request))
    del models, sites
    gc.collect()
    assert not any(one() for one in held)
