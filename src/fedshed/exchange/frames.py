"""Frames on a byte stream: a length, the number of an exchange, and that many bytes, up to a limit."""

from __future__ import annotations

import asyncio
import socket
import struct

from fedshed._utils.errors import ProtocolError

HEAD = struct.Struct("<IQ")
MOST_BYTES = 1 << 28  # of one frame


def frame(number: int, payload: bytes) -> bytes:
    """A payload as it travels."""
    return HEAD.pack(len(payload), number) + payload


def _length(head: bytes, most: int) -> tuple[int, int]:
    length, number = HEAD.unpack(head)
    if length > most:
        raise ProtocolError(f"a frame of {length} bytes exceeds the limit of {most} bytes")
    return length, number


async def read(reader: asyncio.StreamReader, most: int = MOST_BYTES) -> tuple[int, bytes]:
    """The next frame of a stream."""
    length, number = _length(await reader.readexactly(HEAD.size), most)
    return number, await reader.readexactly(length)


def receive(connection: socket.socket, most: int = MOST_BYTES) -> tuple[int, bytes]:
    """The next frame of a socket; ConnectionError where it ends."""
    length, number = _length(_exactly(connection, HEAD.size), most)
    return number, _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError("the other side closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
