"""Arrays in few bits: decoded is what was quantised, at the size of its entropy; other bytes are refused."""

from __future__ import annotations

import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedshed import CodecError
from fedshed.algorithms import FedNL, Newton, QnShed
from fedshed.algorithms.qn_shed import LocalWhole
from fedshed.algorithms.rivals.compressors import Correction
from fedshed.linalg.arrays import pack
from fedshed.protocol import quantize
from fedshed.protocol.codec import codec_of
from fedshed.protocol.messages import Eigenpairs, Local, LocalHessian
from fedshed.protocol.precision import Bits, EntropyCoded
from fedshed.protocol.quantize import (
    LARGEST,
    decode_rows,
    decode_steps,
    encode_rows,
    encode_steps,
    entropy_decode,
    entropy_encode,
    quantize_values,
)
from fedshed.protocol.replies import Reply

FUZZ = settings(deadline=None, max_examples=200)
QUICK = settings(deadline=None, max_examples=80)
INT32 = 2**31 - 1
PRECISIONS = (Bits(bits=1), Bits(bits=4), Bits(bits=16), EntropyCoded(), EntropyCoded(step=0.01))


def survives(x: np.ndarray) -> bool:
    decoded = entropy_decode(entropy_encode(x), x.size)
    return decoded.dtype == np.int32 and np.array_equal(decoded, np.ravel(x))


# --- the entropy coder ------------------------------------------------------------------------------

symbols = st.one_of(
    st.integers(-1, 1),
    st.integers(-40, 40),
    st.integers(LARGEST - 3, LARGEST + 3),
    st.integers(-LARGEST - 3, -LARGEST + 3),
    st.integers(-INT32, INT32),
)


@given(st.data(), symbols)
@FUZZ
def test_integers_of_any_shape_and_size_come_back(data, centre):
    """Arrays of one kind of value, and of that kind with one outlier."""
    shape = data.draw(array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=7))
    spread = data.draw(st.sampled_from([0, 1, 5, 1000]))
    low, high = max(centre - spread, -INT32), min(centre + spread, INT32)
    x = data.draw(arrays(np.int32, shape, elements=st.integers(low, high)))
    assert survives(x)
    if x.size:
        x.flat[data.draw(st.integers(0, x.size - 1))] = data.draw(symbols)
        assert survives(x)


@given(st.integers(0, 10**6), st.integers(0, 3000), st.floats(-3, 9), st.sampled_from(["normal", "cauchy"]))
@QUICK
def test_heavy_tails_and_all_scales_come_back(seed, count, log_scale, kind):
    rng = np.random.default_rng(seed)
    x = getattr(rng, f"standard_{kind}")(count) * 10**log_scale
    assert survives(np.rint(np.clip(x, -INT32, INT32)).astype(np.int32))


@pytest.mark.parametrize(
    "x",
    [[], [0], [0] * 999, [7], [-7] * 999, [1, -1] * 500, [0] * 10**5 + [1], [0] * 999 + [LARGEST - 1],
     [LARGEST - 1, 1 - LARGEST], [LARGEST], [-LARGEST], [INT32, -INT32, 0]],
    ids=lambda x: f"{len(x)} of {x[:1]}",
)  # fmt: skip
def test_edges_of_the_alphabet_come_back(x):
    assert survives(np.array(x, dtype=np.int32))


def test_the_smallest_int32_comes_back():
    assert survives(np.array([-(2**31)], dtype=np.int32))


def test_integers_that_do_not_fit_are_refused():
    with pytest.raises((CodecError, ValueError, OverflowError)):
        entropy_encode(np.array([2**32 + 5]))


def entropy(x: np.ndarray) -> float:
    """Bits of all symbols by their own frequencies: no code without memory needs fewer."""
    counts = np.unique(x, return_counts=True)[1]
    return float(-(counts * np.log2(counts / x.size)).sum())


def laplace(scale: float, count: int = 40_000) -> np.ndarray:
    return np.rint(np.random.default_rng(3).laplace(0, scale, count)).astype(np.int32)


@pytest.mark.parametrize("scale", [0.15, 0.3, 1, 3, 10, 30, 100, 200])
def test_size_is_the_entropy_of_laplace_symbols_to_two_percent(scale):
    x = laplace(scale)
    assert len(entropy_encode(x)) <= 1.02 * entropy(x) / 8 + 16


@pytest.mark.parametrize("scale", [0.06, 500, 1000, 2000, 10**5, 10**7])
def test_size_is_the_entropy_where_symbols_are_rare_or_large(scale):
    x = laplace(scale)
    ideal = entropy(x) if scale < 1 else x.size * np.log2(2 * np.e * scale)  # of so many values few repeat
    assert len(entropy_encode(x)) <= 1.02 * ideal / 8 + 16


def test_no_array_costs_more_than_its_plain_integers():
    x = np.random.default_rng(0).integers(-LARGEST + 1, LARGEST, 2000).astype(np.int32)
    assert len(entropy_encode(x)) <= 4 * x.size + 16


# --- vectors in steps -------------------------------------------------------------------------------

numbers = st.floats(-1e6, 1e6).map(lambda v: v if abs(v) > 1e-30 else 0.0)


@given(st.lists(numbers, max_size=40), st.floats(1e-3, 1e7))
@example([0.5, -0.5, 1.5], 1.0)  # ties
@FUZZ
def test_a_vector_in_steps_is_off_by_half_a_step(values, step):
    x = np.array(values)
    raw = encode_steps(x, step)
    decoded, sent = decode_steps(raw, len(x)), float(np.float32(step))
    assert np.array_equal(decoded, sent * quantize_values(x, sent).astype(float))
    assert np.abs(decoded - x).max(initial=0) <= sent / 2 * (1 + 1e-9)


@given(st.lists(numbers, max_size=20).map(np.array), st.floats(0.5, 3))
@QUICK
def test_the_dead_zone_is_zero_and_outside_it_nothing_changes(x, dead_zone):
    symbols, plain = quantize_values(x, 1e3, dead_zone), quantize_values(x, 1e3)
    inside = np.abs(x / 1e3) < dead_zone
    assert not symbols[inside].any()
    assert np.array_equal(symbols[~inside], plain[~inside])


@pytest.mark.parametrize(
    ("x", "step"),
    [
        pytest.param(1e-50, 1e-51, id="below float32"),
        pytest.param(1e45, 1e44, id="above float32"),
        pytest.param(1.0, 1e-10, id="symbols above int32"),
    ],
)
def test_a_step_that_cannot_be_sent_is_refused_or_kept(x, step):
    """A saturated logistic agent has a Hessian of 1e-50, a diverging run a gradient of 1e45."""
    try:
        decoded = decode_steps(encode_steps(np.array([x, -x]), step), 2)
    except CodecError:
        return
    np.testing.assert_allclose(decoded, [x, -x], rtol=0, atol=step)


# --- rows in bits -----------------------------------------------------------------------------------

shapes = st.tuples(st.integers(0, 5), st.integers(1, 9))
rows_of = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=numbers))


def bound(row: np.ndarray, bits: int) -> float:
    """Half a level of a row whose largest entry has the highest level; all of a row of 0 bits."""
    top = 2 ** (bits - 1) - 1
    largest = float(np.abs(row).max())
    return largest * (1 / (2 * top) + 1e-7 if bits > 1 else 1.0)


@given(rows_of, st.data())
@FUZZ
def test_rows_are_off_by_half_a_level_of_their_own(rows, data):
    count, n = rows.shape
    bits = np.array(data.draw(st.lists(st.integers(0, 16), min_size=count, max_size=count)), dtype=np.int64)
    raw = encode_rows(rows, bits)
    assert len(raw) == sum(1 + (4 + (b * n + 7) // 8 if b else 0) for b in bits.tolist())
    decoded = decode_rows(raw, count, n)
    assert decoded.shape == rows.shape
    for row, found, b in zip(rows, decoded, bits.tolist(), strict=True):
        assert np.abs(found - row).max() <= bound(row, b)
        if b == 0 or not row.any():
            assert not found.any()
    assert np.array_equal(decode_rows(encode_rows(decoded, bits), count, n), decoded)  # a fixed point


@pytest.mark.parametrize("bits", range(1, 17))
def test_each_bit_halves_the_error_of_a_unit_vector(bits):
    v = np.random.default_rng(bits).normal(size=(1, 400))
    v /= np.linalg.norm(v)
    error = np.linalg.norm(decode_rows(encode_rows(v, np.array([bits])), 1, 400) - v)
    spread = np.abs(v).max() * np.sqrt(400 / 12)  # uniform in half a level
    assert error <= (1.05 * spread / (2 ** (bits - 1) - 1) if bits > 1 else 0.65)


def test_one_bit_keeps_signs_and_the_mean_magnitude():
    row = np.array([[0.5, -0.25, 0.75, -1.0]])
    assert np.array_equal(decode_rows(encode_rows(row, np.array([1])), 1, 4), 0.625 * np.sign(row))


@given(st.integers(1, 6), st.integers(0, 10**6), st.sampled_from(PRECISIONS))
@QUICK
def test_every_kind_of_array_survives_its_precision(n, seed, precision):
    """Shapes are kept, errors are within what the precision says, and zero stays zero."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, n + 1))
    arrays_of = {
        "gradient": rng.normal(size=n),
        "vector": rng.normal(size=n),
        "matrix": rng.normal(size=(count, n)),
        "packed": pack(np.cov(rng.normal(size=(n, 2 * n + 1))).reshape(n, n)),
    }
    for kind, x in arrays_of.items():
        decoded = precision.decode(kind, precision.encode(kind, x, 1e-3), n)
        assert decoded.shape == x.shape
        if kind == "gradient":
            assert np.abs(decoded - x).max() <= 0.5001e-3
        elif kind == "vector":
            np.testing.assert_allclose(decoded, x, rtol=1e-7)
        elif kind == "matrix" and isinstance(precision, EntropyCoded) and x.size:
            assert np.abs(decoded - x).max() <= 0.501 * precision.step * np.sqrt(np.mean(x**2))
        zero = precision.decode(kind, precision.encode(kind, 0 * x, 1e-3), n)
        assert not zero.any()


@given(st.lists(numbers, min_size=1, max_size=20).map(np.array), st.sampled_from(PRECISIONS))
@QUICK
def test_a_gradient_asked_for_exactly_is_exact(g, precision):
    assert np.array_equal(precision.decode("gradient", precision.encode("gradient", g, 0.0), len(g)), g)


@given(st.lists(numbers, min_size=1, max_size=20).map(np.array), st.floats(-30, 30))
@FUZZ
def test_a_gradient_is_as_accurate_as_asked_or_better(g, exponent):
    """An accuracy too fine for 32 bits gives the exact gradient."""
    accuracy = 10**exponent
    decoded = Bits().decode("gradient", Bits().encode("gradient", g, accuracy), len(g))
    assert np.abs(decoded - g).max() <= accuracy / 2 * (1 + 1e-6)


def test_a_zero_hessian_of_a_large_problem_comes_back():
    n = 600
    zero = np.zeros(n * (n + 1) // 2)
    for precision in PRECISIONS:
        assert not precision.decode("packed", precision.encode("packed", zero, 0.0), n).any()


def test_a_zero_hessian_of_n_700_comes_back():
    n = 700
    zero = np.zeros(n * (n + 1) // 2)
    assert not EntropyCoded().decode("packed", EntropyCoded().encode("packed", zero, 0.0), n).any()


# --- bytes that are not what they should be ---------------------------------------------------------


def refused_or_sound(decode, shape: tuple[int, ...]) -> None:
    """CodecError, or an array of the shape that both ends know; any other exception fails the test."""
    try:
        array = decode()
    except CodecError:
        return
    assert array.shape[-1] == shape[-1]
    assert len(array.shape) == len(shape)


@given(st.binary(max_size=80), st.integers(0, 60), st.integers(0, LARGEST), st.booleans())
@settings(FUZZ, max_examples=500)
def test_random_streams_are_refused_or_are_integers(data, count, largest, sound):
    if sound:  # side information that makes sense, so that the range decoder sees the noise
        data = data[:2] + largest.to_bytes(2, "little") + data[4 : len(data) // 4 * 4]
    refused_or_sound(lambda: entropy_decode(data, count), (count,))
    refused_or_sound(lambda: decode_steps(data, count), (count,))
    refused_or_sound(lambda: decode_rows(data, 3, 5), (3, 5))


@given(st.integers(0, 10**6), st.data())
@settings(FUZZ, max_examples=300)
def test_altered_streams_are_refused_or_are_integers_no_larger_than_they_say(seed, data):
    rng = np.random.default_rng(seed)
    x = np.rint(rng.laplace(0, 10 ** rng.uniform(-1, 3), int(rng.integers(1, 300)))).astype(np.int32)
    raw = bytearray(entropy_encode(x))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    refused_or_sound(lambda: entropy_decode(bytes(raw), len(x)), x.shape)


@given(rows_of.filter(lambda rows: rows.size), st.integers(1, 16), st.data())
@FUZZ
def test_rows_that_are_cut_or_followed_by_more_are_refused(rows, bits, data):
    count, n = rows.shape
    raw = encode_rows(rows, np.full(count, bits))
    for wrong in (raw[: data.draw(st.integers(0, len(raw) - 1))], raw + b"\0"):
        with pytest.raises(CodecError):
            decode_rows(wrong, count, n)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
def test_scales_and_steps_that_are_not_finite_are_refused(scale):
    four = np.float32(scale).tobytes()
    with pytest.raises(CodecError, match="finite"):
        decode_rows(b"\x08" + four + bytes(5), 1, 5)
    with pytest.raises(CodecError, match="finite"):
        decode_steps(four + entropy_encode(np.ones(5)), 5)


@pytest.mark.parametrize("cut", [4, 8, 40])
def test_a_stream_cut_at_a_word_is_refused(cut):
    x = laplace(3, 500)
    with pytest.raises(CodecError):
        entropy_decode(entropy_encode(x)[:-cut], len(x))


@pytest.mark.parametrize("stream", [laplace(3, 500), np.zeros(500)], ids=["laplace", "zero"])
def test_a_stream_followed_by_more_is_refused(stream):
    with pytest.raises(CodecError):
        entropy_decode(entropy_encode(stream) + b"more", 500)


@given(st.integers(0, 10**6), st.integers(1, 2**32 - 1))
@FUZZ
def test_symbols_have_one_stream_only(seed, other):
    """Many last words say the same to a range decoder; all but the encoder's own are refused."""
    x = np.random.default_rng(seed).integers(-9, 10, 40).astype(np.int32)
    raw = entropy_encode(x)
    last = (int.from_bytes(raw[-4:], "little") ^ other).to_bytes(4, "little")
    try:
        decoded = entropy_decode(raw[:-4] + last, len(x))
    except CodecError:
        return
    assert not np.array_equal(decoded, x)


@pytest.mark.parametrize(("bits", "high"), [(22, 512), (22, -513), (24, 128), (24, -129)])
def test_a_split_stream_of_more_than_32_bits_is_refused(bits, high):
    """The rest of a symbol shifted back to its place may lie just inside int32, and no further."""
    inside = high - 1 if high > 0 else high + 1
    for rest, fits in ((inside, True), (high, False)):
        low = np.packbits(np.ones(bits, np.uint8)).tobytes()
        raw = bytes([0, 0, bits, 0xFF]) + low + entropy_encode(np.array([rest]))
        if fits:
            assert entropy_decode(raw, 1)[0] == (rest << bits) + 2**bits - 1
        else:
            with pytest.raises(CodecError, match="32 bits"):
                entropy_decode(raw, 1)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_cannot_be_put_into_steps(number):
    with pytest.raises(CodecError, match="32 bits"):
        encode_steps(np.array([1.0, number]), 0.1)


@pytest.mark.parametrize("word", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FA00000])  # the last one signals
@pytest.mark.parametrize("precision", [Bits(), EntropyCoded()], ids=["bits", "entropy-coded"])
def test_plain_numbers_among_coded_ones_must_be_finite(precision, word):
    """Vectors and scales travel as float32, gradients asked for exactly as float64."""
    single, double = word.to_bytes(4, "little"), np.array([word], "<u4").view("<f4")
    with pytest.raises(CodecError, match="NaN or infinity"):
        precision.decode("vector", bytes(4) + single, 2)
    with pytest.raises(CodecError, match="NaN or infinity"):
        precision.decode("packed", bytes(4) + single + bytes(40), 2)
    with np.errstate(invalid="ignore"), pytest.raises(CodecError, match="NaN or infinity"):
        precision.decode("gradient", b"\0" + bytes(8) + double.astype("<f8").tobytes(), 2)


# --- whole messages ---------------------------------------------------------------------------------

N = 5
_rng = np.random.default_rng(0)
_g, _rows, _packed = _rng.normal(size=N), np.linalg.qr(_rng.normal(size=(N, N)))[0][:2], _rng.normal(size=15)
MESSAGES = [
    (QnShed, Local(1.0, _g, Eigenpairs(1, 0, np.array([3.0, 2.0]), _rows, 1.0, False))),
    (QnShed, Local(1.0, _g, None)),
    (QnShed, LocalWhole(1.0, _g, 4, _packed)),
    (Newton, LocalHessian(1.0, _g, _packed)),
    (FedNL, Correction(1.0, _g, 3, np.array([3.0, -2.0]), _rows)),
]


@given(st.sampled_from(MESSAGES), st.sampled_from(PRECISIONS), st.data())
@settings(FUZZ, max_examples=400)
def test_lossy_replies_are_read_or_refused_whatever_happened_to_them(sent, precision, data):
    """Cut: refused.  Altered: refused, or a message whose arrays have the right shapes and are finite."""
    algorithm, message = sent
    codec = codec_of(algorithm(precision=precision), N)
    whole = codec.encode_reply(Reply(b"run!", 1, 0, [message]), 0.01)
    assert type(codec.decode_reply(whole).parts[0]) is type(message)
    with pytest.raises(CodecError):
        codec.decode_reply(whole[: data.draw(st.integers(0, len(whole) - 1))])
    index, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    try:
        reply = codec.decode_reply(whole[:index] + bytes([byte]) + whole[index + 1 :])
    except CodecError:
        return
    for part in reply.parts:
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if isinstance(value, np.ndarray):
                assert np.isfinite(value).all()
                assert value.shape[-1] in (N, 15) or value.ndim == 1


def peak_of(decode) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def claim(rows: int, *rest: bytes) -> bytes:
    """Coded rows that say how many they are."""
    return rows.to_bytes(4, "little") + b"".join(rest)


ALL_ZERO = np.float32(1).tobytes() + entropy_encode(np.zeros(1))


@pytest.mark.parametrize("kind", ["matrix", "packed"])
@pytest.mark.parametrize("rows", [1 << 20, (1 << 20) + 1, (1 << 32) - 1])
@pytest.mark.parametrize("precision", [Bits(), EntropyCoded()], ids=["bits", "entropy-coded"])
def test_a_message_that_claims_many_rows_allocates_nothing(precision, rows, kind):
    rest = (b"\0" * 20,) if isinstance(precision, Bits) else (ALL_ZERO,)
    assert peak_of(lambda: precision.decode(kind, claim(rows, *rest), N)) < 200_000


def test_a_claim_beyond_memory_is_the_codecs_error():
    codec = codec_of(Newton(precision=Bits()), 300)
    message = ["LocalHessian", 1.0, b"\0" + bytes(8 * 300), claim(1 << 20)]
    with pytest.raises(CodecError):
        codec.decode_reply(msgspec.msgpack.encode([b"run!", 1, 0, [message]]))


@pytest.mark.parametrize("precision", [Bits(), EntropyCoded()], ids=["bits", "entropy-coded"])
def test_more_rows_than_n_are_refused(precision):
    """12 bytes become 16,384 times as many numbers."""
    raw = claim(30_000, b"\0" * 30_000 if isinstance(precision, Bits) else ALL_ZERO)
    assert peak_of(lambda: precision.decode("matrix", raw, N)) < 200_000


def test_a_stream_of_four_bytes_allocates_no_more_than_its_alphabet():
    """The largest alphabet has 2 LARGEST - 1 symbols; its table is all that a short stream can ask for."""
    side = bytes([1, 1]) + (LARGEST - 1).to_bytes(2, "little")
    tracemalloc.start()
    refused_or_sound(lambda: entropy_decode(side + bytes(8), 4), (4,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 8 * 2 * LARGEST


@pytest.mark.parametrize("tail", [0, 57, 100, 131, 255])
def test_the_model_is_made_of_operations_that_round_alike_everywhere(tail):
    """Products and sums one after the other, as a loop of Python's floats has them: no powers."""
    more = quantize.power_of_two(tail - 100, 11)
    assert more == pytest.approx(2 ** ((tail - 100) / 11), rel=1e-15)
    ratio, power, total = more / (1 + more), 1.0, 0.0
    for weight, summed in zip(*quantize._geometric(tail), strict=True):
        total += power + 1e-9
        assert (weight, summed) == (power + 1e-9, total)
        power *= ratio


def test_logarithms_beyond_the_largest_are_refused_and_the_others_come_back():
    logs = np.array([-4000.0, 4000.0, 0.0, 3999.0])
    assert np.array_equal(quantize.decode_logs(quantize.encode_logs(logs), 4, 4000), logs)
    with pytest.raises(CodecError, match="out of range"):
        quantize.decode_logs(quantize.encode_logs(logs), 4, 3999)
