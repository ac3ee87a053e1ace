"""Lies in coded answers: refused by name, or a step is rejected; the Master never computes with NaN."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from conftest import make_federation
from fedshed.algorithms import build
from fedshed.exchange import InProcess
from fedshed.protocol import links
from fedshed.protocol.codec import codec_of
from fedshed.protocol.quantize import encode_steps, entropy_encode

L2, N = 1e-2, 6
SIZE = N * (N + 1) // 2


def forged(name, kind, exchanges, **fields):
    """A transport on which the answers of this kind of one site have other fields in these exchanges."""
    codec = codec_of(build(name), N)

    def lie(part):
        if type(part).__name__ != kind:
            return part
        return replace(part, **{f: new(getattr(part, f)) for f, new in fields.items()})

    class Forges(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            for i, data in super().exchange(payloads):
                if i == "middle" and self.count in exchanges:
                    reply = codec.decode_reply(data)
                    data = codec.encode_reply(replace(reply, parts=[lie(part) for part in reply.parts]))
                yield i, data

    return Forges


def coded(x, step):
    return lambda old: encode_steps(np.asarray(x) * step, step)


def diagonal(logs):
    return lambda old: b"\0" + entropy_encode(np.diff(np.full(N, logs), prepend=0.0).astype(np.int32))


def logs(k):
    return lambda old: entropy_encode(np.diff(np.full(N, k), prepend=0.0).astype(np.int32))


HUGE = float(np.float32(3e38))
REFUSED = {
    "lbfgs-coded: a huge diagonal": ("lbfgs-coded", "FirstReply", {"diagonal": diagonal(4000.0)}),
    "qn-shed: a huge diagonal": ("qn-shed", "FirstReply", {"diagonal": diagonal(4000.0)}),
    "pen: a huge Hessian": ("pen", "First", {"hessian": coded(np.full(SIZE, 2e9), HUGE)}),
    "pen: a negative Hessian": ("pen", "First", {"hessian": coded(np.full(SIZE, -1.0), 1.0)}),
    "pen: a huge diagonal": ("pen", "First", {"diagonal": logs(3000.0)}),
    "pen: an error below 0": ("pen", "Innovation", {"error": lambda e: -1.0}),
    "pen: a huge multiple": ("pen", "Innovation", {"c": lambda c: 1e120}),
    "fednl-top-k: huge entries": (
        "fednl-top-k",
        "CodedCorrection",
        {"code": lambda code: np.full(SIZE, 1e308).tobytes() + bytes(range(SIZE))},
    ),
    "fednl-top-k: one place twice": (
        "fednl-top-k",
        "CodedCorrection",
        {"code": lambda code: np.ones(2).tobytes() + bytes([3, 3])},
    ),
    "fednl-top-k: a place outside": (
        "fednl-top-k",
        "CodedCorrection",
        {"code": lambda code: np.ones(1).tobytes() + bytes([SIZE])},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_lie_in_a_coded_answer_is_refused_by_name_and_the_run_converges(case):
    name, kind, fields = REFUSED[case]
    lies = forged(name, kind, range(1, 5), **fields)
    result = fedshed.optimize(make_federation("logistic"), algorithm=name, l2=L2, transport=lies, tol=1e-9)
    assert result.converged, result.reason
    assert {refusal.site for refusal in result.refusals} == {"middle"}


@pytest.mark.parametrize("name", ["lbfgs-coded", "qn-shed"])
@pytest.mark.parametrize("factor", [1e100, 1e250, -1e300])
def test_a_huge_gradient_leaves_no_nan_and_no_warning(name, factor):
    """At a trial point it is no gradient: of an honest site it comes with a cost that is rejected."""
    federation = make_federation("logistic")
    kinds = ("First", "FirstReply", "Local", "LocalWhole")
    lies = [forged(name, kind, {1, 4, 5}, gradient=lambda g: factor * g) for kind in kinds]
    for transport in lies:
        result = fedshed.optimize(federation, algorithm=name, l2=L2, transport=transport, tol=1e-9)
        assert np.isfinite(result.theta).all()
        assert np.isfinite(result.trace.column("grad_norm")).all()


@pytest.mark.parametrize("c", [1e90, -1e90, 0.0])
def test_copies_that_grow_again_and_again_leave_no_nan(c):
    lies = forged("pen", "Innovation", range(2, 100), c=lambda _: c, loss=lambda f: 0.0)
    federation = make_federation("logistic")
    with suppress(fedshed.ProtocolError):  # with the name of the site
        result = fedshed.optimize(federation, algorithm="pen", l2=L2, transport=lies, tol=1e-14)
        assert np.isfinite(result.theta).all()
        assert np.isfinite(result.trace.column("grad_norm")).all()


def test_an_exact_gradient_too_large_to_go_on_from_ends_the_run_with_a_reason():
    lies = forged("pen", "Local", range(1, 100), gradient=lambda g: 1e100 * g)
    result = fedshed.optimize(make_federation("logistic"), algorithm="pen", l2=L2, transport=lies, tol=1e-9)
    assert not result.converged
    assert np.isfinite(result.theta).all()


def test_of_many_diagonals_few_megabytes_are_kept():
    """What is remembered of diagonals is bounded, however many and however long they are."""
    n = 50_000
    for agent in range(30):  # 12 MB in all
        coded = links.encode_diagonal(np.full(n, 2.0**agent))
        np.testing.assert_array_equal(links.roots_of(coded, n), np.full(n, 2.0 ** (agent / 2)))
    assert links._ROOTS.nbytes <= 8 * 2**20
