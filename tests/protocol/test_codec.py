"""The wire format: exact sizes, round trips, and a decoder that never does more than its bytes warrant."""

from __future__ import annotations

import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed import CodecError
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.shed import Shed
from fedshed.protocol.codec import Codec, Decoder, codec_of, encode
from fedshed.protocol.kinds import vectors
from fedshed.protocol.messages import (
    Costs,
    Eigenpairs,
    Local,
    LocalHessian,
    Message,
    Search,
    Share,
    Update,
)
from fedshed.protocol.replies import Reply

N = 4
CODEC = Codec((Search, Costs, Update, Share, Local, LocalHessian), N)
PAIRS, B8, RISING = ("Eigenpairs", 1), b"12345678", np.array([1.0, 2.0]).tobytes()
FUZZ = settings(deadline=None, max_examples=400)

numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
vector = st.lists(numbers, min_size=N, max_size=N).map(np.array)
scalars = st.lists(numbers, max_size=5).map(lambda v: np.array(v, dtype=float))
pairs = st.builds(
    lambda k, start, rows, rho: Eigenpairs(
        k, start, np.full(len(rows), rho), np.array(rows, dtype=float).reshape(-1, N), rho, start > 0
    ),
    st.integers(1, 10**9), st.integers(0, 1), st.lists(vector, max_size=2), st.floats(0, 1e300),
)  # fmt: skip
messages = st.one_of(
    st.builds(Search, vector, vector, scalars),
    st.builds(Update, st.integers(0, 10**9), st.none() | vector),
    st.builds(Share, st.integers(1, 10**9), st.integers(0, 10**6), st.booleans(), st.none() | vector),
    st.builds(Costs, scalars),
    st.builds(Local, numbers, vector, st.none() | pairs),
    st.builds(LocalHessian, numbers, vector, st.lists(numbers, min_size=10, max_size=10).map(np.array)),
)


def same(a: object, b: object) -> bool:
    """Equality of messages, arrays bit for bit."""
    if isinstance(a, Message):
        fields = a.__struct_fields__
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in fields)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


@given(st.lists(messages, max_size=2), st.none() | messages, st.integers(0, 10**6))
@FUZZ
def test_requests_and_replies_come_back_bit_for_bit(parts, mine, number):
    request = CODEC.decode_request(CODEC.encode_request(CODEC.encode_common(b"run!", number, parts), mine))
    assert request.number == number
    assert same(request.mine, mine)
    assert all(map(same, request.parts, parts))
    reply = CODEC.decode_reply(CODEC.encode_reply(Reply(b"run!", number, 2, parts)))
    assert (reply.number, reply.hessians) == (number, 2)
    assert all(map(same, reply.parts, parts))


@given(st.binary(max_size=300))
@FUZZ
def test_random_bytes_raise_nothing_but_the_codecs_error(data):
    for decode in (CODEC.decode_request, CODEC.decode_reply, Decoder(Shed | Newton, N)):
        with pytest.raises(CodecError):
            decode(data)


@given(messages, st.data())
@FUZZ
def test_truncated_and_altered_messages_are_refused_or_well_formed(message, data):
    """A flipped byte may still be a message; then all its arrays have the right shapes and are finite."""
    whole = CODEC.encode_reply(Reply(b"run!", 1, 0, [message]))
    with pytest.raises(CodecError):
        CODEC.decode_reply(whole[: data.draw(st.integers(0, len(whole) - 1))])
    index, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    try:
        reply = CODEC.decode_reply(whole[:index] + bytes([byte]) + whole[index + 1 :])
    except CodecError:
        return
    for part in reply.parts:
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if isinstance(value, np.ndarray):
                assert np.isfinite(value).all() or isinstance(part, Costs)
                assert value.nbytes <= len(whole)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x94\xc4\x01r\x01\x00\xdd\xff\xff\xff\xff",  # an array of 4 billion parts
        b"\x94\xc4\x01r\x01\x00\x91\x92\xa5Costs\xc6\xff\xff\xff\xff",  # an array of 4 GB of floats
        b"\x94\xc4\x01r\x01\x00\x91\x92\xa5Costs\xdb\xff\xff\xff\xff",  # a string of 4 GB
        b"\x91" * 5000,  # nested deeper than the stack
    ],
)
def test_a_message_that_promises_more_than_it_holds_allocates_nothing(bomb):
    tracemalloc.start()
    with pytest.raises(CodecError):
        CODEC.decode_reply(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (["Costs", np.array([1.0, np.nan]).tobytes()], "NaN"),
        (["Costs", np.array([-np.inf]).tobytes()], "infinity"),
        (["Local", 1.0, np.array([0, 1, np.inf, 0]).tobytes(), None], "infinity"),
        (["Local", 1.0, np.ones(N).tobytes(), [*PAIRS, 2, B8 * 2, B8 * 8, 0.0, True]], "n - 1"),
        (["Local", 1.0, np.ones(N).tobytes(), [*PAIRS, 0, RISING, B8 * 8, 0.0, True]], "must decrease"),
        (["Costs", b"1234567"], "no array of the shape"),
        (["Costs", "text"], "float64"),
        (["Local", 1.0, np.ones(N + 1).tobytes(), None], "no array of the shape"),
        (["Local", float("nan"), np.ones(N).tobytes(), None], "loss of Local is nan"),
        (["Local", "1.0", np.ones(N).tobytes(), None], "float"),
        (["Local", 1.0, np.ones(N).tobytes()], "length"),
        (["Local", 1.0, np.ones(N).tobytes(), None, 5], "length"),
        (["LocalHessian", 1.0, np.ones(N).tobytes(), np.ones(9).tobytes()], "no array of the shape"),
        (["Local", 1.0, np.ones(N).tobytes(), ["Eigenpairs", 0, 0, b"", b"", 1.0, True]], "k=0"),
        (["Local", 1.0, np.ones(N).tobytes(), [*PAIRS, 0, B8 * 2, b"", 1.0, True]], "2 val"),
        (["Local", 1.0, np.ones(N).tobytes(), ["Eigenpairs", 1, 0, b"", b"", -1.0, True]], "rho"),
        (["__import__", "os"], "Invalid value"),
    ],
)  # fmt: skip
def test_malformed_replies_say_what_is_wrong(part, complaint):
    with pytest.raises(CodecError, match=complaint):
        CODEC.decode_reply(msgspec.msgpack.encode([b"run!", 1, 0, [part]]))


def test_an_array_costs_its_numbers_and_a_few_bytes():
    """8 bytes a float64; the rest is the name of the message and MessagePack's own marks."""
    for n in (10, 300):
        pairs = Eigenpairs(1, 0, np.ones(2), np.ones((2, n)), 0.5, False)
        size = len(encode(Local(1.0, np.ones(n), pairs)))
        assert 8 * (n + 2 * n + 2 + 2) < size < 8 * (n + 2 * n + 2 + 2) + 45


def test_vectors_count_as_the_paper_counts():
    """A gradient and d eigenvectors are d + 1 vectors; a packed Hessian is (n + 1)/2; scalars are none."""
    pairs = Eigenpairs(1, 0, np.ones(2), np.ones((2, N)), 0.5, False)
    assert vectors(Local(1.0, np.ones(N), pairs), N) == 3
    assert vectors(Local(1.0, np.ones(N), None), N) == 1
    assert vectors(LocalHessian(1.0, np.ones(N), np.ones(10)), N) == 1 + (N + 1) / 2
    assert vectors(Costs(np.ones(8)), N) == 0


@pytest.mark.parametrize("algorithm", [Shed(), Newton()])
def test_algorithms_are_data(algorithm):
    assert Decoder(Shed | Newton, N)(encode(algorithm)) == algorithm
    assert codec_of(algorithm, N) is not None


def test_numbers_that_may_be_missing_must_be_finite_where_they_are_there():
    class Perhaps(Message, frozen=True):
        size: float | None = None

    assert Perhaps().size is None
    assert Perhaps(1.0).size == 1.0
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="size of Perhaps"):
            Perhaps(wrong)
