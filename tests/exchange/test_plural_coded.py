"""Sites of one process whose replies are coded together send, and remember, what each does by itself."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from fedshed import Differences, EntropyCoded, Federation
from fedshed.algorithms import Shed
from fedshed.exchange import InProcess, wire
from fedshed.protocol.codec import Codec
from fedshed.protocol.messages import Undefined

ALGORITHMS = {
    "qn-shed": {"algorithm": "qn-shed"},
    "lbfgs": {"algorithm": "lbfgs", "precision": Differences()},
    "fednl": {"algorithm": "fednl", "precision": EntropyCoded()},
    "fib-shed": {"algorithm": "fib-shed", "precision": fedshed.Bits(bits=6)},
    "newton": {"algorithm": "newton", "precision": EntropyCoded()},
}


class Recorded(InProcess):
    """Sites that answer together, and all that they sent."""

    def __init__(self, sites):
        super().__init__(sites)
        self.sent = []
        RECORDED.append(self)

    def exchange(self, payloads):
        self.sent.append(list(self.answered(payloads)))
        return self.sent[-1]

    def answered(self, payloads):
        return super().exchange(payloads)


class OneByOne(Recorded):
    """The same, each by itself."""

    def answered(self, payloads):
        return [(i, self.sites[i].handle(payload)) for i, payload in payloads.items()]


class Forgetful(Recorded):
    """Some of them lose their memory now and then."""

    def answered(self, payloads):
        if len(self.sent) % 3 == 2:
            for i in list(payloads)[:2]:
                self.sites[i].forget()
        return super().answered(payloads)


class ForgetfulOneByOne(Forgetful, OneByOne):
    pass


RECORDED: list[Recorded] = []


@pytest.fixture(autouse=True)
def one_name_for_all_runs(monkeypatch):
    monkeypatch.setattr(wire, "token_bytes", bytes)
    RECORDED.clear()


def rows(unequal=False):
    rng = np.random.default_rng(0)
    truth, sites = rng.normal(size=9), {}
    for i in range(7):
        X = rng.normal(size=(30 + 4 * unequal * i, 9)) * np.geomspace(1, 0.1, 9)
        X[:, 8] = X[:, 7] if i == 3 else X[:, 8]
        sites[f"s{i}"] = X, X @ truth + rng.logistic(size=len(X)) > 0
    return Federation.from_sites(sites)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "ways", [(Recorded, OneByOne), (Forgetful, ForgetfulOneByOne)], ids=["", "forgetful"]
)
def test_bytes_and_memories_are_those_of_one_by_one(name, ways, monkeypatch):
    together_at_once, encode = [], Codec.encode_replies

    def counted(self, run, number, hessians, parts, *how):
        together_at_once.append(len(parts[0]))
        return encode(self, run, number, hessians, parts, *how)

    monkeypatch.setattr(Codec, "encode_replies", counted)
    federation = rows(unequal=name == "qn-shed")
    together, alone = (
        fedshed.optimize(federation, l2=1e-3, max_iterations=8, transport=way, **ALGORITHMS[name])
        for way in ways
    )
    assert max(together_at_once) == 7
    np.testing.assert_array_equal(together.theta, alone.theta)
    runs = [run for run in RECORDED if run.sent]
    half = len(runs) // 2
    assert half
    for one, other in zip(runs[:half], runs[half:], strict=True):
        assert one.sent == other.sent
        assert [s.save() for s in one.sites.values()] == [s.save() for s in other.sites.values()]


class Odd(Shed, frozen=True):
    """A stranger's algorithm, which one site does not answer once."""

    def respond(self, agent, cache, part, own_part):
        cache, answer = super().respond(agent, cache, part, own_part)
        return cache, Undefined() if agent.name == "s2" and part.t == 3 else answer


def test_answers_of_unlike_kinds_are_coded_together_too():
    options = {"l2": 1e-3, "max_iterations": 5, "algorithm": Odd(precision=fedshed.Bits(bits=8))}
    together, alone = (
        fedshed.optimize(rows(), transport=way, line_search=fedshed.Fused(), **options)
        for way in (Recorded, OneByOne)
    )
    one, other = (run for run in RECORDED if run.sent)
    assert any(b"Undefined" in data for sent in one.sent for _, data in sent)
    assert one.sent == other.sent
    np.testing.assert_array_equal(together.theta, alone.theta)


@pytest.mark.parametrize("name", ["qn-shed", "lbfgs", "fib-shed"])
def test_what_the_master_knows_by_its_bytes_is_what_it_decodes(name, monkeypatch):
    """Where nothing that was written is known, a run is the same."""
    known = fedshed.optimize(rows(), l2=1e-3, max_iterations=8, **ALGORITHMS[name])
    monkeypatch.setattr(Codec, "remember", lambda self, replies, alike: None)
    decoded = fedshed.optimize(rows(), l2=1e-3, max_iterations=8, **ALGORITHMS[name])
    assert known.theta.tobytes() == decoded.theta.tobytes()
    assert known.traffic == decoded.traffic
