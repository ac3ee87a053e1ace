"""Arrays of many agents coded in one call have the bytes of one after the other, and are seen as decoded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed.protocol.codec import Alike, Codec, Reply
from fedshed.protocol.coded import code_rows
from fedshed.protocol.coded_replies import WRITTEN
from fedshed.protocol.columns import columns_of
from fedshed.protocol.messages import Local
from fedshed.protocol.precision import Bits, Differences, EntropyCoded
from fedshed.protocol.quantize import decode_steps, encode_steps

PRECISIONS = [Bits(bits=5), EntropyCoded(), EntropyCoded(step=1e-5), Differences()]


def arrays(rng, count, shape):
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
def test_together_has_the_bytes_of_one_after_the_other(precision, count, rows, n, seed):
    rng, rows = np.random.default_rng(seed), min(rows, n)
    some = {"matrix": (rows, n), "gradient": (n,), "vector": (n,), "packed": (n * (n + 1) // 2,)}
    for kind, shape in some.items():
        each = arrays(rng, count, shape)
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


def written(codec, gradients):
    """Replies of agents with these gradients, remembered; and what they hold."""
    columns = columns_of([Local(1.0, g, None) for g in gradients])
    replies, seen = codec.encode_replies(b"run!", 3, 0, [columns], 1e-3)
    first = Reply(b"run!", 3, 0, [part.first for part in seen])
    codec.remember(replies, [Alike(range(len(replies)), first, seen)])
    return replies, seen


def test_replies_are_known_once_by_all_their_bytes_to_a_reader_of_the_same_messages():
    rng = np.random.default_rng(0)
    codec = Codec((Local,), 40, Differences())
    replies, seen = written(codec, rng.normal(size=(5, 40)))
    others = Codec((Local,), 39, Differences()), Codec((Local,), 40, EntropyCoded())
    assert [reader.decode_replies(replies, []) for reader in others] == [[], []]
    assert codec.decode_replies(replies[:4], []) == codec.decode_replies(replies[::-1], []) == []
    (known,) = Codec((Local,), 40, Differences()).decode_replies([bytes(data) for data in replies], [])
    assert known.parts == seen
    for g, data in zip(seen[0].fields["gradient"], replies, strict=True):
        assert g.tobytes() == codec.decode_reply(data).parts[0].gradient.tobytes()
    assert codec.decode_replies(replies, []) == []  # it was read


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_replies_that_a_reader_refuses_are_not_known(odd):
    codec = Codec((Local,), 2, Bits(bits=4))
    columns = columns_of([Local(1.0, np.array([1.0, k]), None) for k in range(4)])
    columns.fields["gradient"][2, 1] = odd
    replies = [codec.encode_reply(Reply(b"run!", 3, 0, [one]), 0.0) for one in columns.messages()]
    codec.remember(replies, [Alike(range(4), Reply(b"run!", 3, 0, [columns.first]), [columns])])
    assert codec.decode_replies(replies, []) == []


def test_what_is_remembered_is_bounded():
    codec = Codec((Local,), 10**6, Differences())
    gradients = np.random.default_rng(0).normal(size=(8, 10**6))
    replies, _ = written(codec, gradients)
    assert WRITTEN.held == 0
    assert codec.decode_replies(replies, []) == []
