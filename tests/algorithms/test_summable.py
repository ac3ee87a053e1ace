"""Summable algorithms: sums over the sites, as the answers of one agent, are all the Master needs."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from conftest import make_federation, well_conditioned
from fedshed import ConfigError, Fused
from fedshed.algorithms.auto import choose_summable
from fedshed.algorithms.registry import check_summable
from fedshed.exchange import InProcess
from fedshed.exchange.site import Site
from fedshed.objectives import local_objectives
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Message, numeric_fields
from fedshed.protocol.precision import Exact
from fedshed.protocol.replies import Reply
from fedshed.solve.engine import Progress, iterate
from fedshed.solve.goal import Goal

L2 = 1e-2
ENTRIES = fedshed.ALGORITHMS
SUMMABLE = [name for name, entry in ENTRIES.items() if entry.algorithm.summable]
# p_i times what each sends adds up too, but it is no function of f, g and H
LINEAR = ("giant", "done", "dane", "disco")
OTHERS = [name for name in ENTRIES if name not in (*SUMMABLE, *LINEAR, "lbfgs-coded")]  # lbfgs, if exact


def mean(p, messages):
    """sum_i p_i of every number in messages of one kind."""
    first = messages[0]
    assert {type(message) for message in messages} == {type(first)}
    changes = {}
    for name in numeric_fields(type(first)):
        values = [getattr(message, name) for message in messages]
        if isinstance(values[0], Message):
            changes[name] = mean(p, values)
        elif values[0] is not None:
            changes[name] = sum(share * value for share, value in zip(p, values, strict=True))
    return replace(first, **changes)


class All:
    """One agent that asks the sites and answers with the means of what they say."""

    def __init__(self, sites, algorithm, n):
        self.sites = [sites[i] for i in sorted(sites)]
        self.codec = codec_of(algorithm, n)
        weights = [site.objective.weight for site in self.sites]
        self.p = [weight / sum(weights) for weight in weights]

    def handle(self, payload):
        replies = [self.codec.decode_reply(site.handle(payload)) for site in self.sites]
        parts = [mean(self.p, same) for same in zip(*(reply.parts for reply in replies), strict=True)]
        return self.codec.encode_reply(Reply(replies[0].run, replies[0].number, 0, parts))


def iterates(algorithm, federation, loss, summed, count=12, start=0.0):
    """theta^1, theta^2, ... with an agent for each site, or with one for all of them."""
    objectives, n = local_objectives(federation, loss), federation.dim
    sites = {i: Site(i, o, algorithm) for i, o in objectives.items()}
    weights = {i: o.weight for i, o in objectives.items()}
    if summed:
        sites, weights = {"all": All(sites, algorithm, n)}, {"all": sum(weights.values())}
    problem = Problem(np.full(n, L2), weights, loss)
    begin = Progress(algorithm.start(problem, np.full(n, start)), rows=[])
    goal = Goal(tol=1e-9, max_iterations=count)
    return [one.state.theta for one in iterate(algorithm, problem, InProcess(sites), begin, goal)]


def exact(name):
    return replace(ENTRIES[name].algorithm, precision=Exact())


@pytest.mark.parametrize("start", [0.0, 3.0])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
@pytest.mark.parametrize("name", SUMMABLE)
def test_sums_over_the_sites_give_the_same_iterates(name, loss, fused, start):
    algorithm = exact(name)
    if fused and hasattr(algorithm, "line_search"):
        algorithm = replace(algorithm, line_search=Fused())
    federation = make_federation(loss)
    one, many = (iterates(algorithm, federation, loss, summed, start=start) for summed in (True, False))
    assert len(one) == len(many) > 0
    for ours, theirs in zip(one, many, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", OTHERS)
def test_the_others_need_what_each_site_says(name):
    """The mean of eigenvectors or of codes is not that of the curvature."""
    loss = (ENTRIES[name].algorithm.losses or ("logistic",))[0]
    federation, algorithm = well_conditioned(loss), exact(name)
    if hasattr(algorithm, "channel"):  # a link that carries all of a Hessian would make it Newton
        algorithm = replace(algorithm, channel=fedshed.Constant(1))
    many = iterates(algorithm, federation, loss, summed=False, count=4)
    try:
        one = iterates(algorithm, federation, loss, summed=True, count=4)
    except (fedshed.Error, TypeError, ValueError, AssertionError):
        return  # the means are no messages that it understands
    assert len(one) != len(many) or not np.allclose(one[-1], many[-1], rtol=1e-6, atol=1e-6)


def test_sums_are_enough_for_these_and_no_others():
    assert sorted(SUMMABLE) == ["agd", "heavy-ball", "lbfgs", "newton", "newton-seldom"]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_algorithm_that_is_not_summable_is_refused_with_the_names_of_those_that_are(name):
    if name in SUMMABLE:
        check_summable(ENTRIES[name].algorithm)
        return
    with pytest.raises(ConfigError, match="needs the answer of each site") as refusal:
        check_summable(ENTRIES[name].algorithm)
    assert str(refusal.value).startswith(f"{name} needs")
    assert all(allowed in str(refusal.value) for allowed in SUMMABLE)


def test_a_configured_algorithm_is_refused_by_its_name_too():
    with pytest.raises(ConfigError, match=r"^qn-shed needs"):
        check_summable(fedshed.algorithms.build("qn-shed", budget=3))


def test_of_a_summable_algorithm_in_coded_differences_only_the_precision_is_refused():
    """ "lbfgs needs the answer of each site; protected mode allows lbfgs" would help nobody."""
    with pytest.raises(ConfigError, match=r"precision must be Exact"):
        check_summable(fedshed.algorithms.Lbfgs(precision=fedshed.Differences()))


SIZES = {1: "newton", 32: "newton", 33: "newton-seldom", 1000: "newton-seldom", 1001: "lbfgs"}


@pytest.mark.parametrize(("n", "name"), SIZES.items())
def test_protected_mode_chooses_by_the_size_of_a_hessian(n, name):
    algorithm, why = choose_summable(n)
    assert algorithm.summable
    assert type(algorithm) is type(ENTRIES[name].algorithm)
    assert isinstance(algorithm.line_search, Fused)
    assert why.startswith(f"{name}: ")
    assert f"n = {n}" in why
