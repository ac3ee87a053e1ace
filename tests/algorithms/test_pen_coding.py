"""PEN's coding: triangles, logarithms and digests; malformed streams are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed import CodecError
from fedshed.algorithms.pen.coding import (
    DEAD_ZONE,
    decode_logs,
    decode_rounded,
    digest_of,
    encode_rounded,
    logs_of,
    roots,
    round_triangle,
)
from fedshed.algorithms.pen.frame import change_of, identity, move_frame
from fedshed.algorithms.pen.innovation import Copy, correct_copy, decode_first
from fedshed.algorithms.pen.messages import First, Innovation, Move
from fedshed.protocol.memo import Memo
from fedshed.protocol.quantize import decode_steps, encode_logs

QUICK = settings(deadline=None, max_examples=40)


@given(st.integers(1, 40), st.floats(1e-3, 10), st.integers(0, 10**6))
@QUICK
def test_a_triangle_is_decoded_within_half_a_step_or_the_dead_zone(count, step, seed):
    values = np.random.default_rng(seed).normal(size=count)
    decoded = decode_steps(encode_rounded(round_triangle(values, step), step)[0], count)
    bound = np.where(decoded == 0, DEAD_ZONE, 0.5) * step * (1 + 1e-6)
    assert (np.abs(decoded - values) <= bound).all()


@given(st.lists(st.floats(1e-200, 1e200), min_size=1, max_size=20))
@QUICK
def test_a_diagonal_is_known_to_an_eighth_of_an_octave(values):
    values = np.array(values)
    logs = decode_logs(encode_logs(logs_of(values)), len(values))
    assert np.array_equal(logs, logs_of(values))
    assert (np.abs(np.log2(roots(logs) ** 2 / values)) <= 1 / 8 + 1e-9).all()


def test_a_digest_depends_on_every_byte_and_on_where_a_part_ends():
    histories = (0, b"ab", b"c"), (0, b"a", b"bc"), (1, b"ab", b"c"), (0, b"abc"), (0, b"ab", b"d")
    digests = {digest_of(*history) for history in histories}
    assert len(digests) == 5


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=200)
def test_malformed_streams_raise_nothing_but_the_codecs_error(data):
    copy = Copy(1, np.eye(3), np.zeros(3))
    for attempt in (
        lambda: change_of(data, 3),
        lambda: move_frame(identity(np.zeros(3)), Move(1, b"", data, 1.0, True)),
        lambda: decode_first(First(0.0, data, data, data), 3),
        lambda: correct_copy(copy, Move(1, b"", b"", 1.0, True), Innovation(0.0, data, 1.0, data, 0.0)),
    ):
        try:
            attempt()
        except CodecError:
            continue


# --- what is remembered -------------------------------------------------------------------------------


def test_a_memo_holds_the_newest_within_its_bytes():
    memo = Memo(100)
    for k in range(50):
        memo.put(k, str(k), 30)
        assert memo.nbytes <= 100
    assert [memo.get(k) for k in (46, 47, 48, 49)] == [None, "47", "48", "49"]
    memo.drop(48)
    assert memo.get(48) is None
    assert memo.nbytes == 60
    memo.put("too large", 1, 101)
    assert memo.nbytes <= 100
    assert memo.get("too large") is None


@given(st.integers(1, 30), st.integers(0, 10**6))
@QUICK
def test_what_is_remembered_is_what_would_be_decoded(count, seed):
    values = np.random.default_rng(seed).normal(size=count)
    data, remembered = encode_rounded(round_triangle(values, 0.1), 0.1)
    assert np.array_equal(remembered, decode_steps(data, count))
    assert np.array_equal(decode_rounded(bytes(bytearray(data)), count), remembered)
    assert not remembered.flags.writeable
    with pytest.raises(CodecError):
        decode_rounded(data + b"\0\0\0\0", count)
