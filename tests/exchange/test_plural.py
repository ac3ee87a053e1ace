"""Many sites in the plural: the same bytes, theta, counts and refusals as one site after the other."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.sparse import csr_array

import fedshed
from conftest import CASES
from fedshed import Federation
from fedshed.algorithms.gradients import LocalScale
from fedshed.algorithms.newton import Newton
from fedshed.exchange import InProcess, wire
from fedshed.exchange.plural import answer_all
from fedshed.exchange.site import Site
from fedshed.linalg.arrays import pack
from fedshed.linalg.rows import diagonal, gram
from fedshed.objectives import Logistic, Poisson, stacked
from fedshed.objectives.plural import at_together
from fedshed.protocol import codec
from fedshed.protocol.codec import Codec, Reply, codec_of, encode
from fedshed.protocol.columns import columns_of
from fedshed.protocol.conversation import Agent
from fedshed.protocol.messages import Costs, Eigenpairs, Local, LocalHessian, Search, Undefined, Update
from fedshed.protocol.precision import Bits

N = 3
MESSAGES = (Search, Costs, Undefined, Update, Local, LocalHessian, LocalScale)
CODEC = Codec(MESSAGES, N)
FUZZ = settings(deadline=None, max_examples=30)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)


def arrays(size, values=numbers):
    return st.lists(values, min_size=size, max_size=size).map(lambda v: np.array(v, dtype=float))


def falling(values, vectors):
    """Two eigenpairs, and what follows them."""
    *values, rho = sorted(map(abs, values), reverse=True)
    return Eigenpairs(3, 0, np.array(values), np.reshape(vectors, (2, N)), float(rho), False)


eigenpairs = st.builds(falling, arrays(3), arrays(2 * N))


def answers_of_one_shape(count):
    """Answers of as many agents: all of one kind, with arrays of one length."""
    each = lambda *fields: st.lists(st.builds(*fields), min_size=count, max_size=count)  # noqa: E731
    costs = arrays(2, numbers | st.just(np.inf))
    return st.one_of(
        each(Local, numbers, arrays(N), st.none()),
        each(LocalHessian, numbers, arrays(N), arrays(6)),
        each(LocalScale, numbers, arrays(N), arrays(N)),
        each(Local, numbers, arrays(N), eigenpairs),
        each(Costs, costs, st.none()),
        each(Costs, costs, costs),
        each(Costs, arrays(0), arrays(0)),
        each(Undefined),
    )


several = st.integers(4, 7).flatmap(
    lambda count: st.lists(answers_of_one_shape(count), min_size=1, max_size=2).map(
        lambda parts: [list(each) for each in zip(*parts, strict=True)]
    )
)


@given(several, st.integers(0, 2**40), st.integers(0, 300))
@FUZZ
def test_replies_written_together_are_those_written_alone_to_the_byte(replies, number, hessians):
    alone = [CODEC.encode_reply(Reply(b"run!", number, hessians, parts)) for parts in replies]
    columns = [columns_of(part) for part in zip(*replies, strict=True)]
    assert CODEC.encode_replies(b"run!", number, hessians, columns)[0] == alone


def test_rounded_replies_written_together_are_those_written_alone():
    made, rng = Codec(MESSAGES, N, Bits(4)), np.random.default_rng(0)
    answers = [LocalHessian(1.0, rng.normal(size=N), rng.normal(size=6)) for _ in range(5)]
    alone = [made.encode_reply(Reply(b"run!", 3, 1, [answer]), 1e-3) for answer in answers]
    together, seen = made.encode_replies(b"run!", 3, 1, [columns_of(answers)], 1e-3)
    assert together == alone
    for data, *parts in zip(alone, *(part.messages() for part in seen), strict=True):
        assert encode(parts) == encode(made.decode_reply(data).parts)


@given(several, st.data())
@FUZZ
def test_replies_read_together_are_those_read_alone_or_left_to_be_read_alone(replies, data):
    """Whatever is changed: what is read by columns is what the plain decoder reads."""
    sent = [CODEC.encode_reply(Reply(b"run!", 7, 1, parts)) for parts in replies]
    for _ in range(data.draw(st.integers(0, 3))):
        k = data.draw(st.integers(0, len(sent) - 1))
        at, byte = data.draw(st.integers(0, len(sent[k]) - 1)), data.draw(st.integers(0, 255))
        sent[k] = sent[k][:at] + bytes([byte]) + sent[k][at + data.draw(st.integers(0, 1)) :]
    for group in CODEC.decode_replies(sent, []):
        for row, *parts in zip(group.rows, *(part.messages() for part in group.parts), strict=True):
            plain = CODEC.decode_reply(sent[row])
            head = group.first.run, group.first.number, group.first.hessians
            assert head == (plain.run, plain.number, plain.hessians)
            assert CODEC.encode_reply(Reply(*head, parts)) == CODEC.encode_reply(plain)


def test_one_strange_reply_costs_only_itself():
    """Whichever of them it is: the others are read together."""
    rng = np.random.default_rng(0)
    for strange in (0, 3, 9):
        sent = [
            CODEC.encode_reply(Reply(b"run!", 7, 1, [Local(1.0, g, None)])) for g in rng.normal(size=(10, N))
        ]
        sent[strange] = b"?"
        groups = CODEC.decode_replies(sent, [])
        assert sorted(row for group in groups for row in group.rows) == [k for k in range(10) if k != strange]


def test_replies_none_of_which_has_the_length_of_a_form_known_before():
    """Sites that have sent all their pairs answer in another length than those before them."""
    rng, forms = np.random.default_rng(0), []
    for part in (Local(1.0, rng.normal(size=N), None), LocalHessian(1.0, rng.normal(size=N), np.ones(6))):
        sent = [CODEC.encode_reply(Reply(b"run!", 7, 1, [part]))] * 5
        (group,) = CODEC.decode_replies(sent, forms)
        assert group.rows == list(range(5 - len(group.rows), 5))
        assert len(group.rows) >= 4  # one may be left to be read alone


@pytest.mark.parametrize("sparse", [False, True])
@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 5), st.booleans())
@settings(deadline=None, max_examples=30)
def test_hessians_and_diagonals_together_are_those_of_each_to_the_bit(sparse, rows, n, seed, weighted):
    rng = np.random.default_rng(seed)
    models = {}
    for i in range(5):
        X = rng.normal(size=(rows, n)) * (rng.random((rows, n)) < 0.8)
        y, w = np.sign(rng.normal(size=rows)), rng.random(rows) + 0.1
        models[str(i)] = Logistic(csr_array(X) if sparse else X, y, w if weighted else None)
    theta = rng.normal(size=n)
    chosen = [str(i) for i in (0, 1, 2, 4)] if seed % 2 else list(models)
    together = stacked(models)
    points = at_together([Agent(i, together[i]) for i in chosen], theta)
    if points is None:  # a table without entries is in no stack
        assert rows * n == 0 or not all(together[i].slot for i in chosen)
        return
    for k, i in enumerate(chosen):
        alone = models[i].at(theta)
        assert points.values[k] == alone.value
        assert points.gradients[k].tobytes() == alone.gradient.tobytes()
        assert points.hessians[k].tobytes() == pack(gram(alone.factor)).tobytes()
        assert points.diagonals[k].tobytes() == diagonal(alone.factor).tobytes()


# --- whole runs ------------------------------------------------------------------------------------------


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
    """A transport that notes every byte, to sites that answer alone or in the plural."""

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
def test_every_algorithm_gives_the_same_bytes_and_counts_in_the_plural(case, read_alone):
    name, loss = case
    options = {"algorithm": name, "loss": loss, "l2": 1e-2, "max_iterations": 4}
    streamed = fedshed.optimize(federation(loss), **options)
    plural, alone = [], []
    together = fedshed.optimize(federation(loss), **options, transport=recorded(plural))
    read_alone()
    apart = fedshed.optimize(federation(loss), **options, transport=recorded(alone, alone=True))
    assert plural == alone
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


@pytest.mark.parametrize("name", ["newton", "newton-seldom", "lbfgs"])
def test_sites_of_one_shape_are_never_asked_alone(name, monkeypatch):
    monkeypatch.setattr(Site, "handle", None)
    monkeypatch.setattr(Site, "replied", None)
    rng = np.random.default_rng(0)
    tables = {str(i): (rng.normal(size=(8, 3)), np.arange(8) % 2) for i in range(6)}
    assert fedshed.optimize(Federation.from_sites(tables), algorithm=name, l2=1e-2).converged


# --- what cannot be answered together -----------------------------------------------------------------------


class Halved(Newton, frozen=True):
    """A stranger's algorithm: it changed the answer of one site, and knows nothing of the plural."""

    def respond(self, agent, cache, part, own_part):
        cache, local = super().respond(agent, cache, part, own_part)
        return cache, replace(local, loss=local.loss / 2)


class Choosy(Newton, frozen=True):
    """A stranger's algorithm that refuses some answers by what they say."""

    def refusal(self, problem, part, own_part, answer):
        return "its loss is odd" if answer.loss > 0.6 else None


def sites_for(algorithm, models):
    made = codec_of(algorithm, next(iter(models.values())).dim)
    return {i: Site(i, model, algorithm, made) for i, model in models.items()}


def some_models(kind=Logistic, count=6):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(count, 5, 3)) * np.arange(1, count + 1)[:, None, None]
    y = np.where(rng.random((count, 5)) > 0.5, 1.0, -1.0 if kind is Logistic else 0.0)
    return stacked({str(i): kind(X[i], y[i]) for i in range(count)})


def asked(algorithm, models, *parts):
    """The replies of sites in the plural, and of the same sites alone."""
    sites, others = sites_for(algorithm, models), sites_for(algorithm, models)
    made = sites["0"].codec
    payload = made.encode_request(made.encode_common(b"run!", 3, parts), None)
    together = answer_all(sites, dict.fromkeys(sites, payload))
    return together, [(i, others[i].handle(payload)) for i in others], made


def test_an_algorithm_that_replaced_its_answers_is_asked_itself():
    together, alone, made = asked(Halved(), some_models(), Update(1, np.zeros(3)))
    assert together == alone
    assert made.decode_reply(together[0][1]).parts[0].loss == pytest.approx(np.log(2) / 2)


def test_an_algorithm_that_looks_at_numbers_refuses_them_one_by_one():
    options = {"l2": 1e-2, "max_iterations": 1, "patience": 2}
    with pytest.raises(fedshed.ProtocolError, match="its loss is odd"):
        fedshed.optimize(federation(rows=10), algorithm=Choosy(), **options)


@pytest.mark.parametrize("size", [1.0, 300.0, 1e5])
def test_a_site_whose_numbers_overflow_says_so_as_it_does_alone(size):
    """At a trial point it is undefined there, elsewhere it declines; its neighbours answer."""
    models = some_models(Poisson)
    theta, direction = np.zeros(3), np.array([size, 0.0, 0.0])
    search = Search(theta, direction, np.array([1.0, 0.5]), slopes=True)
    together, alone, _ = asked(Newton(), models, search, Update(1, None))
    assert together == alone
    together, alone, _ = asked(Newton(), models, Update(1, direction))
    assert together == alone


def test_rows_that_change_the_order_of_sites_change_no_answer():
    """The sites are found again where another set of them, or another order, is asked."""
    algorithm, models = Newton(), some_models()
    sites = sites_for(algorithm, models)
    made, transport = sites["0"].codec, InProcess(sites)
    payload = made.encode_request(made.encode_common(b"run!", 3, [Update(1, np.ones(3))]), None)
    alone = {i: site.handle(payload) for i, site in sites_for(algorithm, models).items()}
    for names in (list(models), ["4", "1", "3"], ["2"], list(models)[::-1]):
        assert transport.exchange(dict.fromkeys(names, payload)) == [(i, alone[i]) for i in names]
