"""Sites of one process whose replies are coded together send, and remember, what each does by itself."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from fedshed import Differences, EntropyCoded, Federation
from fedshed.exchange import InProcess, plural_coded, wire
from fedshed.protocol.coded_replies import encode_together
from fedshed.protocol.messages import Local, Undefined

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
    together_at_once = []

    def counted(replies, *how):
        together_at_once.append(len(replies))
        return encode_together(replies, *how)

    monkeypatch.setattr(plural_coded, "encode_together", counted)
    federation = rows(unequal=name == "qn-shed")
    together, alone = (
        fedshed.optimize(federation, l2=1e-3, max_iterations=8, transport=way, **ALGORITHMS[name])
        for way in ways
    )
    assert max(together_at_once, default=0) == (0 if name == "newton" else 7)  # newton answers in the plural
    np.testing.assert_array_equal(together.theta, alone.theta)
    runs = [run for run in RECORDED if run.sent]
    half = len(runs) // 2
    assert half
    for one, other in zip(runs[:half], runs[half:], strict=True):
        assert one.sent == other.sent
        assert [s.save() for s in one.sites.values()] == [s.save() for s in other.sites.values()]


def test_answers_of_unlike_kinds_are_coded_together_too(monkeypatch):
    federation, heard = rows(), []
    plain = fedshed.algorithms.Shed.respond

    def odd(self, agent, cache, part, own_part):
        cache, answer = plain(self, agent, cache, part, own_part)
        if agent.name == "s2" and part.t == 3:
            heard.append(agent.name)
            return cache, Undefined()
        assert isinstance(answer, Local)
        return cache, answer

    monkeypatch.setattr(fedshed.algorithms.Shed, "respond", odd)
    options = {"l2": 1e-3, "max_iterations": 5, "precision": fedshed.Bits(bits=8)}
    together, alone = (
        fedshed.optimize(federation, algorithm="fib-shed", transport=way, **options)
        for way in (Recorded, OneByOne)
    )
    assert heard
    np.testing.assert_array_equal(together.theta, alone.theta)
