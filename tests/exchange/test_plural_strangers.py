"""Sites that answer together, asked as our Master never asks, or by a subclass: as each does by itself."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from msgspec.structs import replace

from fedshed.algorithms import Lbfgs, Newton, QnShed
from fedshed.exchange.plural import Assembly
from fedshed.exchange.site import Site
from fedshed.objectives import Logistic, stacked
from fedshed.protocol import links
from fedshed.protocol.codec import Codec, Reply, codec_of, encode
from fedshed.protocol.coded_replies import WRITTEN
from fedshed.protocol.links import Begin, Here, Own
from fedshed.protocol.messages import Costs, Eigenpairs, Local, Search, Share, Undefined, Update

N = 5
FRAME = links.encode_diagonal(np.full(N, 0.25))


def models(count=4, rows=9, n=N):
    rng = np.random.default_rng(0)
    return stacked(
        {
            f"{i:02}": Logistic(rng.normal(size=(rows, n)), np.sign(rng.normal(size=rows)))
            for i in range(count)
        }
    )


def sites_of(algorithm, some):
    codec = codec_of(algorithm, next(iter(some.values())).dim)
    return {i: Site(i, model, algorithm, codec) for i, model in some.items()}


def asked(sites, number, parts, each):
    codec = next(iter(sites.values())).codec
    common = codec.encode_common(b"run!", number, parts)
    return {i: codec.encode_request(common, each.get(i)) for i in sites}


def together(sites, payloads):
    return [reply for _, replies in Assembly(sites).answers(payloads) for reply in replies]


def same(algorithm, *asks):
    """Whether replies and caches are those of one site after the other; each ask may look at the sites."""
    plural, plain = sites_of(algorithm, models()), sites_of(algorithm, models())
    for number, (parts, each) in enumerate(asks):
        payloads = asked(plural, number, parts, each(plural))
        if together(plural, payloads) != [plain[i].handle(payloads[i]) for i in plain]:
            return False
    return all(encode(plural[i].cache) == encode(plain[i].cache) for i in plain)


@pytest.mark.parametrize("algorithm", [QnShed(), Newton()])
def test_a_request_without_parts(algorithm):
    assert same(algorithm, ([], lambda sites: {}))


@pytest.mark.parametrize("without", [0, 3])
def test_a_master_that_names_the_gradient_of_some_only(without):
    def own_parts(sites):
        point = links.digest_of_point(np.zeros(N), FRAME)
        known = [
            None if k == without else links.digest(s.cache.g.tobytes()) for k, s in enumerate(sites.values())
        ]
        return {i: Own(point, g, None, Share(1, 0, True, None)) for i, g in zip(sites, known, strict=True)}

    assert same(QnShed(), ([Begin(None, -0.1)], lambda sites: {}), ([Here(1, 1e-3, FRAME)], own_parts))


class Scaled(Lbfgs, frozen=True):
    """Sends another scale at the start."""

    def scaled(self, point):
        found = super().scaled(point)
        return replace(found, scale=2 * found.scale)


class Started(QnShed, frozen=True):
    """Says half of the cost at the start."""

    def _started(self, agent, held, part):
        held, first = super()._started(agent, held, part)
        return held, replace(first, loss=first.loss / 2)


@pytest.mark.parametrize(
    ("algorithm", "part"), [(Scaled(), Update(1, np.zeros(N))), (Started(), Begin(None, -0.1))]
)
def test_a_subclass_that_replaces_what_one_agent_does(algorithm, part):
    assert same(algorithm, ([part], lambda sites: {}))


def test_the_first_exchange_does_not_copy_all_tables():
    """Tables that are too large for a stack: their scaled copies are not in memory at the same time."""
    large = models(count=12, rows=1000, n=200)
    sites = sites_of(QnShed(), large)
    payloads = asked(sites, 0, [Begin(None, -0.1)], {})
    tracemalloc.start()
    together(sites, payloads)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 1000 * 200 * 8


def test_replies_that_are_read_elsewhere_are_not_remembered():
    sites = sites_of(QnShed(), models())
    payloads = asked(sites, 0, [Begin(None, -0.1)], {})
    before = WRITTEN.held
    together(sites, payloads)
    assert WRITTEN.held == before
    replies = [one for _, some in Assembly(sites, read_here=True).answers(payloads) for one in some]
    assert WRITTEN.held > before
    codec = next(iter(sites.values())).codec
    assert codec.decode_replies(replies, [])
    assert WRITTEN.held == before


@pytest.mark.parametrize("values", [(np.inf, np.inf), (-1.7e308, 1.7e308)])
def test_numbers_that_overflow_are_refused_without_a_warning(values):
    codec = Codec((Search, Costs, Undefined, Update, Local), 3)
    pairs = Eigenpairs(1, 0, np.array([3.0, 2.0]), np.ones((2, 3)), 0.1, False)
    good = codec.encode_reply(Reply(b"r", 1, 0, [Local(1.0, np.ones(3), pairs)]))
    bad = good.replace(np.array([3.0, 2.0]).tobytes(), np.array(values).tobytes())
    assert bad != good
    (alike,) = codec.decode_replies([*[good] * 6, bad], [])
    assert list(alike.rows) == list(range(6))
