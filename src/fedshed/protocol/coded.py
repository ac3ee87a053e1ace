"""Arrays of many agents in uniform steps: quantised in one pass, and seen as they will be decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedshed.linalg.arrays import Matrix
from fedshed.protocol.quantize import LARGEST, entropy_encode, quantize_values, sendable, stream


def code_rows(X: Matrix, steps: Sequence[float]) -> tuple[list[bytes], Matrix]:
    """Each row by `encode_steps` in its own step, and all as `decode_steps` gives them."""
    heads, sent = zip(*map(sendable, steps), strict=True)
    scale = np.array(sent)[:, None]
    symbols = quantize_values(X, scale)
    symbols += 0.0  # none is -0
    sizes = np.abs(symbols)
    largest = sizes.max(axis=1, initial=0.0)
    small = np.asarray(largest < LARGEST)
    indices = (symbols if small.all() else np.where(small[:, None], symbols, 0.0)) + largest[:, None]
    each = zip(
        heads, indices.astype(np.int32), largest.tolist(), np.count_nonzero(sizes, axis=1).tolist(),
        sizes.sum(axis=1).tolist(), small.tolist(), symbols, strict=True,
    )  # fmt: skip
    coded = [
        head + (stream(row, int(most), others, total) if fits else entropy_encode(wide))
        for head, row, most, others, total, fits, wide in each
    ]
    return coded, symbols * scale
