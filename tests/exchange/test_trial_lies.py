"""A site that lies about a trial point of a line search is named, whether or not the point is accepted."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from fedshed.exchange import InProcess
from fedshed.protocol.messages import Undefined

FEDERATION = fedshed.datasets.load("digits", agents=6)


def huge(sign):
    """An answer whose gradient is finite and so large that its squares are not."""

    def lie(answer):
        gradient = getattr(answer, "gradient", None)
        return answer if gradient is None else replace(answer, gradient=np.full_like(gradient, sign * 1e200))

    return lie


def undefined(answer):
    """No answer, where there could be one."""
    return answer if getattr(answer, "gradient", None) is None else Undefined()


def lying(lie, names):
    """A transport in which some sites lie about every update, from the third exchange on."""

    class Lying(InProcess):
        def __init__(self, sites):
            super().__init__(sites)
            self._lied, self._count = sites, 0

        def exchange(self, payloads):
            self._count += 1
            for name, data in super().exchange(payloads):
                if name in names and self._count >= 3:
                    codec = self._lied[name].codec
                    reply = codec.decode_reply(data)
                    data = codec.encode_reply(replace(reply, parts=[lie(part) for part in reply.parts]))
                yield name, data

    return Lying


@pytest.mark.parametrize("algorithm", ["newton", "qn-shed", "lbfgs"])
@pytest.mark.parametrize("lie", [huge(1), huge(-1), undefined], ids=["up", "down", "undefined"])
@pytest.mark.parametrize("liars", [1, 4], ids=["alone", "alike"])
def test_a_lie_about_a_point_that_is_accepted_is_refused_with_the_name_of_the_site(algorithm, lie, liars):
    names = FEDERATION.sites[:liars]
    result = fedshed.optimize(
        FEDERATION, l2=1e-2, algorithm=algorithm, line_search=fedshed.Fused(), patience=6,
        transport=lying(lie, names),
    )  # fmt: skip
    assert not result.converged
    assert f"agent {names[0]!r} gave no usable answer" in result.reason
    assert np.isfinite(result.theta).all()
