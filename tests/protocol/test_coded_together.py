"""Arrays of many agents coded in one call have the bytes of one after the other, and are known by them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed._utils.errors import CodecError
from fedshed.protocol import coded
from fedshed.protocol.memo import Memo
from fedshed.protocol.precision import Bits, Differences, EntropyCoded
from fedshed.protocol.quantize import decode_steps

PRECISIONS = [Bits(bits=5), EntropyCoded(), EntropyCoded(step=1e-5), Differences()]


def arrays(rng, count, shape):
    """Arrays of unlike sizes; one is 0, and one has entries that round to -0."""
    found = [rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6) for _ in range(count)]
    found[0] = np.zeros(shape)
    found[-1] = -np.abs(found[-1]) * (rng.random(shape) < 0.2) - 1e-9
    return found


@pytest.mark.parametrize(
    "precision", PRECISIONS, ids=lambda p: f"{type(p).__name__}-{getattr(p, 'step', '')}"
)
@given(st.integers(1, 7), st.integers(0, 6), st.integers(1, 130), st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_together_has_the_bytes_of_one_after_the_other(precision, count, rows, n, seed):
    rng = np.random.default_rng(seed)
    matrices = arrays(rng, count, (rows, n))
    gradients = arrays(rng, count, (n,))
    for accuracy in (-0.1, 0.0, 1e-3, 10.0):
        together = precision.encode_together("gradient", gradients, accuracy)
        assert together == [precision.encode("gradient", g, accuracy) for g in gradients]
    together = precision.encode_together("matrix", matrices, 0.0)
    assert together == [precision.encode("matrix", m, 0.0) for m in matrices]
    unlike = [*matrices, rng.normal(size=(rows + 1, n))]
    assert precision.encode_together("matrix", unlike, 0.0) == [
        precision.encode("matrix", m, 0.0) for m in unlike
    ]
    fit = [raw for raw in together if rows <= n]
    for one, other in zip(precision.decode_together("matrix", fit, n), fit, strict=True):
        np.testing.assert_array_equal(one, precision.decode("matrix", other, n))


@given(st.integers(1, 200), st.floats(1e-4, 10.0), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_what_is_known_is_what_is_decoded(n, step, seed):
    rng = np.random.default_rng(seed)
    x = np.append(rng.normal(size=n), [-1e-9, 0.0])
    one, (other,) = coded.encode_known(x, step), coded.encode_all(x[None, :], [step])
    assert one == other
    known, decoded = coded.decode_known(one, n + 2, last=False), decode_steps(one, n + 2)
    assert known.tobytes() == decoded.tobytes()  # zeros have their sign
    known[:] = np.nan  # of nobody else's
    for _ in range(2):  # known, and forgotten
        assert coded.decode_known(one, n + 2).tobytes() == decoded.tobytes()


def outcome(decode, data, count):
    """The bytes of what is decoded, or None where it is refused."""
    try:
        return decode(data, count).tobytes()
    except CodecError:
        return None


def test_a_stream_of_another_length_or_with_another_byte_is_decoded():
    x = np.random.default_rng(0).normal(size=300)
    data = coded.encode_known(x, 0.1)
    others = [data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(4, len(data), 7)]
    tried = [(data, 299), (data, 301), *((other, 300) for other in others)]
    found = [outcome(coded.decode_known, *one) for one in tried]
    assert found == [outcome(decode_steps, *one) for one in tried]
    assert None in found


def test_what_is_remembered_is_bounded(monkeypatch):
    memo = Memo(10_000)
    monkeypatch.setattr(coded, "_SYMBOLS", memo)
    rng = np.random.default_rng(0)
    streams = [coded.encode_known(rng.normal(size=400), 0.1) for _ in range(50)]
    assert 0 < memo.held <= 10_000
    assert all(len(coded.decode_known(data, 400)) == 400 for data in streams)
    assert memo.held == 0  # each was read for the last time
