"""Answers that are not believed: refused by name, the round goes on without them, and the run says so."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from conftest import CASES, POOLED, federation_for, make_federation
from fedshed import Fused
from fedshed.algorithms import build
from fedshed.algorithms.base import SiteModel
from fedshed.exchange import InProcess
from fedshed.exchange.convexity import cancellation_scale, contradictions
from fedshed.objectives import local_objectives
from fedshed.protocol.codec import codec_of, encode
from fedshed.protocol.messages import Costs, Declined, Eigenpairs, Local, Message, Search, Undefined, Update

L2 = 1e-3


def forging(name, forge, exchanges, site="middle"):
    """A transport on which one site's reply is forged in these exchanges: forge(reply) -> reply or bytes."""

    class Forges(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            codec = codec_of(build(name), 6)
            for i, data in super().exchange(payloads):
                if i == site and self.count in exchanges:
                    forged = forge(codec.decode_reply(data))
                    data = forged if isinstance(forged, bytes) else codec.encode_reply(forged)
                yield i, data

    return Forges


def each_part(change):
    """A forgery of every part of a reply."""
    return lambda reply: replace(reply, parts=[change(part) for part in reply.parts])


def with_fields(message, **fields):
    """A message with other fields, as a site would encode it: unchecked."""
    values = [fields.get(name, getattr(message, name)) for name in message.__struct_fields__]
    return [type(message).__name__, *values]


def raw(change):
    """A reply whose parts are encoded without any check."""
    return lambda r: encode([r.run, r.number, r.hessians, [change(part) for part in r.parts]])


def pairs_with(**changes):
    """Local answers whose eigenpairs say something else."""

    def change(part):
        if not isinstance(part, Local) or part.pairs is None:
            return part
        fields = {name: getattr(part.pairs, name) for name in Eigenpairs.__struct_fields__}
        fields |= {name: value(fields[name]) for name, value in changes.items()}
        return Local(part.loss, part.gradient, Eigenpairs(**fields))

    return each_part(change)


def steep(part):
    """A gradient whose square overflows."""
    return replace(part, gradient=1e300 * part.gradient) if isinstance(part, Local) else part


FORGERIES = {
    "nan-gradient": raw(lambda p: with_fields(p, gradient=np.full(6, np.nan), values=np.full(8, np.nan))),
    "nan-loss": raw(lambda p: with_fields(p, loss=np.nan, values=np.array([np.nan] * 8))),
    "wrong-shape": raw(lambda p: with_fields(p, gradient=np.zeros(5), values=np.zeros(3))),
    "wrong-k": pairs_with(k=lambda k: k + 1),
    "a-hole": pairs_with(start=lambda start: start + 1),
    "no-parts": lambda reply: replace(reply, parts=[]),
    "undefined-where-it-may-not-be": each_part(lambda part: Undefined()),
    "costs-for-an-update": each_part(lambda part: Costs(np.zeros(8))),
    "declined": lambda reply: replace(reply, parts=[Declined("not today")]),
    "noise": lambda reply: b"noise",
    "nothing": lambda reply: b"",
    "more-hessians-than-can-be": lambda reply: replace(reply, hessians=2**63 - 1),
    "fewer-hessians-than-none": lambda reply: replace(reply, hessians=-5),
    "huge-gradient": each_part(steep),
    "huge-eigenvectors": pairs_with(vectors=lambda V: 1e200 * V),
    "huge-eigenvalues": pairs_with(values=lambda v: 1e300 * v),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("exchanges", [{1}, {3}, {1, 2, 3}], ids=str)
def test_a_forged_answer_is_refused_by_name_and_the_run_converges(forgery, exchanges):
    federation = make_federation("logistic")
    disturbed = forging("fib-shed", forgery, exchanges)
    result = fedshed.optimize(federation, algorithm="fib-shed", l2=L2, transport=disturbed, tol=1e-10)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, fedshed.optimum(federation, l2=L2)[0], atol=1e-8)
    assert {refusal.site for refusal in result.refusals} == {"middle"}
    assert {refusal.exchange for refusal in result.refusals} <= exchanges
    assert result.sites["middle"].refused == len(result.refusals)


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_site_that_only_forges_ends_the_run_which_keeps_its_result(forgery):
    federation = make_federation("logistic")
    disturbed = forging("fib-shed", forgery, range(7, 10_000))
    result = fedshed.optimize(federation, algorithm="fib-shed", l2=L2, transport=disturbed, patience=4)
    assert not result.converged
    assert "'middle'" in result.reason
    assert "could not be used" in result.reason
    assert np.isfinite(result.theta).all()
    assert result.trace[-1].f < result.trace[0].f
    assert result.certificate.bound is None  # a bound needs the gradient of every site


def test_what_a_site_says_it_computed_cannot_spoil_the_count_nor_the_checkpoint(tmp_path):
    """2^63 - 1 Hessians, again and again, would be more than a checkpoint can hold."""
    federation, path = make_federation("logistic"), tmp_path / "checkpoint"
    disturbed = forging("fib-shed", FORGERIES["more-hessians-than-can-be"], range(1, 6))
    result = fedshed.optimize(federation, algorithm="fib-shed", l2=L2, transport=disturbed, checkpoint=path)
    assert result.converged
    assert result.trace[-1].hessians <= result.trace[-1].exchanges


@pytest.mark.parametrize("noise", [0.0, 1e-13, 1e-9])
@pytest.mark.parametrize("away", [1e-13, 1e-11, 1e-9])
def test_a_start_near_an_almost_exact_fit_is_no_lie(noise, away):
    """Costs are then far smaller than the squares that cancel in them."""
    rng = np.random.default_rng(0)
    truth, tables = rng.normal(size=5), {}
    for site in "abc":
        X = 100 * rng.normal(size=(50, 5)) + 50
        tables[site] = X, X @ truth + 100 * noise * rng.normal(size=50)
    federation = fedshed.Federation.from_sites(tables)
    theta0 = truth * (1 + away * rng.normal(size=5))
    for name in ("fib-shed", "newton", "lbfgs", "qn-shed"):
        result = fedshed.optimize(
            federation, algorithm=name, loss="least-squares", l2=1e-9, tol=1e-12, theta0=theta0
        )
        assert not result.refusals
        np.testing.assert_allclose(result.theta, truth, atol=1e-7)


@pytest.mark.parametrize("f", [0.0, -1.0, 5e-324, 1.0])
@pytest.mark.parametrize("size", [0.0, 1e-200, 1e100, 1e300])
def test_what_cancels_is_a_number_whatever_a_site_says(f, size):
    with np.errstate(over="ignore"):  # as the wire has it
        assert 0 <= cancellation_scale(SiteModel(np.full(3, size), f, np.full(3, size), None)) < np.inf


def test_a_late_reply_of_another_run_is_no_forgery():
    """As one of an earlier part of a study is, whose messages this one does not know."""
    late = encode([b"else", 1, 0, [["Schema", 3]]])
    disturbed = forging("fib-shed", lambda reply: late, {2})
    result = fedshed.optimize(make_federation("logistic"), algorithm="fib-shed", l2=L2, transport=disturbed)
    assert result.converged
    assert not result.refusals


def test_a_sites_words_cannot_command_a_terminal():
    declined = forging(
        "fib-shed", lambda r: replace(r, parts=[Declined("\x1b]0;mine\x07\r\nconverged")]), {1}
    )
    result = fedshed.optimize(make_federation("logistic"), algorithm="fib-shed", l2=L2, transport=declined)
    (refusal,) = result.refusals
    assert refusal.why.isprintable()
    assert "mine" in refusal.why


def contradictory(known, part, answer, scale=0.0):
    """Whether one site's answer to one part is found to contradict what it said before."""
    return "a" in contradictions({"a": known}, [part], {"a": [answer]}, {"a": scale}, lossy=False)


@pytest.mark.parametrize("size", [1.0, 1e120, 1e160, 1e250])
def test_a_lie_is_found_and_the_truth_believed_at_any_size(size):
    """f(x) = size (x^2 + x) / 2 of one variable, as it is and with its tangent turned round."""
    f, slope = (lambda x: size * (x * x + x) / 2), (lambda x: size * (2 * x + 1) / 2)
    etas = np.array([0.25, 0.5, 1.0])
    for a, b in ((0.0, 1.0), (3.0, -2.0), (1e-6, 2e-6)):
        search = Search(np.array([a]), np.array([b - a]), etas)
        costs = Costs(np.array([f(a + eta * (b - a)) for eta in etas]))
        for sign in (1.0, -7.0):
            known = SiteModel(np.array([a]), f(a), sign * np.array([slope(a)]), None)
            lie = sign * slope(a) * (b - a) > f(b) - f(a)  # a tangent that lies above the cost
            with np.errstate(over="ignore"):  # as the wire has it
                found = contradictory(known, search, costs)
                unknown = Update(1, np.array([b]), accuracy=-1.0)  # nothing is known of this gradient
                said = contradictory(known, unknown, Local(f(b), np.zeros(1), None))
            assert [found, said] == [lie, lie]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_algorithm_refuses_answers_of_another_kind(case):
    """Whatever of an algorithm's own messages a site sends instead of the right one: refused or used."""
    name, loss = case
    federation = federation_for(case)
    n = federation.dim
    algorithm = build(name)
    codec = codec_of(algorithm, n)
    seen: dict[type[Message], Message] = {}

    class Swaps(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            for i, data in super().exchange(payloads):
                reply = codec.decode_reply(data)
                seen.update({type(part): part for part in reply.parts})
                if i == "middle" and 2 <= self.count <= 9:
                    kinds = [kind for kind in seen.values() if type(kind) is not type(reply.parts[0])]
                    if kinds:
                        reply = replace(reply, parts=[kinds[self.count % len(kinds)], *reply.parts[1:]])
                        data = codec.encode_reply(reply)
                yield i, data

    result = fedshed.optimize(
        federation, algorithm=name, loss=loss, l2=1e-2, transport=Swaps, max_iterations=3000, tol=1e-8
    )
    if len(seen) > 1:
        assert result.refusals
    assert result.converged or (case not in POOLED and "no longer moves" in result.reason), result.reason


# --- a gradient that contradicts its losses ---------------------------------------------------------------


def grown(part):
    """A gradient twenty times as steep as the costs allow."""
    return replace(part, gradient=20 * part.gradient) if hasattr(part, "gradient") else part


def flattered(part):
    """Costs lower than any tangent."""
    if isinstance(part, Costs):
        return replace(part, values=part.values - 10)
    return replace(part, loss=part.loss - 10) if hasattr(part, "loss") else part


@pytest.mark.parametrize("line_search", [None, Fused()])
@pytest.mark.parametrize(
    ("algorithm", "lie"),
    [("fib-shed", grown), ("newton", grown), ("giant", grown), ("fib-shed", flattered), ("lbfgs", flattered)],
)
def test_a_gradient_that_contradicts_the_losses_is_refused_by_name(algorithm, lie, line_search):
    """f(b) >= f(a) + g(a)'(b - a) for a convex f: who begins to lie contradicts himself."""
    federation = federation_for((algorithm, "logistic"))
    codec = codec_of(build(algorithm, line_search=line_search), federation.dim)

    class Lies(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            for i, data in super().exchange(payloads):
                reply = codec.decode_reply(data)
                if i == "large" and self.count > 1:
                    reply = replace(reply, parts=[lie(part) for part in reply.parts])
                yield i, codec.encode_reply(reply)

    result = fedshed.optimize(
        federation, algorithm=algorithm, l2=L2, transport=Lies, line_search=line_search, patience=5
    )
    assert not result.converged
    assert "'large'" in result.reason
    assert "contradict" in result.reason


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e3, 1e8])
@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
def test_rounding_is_never_taken_for_a_contradiction(loss, scale):
    """Columns and targets in very different units, far starts, down to the last digit: nothing is refused."""
    base = make_federation("least-squares")
    units = scale ** np.linspace(-1, 1, 6)
    tables = {
        site: (table.X * units, table.y * scale if loss == "least-squares" else table.y > 0)
        for site, table in base.tables.items()
    }
    federation = fedshed.Federation.from_sites(tables)
    for name in ("fib-shed", "newton", "qn-shed", "lbfgs"):
        start = np.random.default_rng(1).normal(size=6) / units
        result = fedshed.optimize(
            federation,
            loss=loss,
            algorithm=name,
            l2=1e-6 * units**2,
            theta0=start,
            tol=0.0,
            max_iterations=60,
        )
        assert result.refusals == ()


def test_what_a_site_says_of_honest_rows_is_never_a_contradiction():
    """Any two answers of one convex cost agree, wherever they are taken; of two costs they need not."""
    objectives = local_objectives(make_federation("logistic"), "logistic")
    rng = np.random.default_rng(0)
    caught = 0
    for _ in range(200):
        a, b = rng.normal(size=(2, 6)) * 10 ** rng.uniform(-6, 2)
        p, q, other = (objectives["large"].at(a), objectives["large"].at(b), objectives["small"].at(b))
        known, here = SiteModel(a, p.value, p.gradient, None), Update(1, b)
        assert not contradictory(known, here, Local(q.value, q.gradient, None), scale=1.0)
        caught += contradictory(known, here, Local(other.value, other.gradient, None), scale=1.0)
    assert caught > 50


@pytest.mark.parametrize("points", [1, 3])
def test_of_many_sites_looked_at_together_exactly_the_liars_are_named(points):
    """Whatever the others say, and wherever each was heard last; one never heard before cannot contradict."""
    objectives = local_objectives(make_federation("logistic"), "logistic")
    model, rng = objectives["large"], np.random.default_rng(1)
    before, b, direction = rng.normal(size=(points, 6)), rng.normal(size=6), rng.normal(size=6)
    etas, here = 0.5 ** np.arange(4), model.at(b)
    costs, local = Costs(model.along(b, direction, etas)), Local(here.value, here.gradient, None)
    low = Costs(costs.values - np.array([0.0, 100.0, 0.0, 0.0]))
    steep = Local(here.value, here.gradient + 100 * (before[0] - b), None)
    said = {f"s{i}": [costs, local] for i in range(9)}
    said |= {"s2": [low, local], "s3": [costs, steep], "s4": [Costs(costs.values), Undefined()]}
    at = [(w, model.at(w)) for w in before]
    known = {}
    for i in range(8):
        w, point = at[i % points]
        known[f"s{i}"] = SiteModel(w, point.value, point.gradient, None)
    parts = [Search(b, direction, etas), Update(2, b)]
    found = contradictions(known, parts, said, dict.fromkeys(said, 1.0), lossy=False)
    assert set(found) == {"s2", "s3"}
    assert contradictions(known, parts, said, dict.fromkeys(said, 1.0), lossy=True).keys() == {"s3"}


@pytest.mark.parametrize("honest_first", [True, False])
def test_of_two_answers_the_credible_one_counts(honest_first):
    """A reply that came twice, once altered on its way, does not cost a site its turn."""
    algorithm = build("fib-shed")
    codec = codec_of(algorithm, 6)

    class Twice(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            for i, data in super().exchange(payloads):
                reply = codec.decode_reply(data)
                part = reply.parts[0]
                altered = []
                if i == "middle" and self.count > 2 and isinstance(part, Local):
                    low = replace(part, loss=part.loss - 1e3)
                    altered = [(i, codec.encode_reply(replace(reply, parts=[low])))]
                yield from ([(i, data), *altered] if honest_first else [*altered, (i, data)])

    result = fedshed.optimize(make_federation("logistic"), algorithm=algorithm, l2=L2, transport=Twice)
    plain = fedshed.optimize(make_federation("logistic"), algorithm=algorithm, l2=L2)
    assert result.converged
    assert np.array_equal(result.theta, plain.theta)
    assert bool(result.refusals) is not honest_first
