"""Lossy replies of many agents: the arrays of one field are coded in one call, and seen without decoding.

An agent goes on from what the Master sees of its answer, and where both are in one process the Master reads
what was just written.  Coded bytes stand for the same numbers wherever they are decoded, so the numbers of
replies that this process wrote are found by their bytes; what comes from elsewhere is decoded, and verified
by encoding it again (`quantize`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from fedshed.protocol.columns import Columns, each
from fedshed.protocol.forms import Encode
from fedshed.protocol.kinds import kinds_of
from fedshed.protocol.limits import FREE
from fedshed.protocol.memo import Memo
from fedshed.protocol.precision import Precision

WRITTEN = Memo(FREE)  # so no reply is known that a decoder would refuse for its size


def encode_columns(
    head: tuple[bytes, int, int],
    parts: Sequence[Columns],
    precision: Precision,
    accuracy: float,
    encode: Encode,
) -> tuple[list[bytes], list[Columns]]:
    """Each reply as `Codec.encode_reply` writes it, and the answers as the Master sees them."""
    found = [_coded(part, precision, accuracy) for part in parts]
    answers = zip(*(fields for fields, _ in found), strict=True)
    return [encode((*head, one)) for one in answers], [seen for _, seen in found]


def _coded(part: Columns, precision: Precision, accuracy: float) -> tuple[Iterable[Any], Columns]:
    """The fields of each message as they travel, after its tag, and the messages as they are seen."""
    columns, seen = list[Iterable[Any]](), dict[str, Any]()
    for name, kind in kinds_of(part.kind).items():
        value = part.fields[name]
        if isinstance(value, Columns):
            column, value = _coded(value, precision, accuracy)
        elif kind is not None and isinstance(value, np.ndarray):
            column, value = precision.code(kind, value, accuracy)
        else:
            column = each(value, part.count)
        columns.append(column)
        seen[name] = value
    tags = repeat(part.kind.__struct_config__.tag, part.count)
    return list(zip(tags, *columns, strict=True)), Columns(part.kind, seen, part.count)
