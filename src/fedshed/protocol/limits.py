"""How much a message may make its reader allocate: 64 MB and 4 times its own length, whatever it says.

Arrays in float64 are views of the bytes that came, and cost nothing.  What can grow are coded arrays, whose
numbers take less than a byte each, and lists of many small things, which are objects once they are read.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from fedshed._utils.errors import CodecError

MOST_PARTS = 2  # of a request: a search, and the update at its full step
MOST_STEP_SIZES = 32  # of a search
MOST_STEPS = 8  # of each of the two recalibrations of an evaluation
MOST_LINES = 2 * MOST_STEPS - 1  # that both ask about: they share the first
FREE = 56 << 20  # bytes that any coded array may take; the rest of the 64 MB is for the work of decoding
TIMES = 4  # of its own length that a message may take beyond that
LONG = 2 << 20  # bytes of a message from which its items are counted first: shorter ones cannot hold many
MOST_ITEMS = 1 << 19

Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
Number: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]  # of an exchange
Version: TypeAlias = Annotated[int, Meta(ge=-1, lt=2**31)]  # -1: none


def check_numbers(count: int, length: int) -> None:
    """Refuse a coded array of `count` numbers in `length` bytes that would take too much memory."""
    if 8 * count > FREE + TIMES * length:
        raise CodecError(
            f"{length} bytes stand for {count} numbers, which exceeds the limit; send them as plain numbers "
            "(precision = Exact()), or fewer at a time"
        )


def check_items(data: bytes) -> None:
    """Refuse a long message that is made of too many small things; arrays count as one."""
    if len(data) <= LONG:
        return
    at, open_items, seen = 0, 1, 0
    while open_items and at < len(data):
        size, inside = _item(data, at)
        at, open_items, seen = at + size, open_items - 1 + inside, seen + 1
        if seen + open_items > MOST_ITEMS:
            raise CodecError(f"a message of {len(data)} bytes holds more than {MOST_ITEMS} items")


_FIXED = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9, 0xCA: 5, 0xCB: 9}
_FIXED |= {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_LISTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def _item(data: bytes, at: int) -> tuple[int, int]:
    """The bytes of an item of MessagePack without what is inside it, and how many items are inside."""
    tag = data[at]
    if 0xA0 <= tag < 0xC0:
        return 1 + (tag & 31), 0
    if 0x80 <= tag < 0xA0:
        return 1, (tag & 15) * (2 if tag < 0x90 else 1)
    if tag in _SIZED:
        width = _SIZED[tag]
        return 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big") + (0xC7 <= tag <= 0xC9), 0
    if tag in _LISTS:
        width, each = _LISTS[tag]
        return 1 + width, each * int.from_bytes(data[at + 1 : at + 1 + width], "big")
    return _FIXED.get(tag, 1), 0
