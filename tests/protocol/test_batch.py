"""Replies coded and read in batches have the bytes, and give the messages, of single ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed.algorithms.gradients import LocalScale
from fedshed.protocol.batch import batch_messages
from fedshed.protocol.codec import WRITTEN, Codec, encode
from fedshed.protocol.coded import code_rows
from fedshed.protocol.messages import Costs, Eigenpairs, Local, LocalHessian, Search, Undefined, Update
from fedshed.protocol.precision import Bits, Differences, EntropyCoded, Exact
from fedshed.protocol.quantize import decode_steps, encode_steps
from fedshed.protocol.replies import Reply

N = 3
MESSAGES = (Search, Costs, Undefined, Update, Local, LocalHessian, LocalScale)
PRECISIONS = [Bits(bits=5), EntropyCoded(), EntropyCoded(step=1e-5), Differences()]
FUZZ = settings(deadline=None, max_examples=30)
CODEC = Codec(MESSAGES, N)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
moderate = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))  # whose steps can be sent as float32


# --- arrays ------------------------------------------------------------------------------------------------


def stack_arrays(rng, count, shape):
    """Arrays of unlike sizes; one is 0, and one has entries that round to -0."""
    found = [rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6) for _ in range(count)]
    found[0] = np.zeros(shape)
    found[-1] = -np.abs(found[-1]) * (rng.random(shape) < 0.2) - 1e-9
    return np.stack(found)


@pytest.mark.parametrize(
    "precision", PRECISIONS, ids=lambda p: f"{type(p).__name__}-{getattr(p, 'step', '')}"
)
@given(st.integers(1, 7), st.integers(0, 6), st.integers(1, 130), st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_a_batch_of_arrays_has_the_bytes_of_single_arrays(precision, count, rows, n, seed):
    rng, rows = np.random.default_rng(seed), min(rows, n)
    some = {"matrix": (rows, n), "gradient": (n,), "vector": (n,), "packed": (n * (n + 1) // 2,)}
    for kind, shape in some.items():
        each = stack_arrays(rng, count, shape)
        for accuracy in (-0.1, 0.0, 1e-3, 10.0):
            coded, seen = precision.code(kind, each, accuracy)
            assert coded == [precision.encode(kind, one, accuracy) for one in each]
            decoded = [precision.decode(kind, data, n) for data in coded]
            assert seen.tobytes() == np.stack(decoded).tobytes()  # zeros have their sign


@given(st.integers(1, 200), st.floats(1e-4, 10.0), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_what_is_seen_is_what_is_decoded(n, step, seed):
    rng = np.random.default_rng(seed)
    x = np.append(rng.normal(size=n), [-1e-9, 0.0])
    (data,), (seen,) = code_rows(x[None, :], [step])
    assert data == encode_steps(x, step)
    assert seen.tobytes() == decode_steps(data, n + 2).tobytes()


# --- replies -----------------------------------------------------------------------------------------------


def arrays(size, values=numbers):
    return st.lists(values, min_size=size, max_size=size).map(lambda v: np.array(v, dtype=float))


def decreasing_pairs(values, vectors):
    """Two eigenpairs, and what follows them."""
    *values, rho = sorted(map(abs, values), reverse=True)
    return Eigenpairs(3, 0, np.array(values), np.reshape(vectors, (2, N)), float(rho), False)


def answers_of_one_shape(count, finite=numbers):
    """Answers of as many agents: all of one kind, with arrays of one length."""
    each = lambda *fields: st.lists(st.builds(*fields), min_size=count, max_size=count)  # noqa: E731
    costs = arrays(2, finite | st.just(np.inf))
    pairs = st.builds(decreasing_pairs, arrays(3, finite), arrays(2 * N, finite))
    return st.one_of(
        each(Local, finite, arrays(N, finite), st.none()),
        each(LocalHessian, finite, arrays(N, finite), arrays(6, finite)),
        each(LocalScale, finite, arrays(N, finite), arrays(N, finite)),
        each(Local, finite, arrays(N, finite), pairs),
        each(Costs, costs, st.none()),
        each(Costs, costs, costs),
        each(Costs, arrays(0), arrays(0)),
        each(Undefined),
    )


def replies_with(finite=numbers):
    return st.integers(4, 7).flatmap(
        lambda count: st.lists(answers_of_one_shape(count, finite), min_size=1, max_size=2).map(
            lambda parts: [list(each) for each in zip(*parts, strict=True)]
        )
    )


@pytest.mark.parametrize("precision", [Exact(), *PRECISIONS], ids=lambda p: type(p).__name__)
@given(replies_with(moderate), replies_with(moderate), st.integers(0, 2**40), st.integers(0, 300))
@FUZZ
def test_a_batch_of_replies_has_the_bytes_of_single_replies(precision, some, others, number, hessians):
    """Also where two shapes are mixed: each is a batch of its own."""
    codec = Codec(MESSAGES, N, precision)
    replies = [Reply(b"run!", number, hessians, parts) for parts in (*some, *others)]
    coded, seen = codec.encode_replies(replies, 1e-3, remember=False)
    assert coded == [codec.encode_reply(reply, 1e-3) for reply in replies]
    for row, parts in seen.items():
        assert encode(list(parts)) == encode(codec.decode_reply(coded[row]).parts)
    assert len(seen) == (0 if precision == Exact() else len(replies))


@given(replies_with(), st.data())
@FUZZ
def test_replies_read_in_a_batch_are_those_read_alone_or_left_to_be_read_alone(replies, data):
    """Whatever is changed: what is read in columns is what the plain decoder reads."""
    sent = [CODEC.encode_reply(Reply(b"run!", 7, 1, parts)) for parts in replies]
    for _ in range(data.draw(st.integers(0, 3))):
        k = data.draw(st.integers(0, len(sent) - 1))
        at, byte = data.draw(st.integers(0, len(sent[k]) - 1)), data.draw(st.integers(0, 255))
        sent[k] = sent[k][:at] + bytes([byte]) + sent[k][at + data.draw(st.integers(0, 1)) :]
    for batch in CODEC.decode_replies(sent, []):
        for row, parts in zip(batch.rows, batch.answers, strict=True):
            plain = CODEC.decode_reply(sent[row])
            head = batch.first.run, batch.first.number, batch.first.hessians
            assert head == (plain.run, plain.number, plain.hessians)
            assert CODEC.encode_reply(Reply(*head, list(parts))) == CODEC.encode_reply(plain)


def test_one_unreadable_reply_costs_only_itself():
    """Whichever of them it is: the others are read in a batch."""
    rng = np.random.default_rng(0)
    for unreadable in (0, 3, 9):
        sent = [
            CODEC.encode_reply(Reply(b"run!", 7, 1, [Local(1.0, g, None)])) for g in rng.normal(size=(10, N))
        ]
        sent[unreadable] = b"?"
        rows = sorted(row for batch in CODEC.decode_replies(sent, []) for row in batch.rows)
        assert rows == [k for k in range(10) if k != unreadable]


def test_replies_none_of_which_has_the_length_of_a_template_known_before():
    """Sites that have sent all their pairs answer in another length than those before them."""
    rng, templates = np.random.default_rng(0), []
    for part in (Local(1.0, rng.normal(size=N), None), LocalHessian(1.0, rng.normal(size=N), np.ones(6))):
        sent = [CODEC.encode_reply(Reply(b"run!", 7, 1, [part]))] * 5
        (batch,) = CODEC.decode_replies(sent, templates)
        assert batch.rows == list(range(5 - len(batch.rows), 5))
        assert len(batch.rows) >= 4  # one may be left to be read alone


@pytest.mark.parametrize("values", [(np.inf, np.inf), (-1.7e308, 1.7e308)])
def test_numbers_that_overflow_are_refused_without_a_warning(values):
    pairs = Eigenpairs(1, 0, np.array([3.0, 2.0]), np.ones((2, 3)), 0.1, False)
    good = CODEC.encode_reply(Reply(b"r", 1, 0, [Local(1.0, np.ones(3), pairs)]))
    bad = good.replace(np.array([3.0, 2.0]).tobytes(), np.array(values).tobytes())
    assert bad != good
    (batch,) = CODEC.decode_replies([*[good] * 6, bad], [])
    assert list(batch.rows) == list(range(6))


def test_messages_that_differ_in_more_than_numbers_are_no_batch():
    one = Local(1.0, np.ones(N), None)
    assert batch_messages([one, LocalHessian(1.0, np.ones(N), np.ones(6))]) is None
    assert batch_messages([one, Local(1.0, np.ones(N + 1), None)]) is None
    assert batch_messages([Update(1, np.ones(N)), Update(2, np.ones(N))]) is None


# --- replies that this process wrote and reads again -------------------------------------------------------


def remembered(codec, gradients):
    """Replies of agents with these gradients, and what the Master sees of them."""
    replies = [Reply(b"run!", 3, 0, [Local(1.0, g, None)]) for g in gradients]
    return codec.encode_replies(replies, 1e-3, remember=True)


def test_replies_are_known_once_by_all_their_bytes_to_a_reader_of_the_same_messages():
    codec = Codec((Local,), 40, Differences())
    replies, seen = remembered(codec, np.random.default_rng(0).normal(size=(5, 40)))
    others = Codec((Local,), 39, Differences()), Codec((Local,), 40, EntropyCoded())
    assert [reader.decode_replies(replies, []) for reader in others] == [[], []]
    assert codec.decode_replies(replies[:4], []) == codec.decode_replies(replies[::-1], []) == []
    (known,) = Codec((Local,), 40, Differences()).decode_replies([bytes(data) for data in replies], [])
    assert known.answers == [seen[row] for row in range(5)]
    for (local,), data in zip(known.answers, replies, strict=True):
        assert local.gradient.tobytes() == codec.decode_reply(data).parts[0].gradient.tobytes()
    assert codec.decode_replies(replies, []) == []  # it was read


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_replies_that_a_reader_refuses_are_not_known(odd):
    codec = Codec((Local,), 2, EntropyCoded())
    gradients = [np.array([1.0, k]) for k in range(4)]
    gradients[2][1] = odd
    replies, seen = remembered(codec, gradients)
    assert seen == {}
    assert codec.decode_replies(replies, []) == []


def test_what_is_remembered_is_bounded():
    codec = Codec((Local,), 10**6, Differences())
    replies, _ = remembered(codec, np.random.default_rng(0).normal(size=(8, 10**6)))
    assert WRITTEN.nbytes == 0
    assert codec.decode_replies(replies, []) == []


def test_replies_without_answers_are_read_alone():
    empty = CODEC.encode_reply(Reply(b"run!", 7, 0, []))
    good = [CODEC.encode_reply(Reply(b"run!", 7, 1, [Local(1.0, np.ones(N), None)])) for _ in range(5)]
    (batch,) = CODEC.decode_replies([empty, *good], [])
    assert list(batch.rows) == [1, 2, 3, 4, 5]
