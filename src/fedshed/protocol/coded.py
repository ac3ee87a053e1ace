"""Arrays of many agents in uniform steps, and those that this process coded itself: it need not decode them.

An agent goes on from what the Master sees of its answer, and where both are in one process the Master reads
what was just written.  A coded array stands for the same numbers wherever it is decoded, so they are found by
its bytes; a stream that is not known is decoded, and verified by encoding it again (`quantize`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.protocol.memo import Memo
from fedshed.protocol.quantize import (
    LARGEST,
    Symbols,
    decode_steps,
    entropy_encode,
    quantized,
    sendable,
    stream,
)


def encode_known(x: Vector, step: float) -> bytes:
    """As `encode_steps`; the symbols are remembered."""
    head, sent = sendable(step)
    symbols = quantized(x, sent)
    data = head + entropy_encode(symbols)
    return _remembered(data, sent, symbols) if np.abs(symbols).max(initial=0.0) < LARGEST else data


def decode_known(data: bytes, count: int, last: bool = True) -> Vector:
    """As `decode_steps`; what is read for the `last` time is forgotten."""
    key = count, data
    known: tuple[float, Symbols] | None = _SYMBOLS.drop(key) if last else _SYMBOLS.get(key)
    if known is None:
        return decode_steps(data, count)
    step, symbols = known
    return symbols.astype(float) * step


def encode_all(X: Matrix, steps: Sequence[float]) -> list[bytes]:
    """Each row by `encode_known` in its own step: one pass over all of them, and a range coder for each."""
    heads, sent = zip(*map(sendable, steps), strict=True)
    symbols = quantized(X, np.array(sent)[:, None])
    largest = np.abs(symbols).max(axis=1, initial=0.0)
    small = largest < LARGEST
    whole: NDArray[np.int32] = np.where(small[:, None], symbols, 0.0).astype(np.int32)
    others, sums = np.count_nonzero(whole, axis=1).tolist(), np.abs(whole).sum(axis=1).tolist()
    return [
        _remembered(heads[i] + stream(whole[i], int(largest[i]), others[i], sums[i]), sent[i], whole[i])
        if small[i]
        else encode_known(X[i], steps[i])
        for i in range(len(X))
    ]


def _remembered(data: bytes, step: float, symbols: NDArray[Any]) -> bytes:
    narrow = symbols.astype(np.int16)  # they are below LARGEST
    _SYMBOLS.put((len(narrow), data), (step, narrow), narrow.nbytes + len(data) + OVERHEAD)
    return data


OVERHEAD = 500  # bytes of the objects that hold a coded array
_SYMBOLS = Memo(32 * 2**20)
