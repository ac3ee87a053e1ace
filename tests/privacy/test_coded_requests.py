"""Coded requests and answers: what a Master asks about and what leaves is counted as if it were plain."""

from __future__ import annotations

from typing import get_args, get_type_hints

import numpy as np
import pytest
from msgspec.structs import replace

from conftest import make_federation
from fedshed._utils.errors import ConfigError
from fedshed.algorithms import build
from fedshed.algorithms.pen import Pen
from fedshed.algorithms.pen.frame import encode_move
from fedshed.algorithms.pen.messages import Mine, Start
from fedshed.algorithms.pen.messages import Whole as WholeCopy
from fedshed.algorithms.registry import ALGORITHMS, ENTRIES
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.fitting.terms import Terms
from fedshed.linalg.arrays import pack
from fedshed.objectives import local_objectives
from fedshed.preparation import Study
from fedshed.privacy.audit import Audit, digests, entries
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy, _curved
from fedshed.protocol import links
from fedshed.protocol.codec import codec_of
from fedshed.protocol.links import AgentLink, AlongDirection, AtCurrentPoint, FullState
from fedshed.protocol.messages import Declined, Search, Share

NO_CURVATURE = {"gradient", "diagonal", "start", "bits"}  # coded, but no entries of Hessians
REQUESTS = {"AtCurrentPoint", "AlongDirection", "FirstExchange", "FullState", "AgentLink"}
REQUESTS |= {"Move", "Mine", "Whole", "Refine"}


def test_every_coded_field_of_an_answer_counts_as_curvature_unless_it_is_none():
    """Spectral innovations and compressed corrections are parts of Hessians, though they are bytes."""
    messages = {message for entry in ENTRIES for message in entry.algorithm.messages}
    found = set()
    for message in {m for m in messages if m.__name__ not in REQUESTS} | nested(messages):
        hints = get_type_hints(message)
        for name in message.__struct_fields__:
            if bytes in (hints[name], *get_args(hints[name])) and name not in NO_CURVATURE:
                found.add(f"{message.__name__}.{name}")
                assert _curved(message)[name], f"{message.__name__}.{name} is not counted"
    assert {"Innovation.spectral", "CodedCorrection.code", "Refinement.code"} <= found


def nested(messages):
    """Messages inside of answers."""
    kinds = (kind for m in messages for hint in get_type_hints(m).values() for kind in get_args(hint))
    return {k for k in kinds if hasattr(k, "__struct_fields__") and k.__name__ not in REQUESTS}


def test_the_anchor_that_a_master_names_for_pen_is_a_point_on_record(tmp_path):
    """The agent computes its Hessian there, and what it sends depends on it."""
    objective = local_objectives(make_federation("logistic", sizes={"a": 200}), "logistic")["a"]
    pen, n = Pen(), 6
    codec, zero = codec_of(pen, n), np.zeros(n)
    site = Guarded(Site("a", objective, pen), Gate(Policy(effective_rows=1), Audit(tmp_path / "a"), "study"))

    def ask(part, mine):
        site.handle(codec.encode_request(codec.encode_common(b"run!", 1, [part]), mine))

    ask(Start(zero), Mine(0, None))
    move = encode_move(2, b"", np.full(n, 0.1), 1.0, dither=True)
    anchors = [np.full(n, 0.01 * k) for k in (1, 2, 3)]
    for anchor in anchors:
        ask(move, Mine(7, WholeCopy(np.eye(n), zero, pack(np.eye(n)), zero, anchor)))
    recorded = [point for entry in entries(tmp_path / "a") for point in entry.points]
    assert {*digests([anchor.tobytes() for anchor in anchors])} <= set(recorded)
    assert len(set(recorded)) == 1 + 2 * len(anchors)  # the start, the requests, and the anchors


@pytest.mark.parametrize("name", ["lbfgs-coded", "qn-shed", "newton"])
def test_a_search_without_step_sizes_crashes_no_guarded_site(name, tmp_path):
    objective = local_objectives(make_federation("logistic", sizes={"a": 200}), "logistic")["a"]
    codec = codec_of(build(name), 6)
    site = Guarded(Site("a", objective, build(name)), Gate(Policy(), Audit(tmp_path / "a"), "study"))
    search = Search(np.zeros(6), np.ones(6), np.zeros(0))
    reply = site.answer(codec.encode_request(codec.encode_common(b"run!", 1, [search]), None))
    assert len(codec.decode_reply(reply).parts[0].values) == 0
    with pytest.raises(ValueError, match="step sizes"):
        AlongDirection(b"", np.zeros(0), 0, False, b"")


def test_units_in_which_a_hessian_overflows_are_declined_without_a_warning():
    """A Master that says that it lost the units may name any: numbers beyond float32 do not leave."""
    objective = local_objectives(make_federation("logistic", sizes={"a": 200}), "logistic")["a"]
    algorithm, zero = build("qn-shed"), np.zeros(6)
    codec, frame = codec_of(algorithm, 6), links.encode_diagonal(np.full(6, 2.0**-999))
    own = AgentLink(0, None, FullState(zero, zero, frame), Share(1, 0, True, None))
    request = codec.encode_request(codec.encode_common(b"run!", 1, [AtCurrentPoint(1, 1e-300, b"")]), own)
    (answer,) = codec.decode_reply(Site("a", objective, algorithm).answer(request)).parts
    assert isinstance(answer, Declined)


@pytest.mark.parametrize("name", [n for n, entry in ALGORITHMS.items() if entry.algorithm.compare_only])
def test_a_site_takes_part_in_no_fit_by_an_algorithm_for_comparisons(name):
    """Whatever a Master has written into the terms: local steps go to points that nobody has named."""
    terms = Terms(
        protocol=1, study=Study(family="logistic", target="y"), sites=("a",), algorithm=name, tolerance=1e-6,
        max_iterations=10,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="for comparisons"):
        terms.check_algorithm(build(name), 5)
    with pytest.raises(ConfigError, match="for comparisons"):
        terms.check_study()
    replace(terms, algorithm="qn-shed").check_algorithm(build("qn-shed"), 5)
