"""No message makes its reader allocate more than 64 MB and 4 times its own length."""

from __future__ import annotations

import struct
import tracemalloc

import msgspec
import numpy as np
import pytest

from fedshed import Bits, EntropyCoded, Study, TwoExchange
from fedshed._utils.errors import ConfigError, Error
from fedshed.algorithms import build
from fedshed.algorithms.pen.frame import change_of, diagonal_change
from fedshed.algorithms.pen.innovation import undecodable
from fedshed.algorithms.pen.messages import First, Innovation, Move
from fedshed.algorithms.registry import BUILT_IN
from fedshed.algorithms.rivals.giant import Done
from fedshed.exchange.site import Site
from fedshed.fitting.host import Host
from fedshed.objectives.logistic import Logistic
from fedshed.preparation.messages import CODEC
from fedshed.preparation.plan import DesignPlan
from fedshed.protocol import limits
from fedshed.protocol.codec import Decoder, codec_of, encode
from fedshed.protocol.quantize import SPLIT, decode_rows, decode_steps, encode_steps

N = 12_000  # coefficients: an array of n (n + 1) / 2 numbers takes 576 MB
ZEROS = struct.pack("<fBBH", 1.0, 0, 0, 0)  # a step, and the stream that stands for any number of zeros
ONE = struct.pack("<I", 1)
FREE = 64e6


def peak(call):
    """Bytes that a call allocates at most, whether it raises an error of ours or returns."""
    tracemalloc.start()
    try:
        call()
    except Error:
        pass
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return most


def reply(part):
    """A reply with one part, as a site would encode it: unchecked."""
    return encode((b"run", 1, 0, [part]))


def read_by(algorithm, data, **precision):
    """The Master reads a reply in a problem of N coefficients."""
    chosen = build(algorithm)
    chosen = msgspec.structs.replace(chosen, **precision) if precision else chosen
    return lambda: codec_of(chosen, N).decode_reply(data)


GRADIENT = b"\0" + np.zeros(N).tobytes()
HEAD = np.zeros(N + 1, "<f4").tobytes()
MANY = 1 << 20


def items(count, one):
    """A list of many small things."""
    return b"\xdd" + count.to_bytes(4, "big") + one * count


def bombs():
    """What is sent, and who reads it."""
    pairs = ["Eigenpairs", 1, 0, b"", struct.pack("<I", N - 1) + ZEROS, 0.0, True]
    rows = ["Eigenpairs", 1, 0, b"", struct.pack("<I", N - 1) + bytes(N - 1), 0.0, True]
    packed = reply(["LocalHessian", 0.0, GRADIENT, HEAD + ONE + ZEROS])
    coded = {"precision": EntropyCoded()}
    yield "entropy-coded rows", (d := reply(["Local", 0.0, b"\1" + ZEROS, pairs])), read_by("qn-shed", d)
    yield (
        "rows of no bits",
        (d := reply(["Local", 0.0, b"\1" + ZEROS, rows])),
        read_by("fib-shed", d, precision=Bits()),
    )
    yield "a packed matrix", packed, read_by("newton", packed, **coded)
    bits = struct.pack("<fBBH", 1.0, 0, 0, SPLIT + 1) + bytes(MANY)
    yield "split symbols", bits, lambda: decode_steps(bits + ZEROS[4:], 8 * MANY)
    one_bit = b"\1" + struct.pack("<f", 1.0) + bytes(2 * MANY)
    yield "a row of one bit", one_bit, lambda: decode_rows(one_bit, 1, 16 * MANY)
    first = First(0.0, ZEROS, ZEROS[4:], ZEROS)
    yield "PEN's first answer", encode(first), lambda: undecodable(None, first, N)
    many = 6 * MANY
    described = b"\x94\xc4\x01a\x01\x00\x91\x93\xaaDeviations\xc4\x00" + items(many, b"\x01")
    yield "a list of numbers", described, lambda: CODEC.decode_reply(described)
    ready = (
        b"\x94\xc4\x01a\x01\x00\x91"
        + bytes([0x96])
        + encode("Ready")
        + b"\x01\x00"
        + encode(1.0)
        + items(many, b"\xa0")
    )
    yield "a list of empty names", ready, lambda: CODEC.decode_reply(ready)
    yield (
        "a claimed length",
        b"\xdd\xff\xff\xff\xff\x01",
        lambda: CODEC.decode_reply(b"\xdd\xff\xff\xff\xff\x01"),
    )


BOMBS = {name: (data, call) for name, data, call in bombs()}


@pytest.mark.parametrize(("data", "call"), BOMBS.values(), ids=BOMBS)
def test_no_message_allocates_more_than_64_mb_and_four_times_its_length(data, call):
    assert peak(call) <= FREE + 4 * len(data)


def test_a_request_with_many_step_sizes_is_refused_before_the_site_computes():
    """10,000 step sizes take 80 KB, and a number for each of them and each row."""
    rng = np.random.default_rng(0)
    site = Site("a", Logistic(rng.normal(size=(2000, 2)), rng.choice([-1.0, 1.0], 2000)), build("newton"))
    part = ["Search", np.zeros(2).tobytes(), np.ones(2).tobytes(), np.ones(10_000).tobytes(), True]
    request = encode((b"run", 1, [part], None))
    assert peak(lambda: site.handle(request)) <= FREE + 4 * len(request)
    with pytest.raises(Error, match="at most 32 step sizes"):
        site.handle(request)


def test_a_request_of_many_parts_is_refused():
    part = ["Update", 1, np.zeros(2).tobytes(), 0.0]
    with pytest.raises(Error, match="length <= 2"):
        codec_of(build("newton"), 2).decode_request(encode((b"run", 1, [part] * 3, None)))


@pytest.mark.parametrize("t", [-1, 2**31, 2**63])
def test_an_iteration_is_a_small_number(t):
    part = ["Update", t, np.zeros(2).tobytes(), 0.0]
    with pytest.raises(Error, match="valid message"):
        codec_of(build("newton"), 2).decode_request(encode((b"run", 1, [part], None)))


def test_iterations_and_candidates_are_bounded_where_they_are_given_and_where_they_are_read():
    for make in (lambda: Done(iterations=10**9), lambda: TwoExchange(candidates=33)):
        with pytest.raises(ConfigError, match="from 1 to"):
            make()
    sent = msgspec.to_builtins(Done(), builtin_types=(bytes,)) | {"iterations": 10**9}
    with pytest.raises(Error, match="valid message"):
        Decoder(BUILT_IN, 2)(msgspec.msgpack.encode(sent))


def test_a_move_changes_its_frame_a_few_times_only():
    change = diagonal_change(np.ones(3))
    assert change_of(change * 2, 3).B.shape == (3, 3)
    with pytest.raises(Error, match="at most 4"):
        change_of(change * 5, 3)
    move = Move(1, change * 1000, encode_steps(np.ones(3), 0.1), 1.0, True)
    answer = Innovation(0.0, encode_steps(np.ones(3), 0.1), 1.0, encode_steps(np.ones(6), 0.1), 0.0)
    assert undecodable(move, answer, 3) is None  # the Master does not read its own move


def test_an_envelope_of_many_things_is_refused():
    data = b"\x94" + items(6 * MANY, b"\x01") + b"\x00\xc0\xc4\x00"
    assert peak(lambda: Host("a").handle(data)) <= FREE + 4 * len(data)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 65_535, 65_536, 65_537, 200_001])
@pytest.mark.parametrize("largest", [0, 3, 1000, 10**6])
def test_long_arrays_come_back_from_their_pieces(count, largest):
    x = np.random.default_rng(count).integers(-largest, largest, count, endpoint=True).astype(float)
    np.testing.assert_array_equal(decode_steps(encode_steps(x, 1.0), count), x)


def test_levels_and_interactions_that_a_table_does_not_have_make_no_columns():
    """A plan of a few KB cannot ask a site for a design of a million columns."""
    rows = 50
    table = {
        "y": np.arange(rows) / 7.0,
        "a": np.where(np.arange(rows) % 2, "u", "v"),
        "b": np.where(np.arange(rows) % 3, "u", "v"),
    }
    many = ("u", "v", *(f"{k}" for k in range(998)))
    for study in (
        Study(family="linear", formula="y ~ a:b"),
        Study(family="linear", target="y", columns=("a", "b"), max_levels=999),
    ):
        with pytest.raises(Error, match=r"100000\d columns|max_levels"):
            DesignPlan(study, ("a", "b"), {"a": many, "b": many}).table(table)
    with pytest.raises(Error, match="more than 10000"):
        Study(family="linear", target="y", columns=tuple(f"x{k}" for k in range(10_001)))


def test_the_largest_arrays_that_are_decoded_fit_too():
    """Just below the limit nothing is refused, and nothing takes more."""
    count = limits.FREE // 8
    assert len(decode_steps(ZEROS, count)) == count
    assert peak(lambda: decode_steps(ZEROS, count)) <= FREE
    n = int((2 * count) ** 0.5) - 1
    packed = np.ones(n + 1, "<f4").tobytes() + ONE + ZEROS
    assert peak(lambda: EntropyCoded().decode("packed", packed, n)) <= FREE + 4 * len(packed)
    with pytest.raises(Error, match="which exceeds the limit"):
        decode_steps(ZEROS, count + 8)
