"""A site as a separate process: `python -m fedshed.exchange.agent FOLDER`.

The folder holds what the site needs, which never leaves it.  The process connects to the Master, answers, and
connects again when the connection is lost; it ends when its standard input ends, so it never runs longer than
the process that started it.  It keeps nothing: after it was killed and started again, it answers as before.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct
from threadpoolctl import threadpool_limits

from fedshed._utils.errors import ProtocolError
from fedshed._utils.files import write_atomically
from fedshed.exchange import frames
from fedshed.exchange.site_files import read_site

RETRY_SECONDS = 0.05
Answer: TypeAlias = Callable[[bytes], bytes]


class Link(Struct, frozen=True):
    """Who a process is to the Master, and where it finds it."""

    name: str
    token: bytes
    address: str  # the file with the Master's host and port


def write_link(folder: Path, name: str, token: bytes, address: Path) -> None:
    """What a process needs to connect, in its folder."""
    link = Link(name, token, str(address.resolve()))
    write_atomically(folder / "link", msgspec.msgpack.encode(link))


def serve(answer: Answer, link: Link, connection: socket.socket) -> None:
    """Answer the newest request, again and again; those that were overtaken while it was away are left."""
    hello = msgspec.msgpack.encode((link.name, link.token))
    connection.sendall(frames.frame(0, hello))
    while True:
        number, request = frames.receive(connection)
        while select.select([connection], [], [], 0)[0]:
            number, request = frames.receive(connection)
        connection.sendall(frames.frame(number, answer(request)))


def run(folder: Path, answer: Answer) -> None:
    """Connect and serve until the process ends."""
    link = msgspec.msgpack.decode((folder / "link").read_bytes(), type=Link)
    while True:
        try:
            host, port = Path(link.address).read_text().split()
            with socket.create_connection((host, int(port)), timeout=5.0) as connection:
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                serve(answer, link, connection)
        except (OSError, ValueError, ProtocolError):
            time.sleep(RETRY_SECONDS)


def main(read: Callable[[Path], Answer]) -> None:
    """The life of a process: what its folder holds answers, until its standard input ends."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    folder = Path(sys.argv[1])
    with threadpool_limits(1):
        run(folder, read(folder))


def _end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(lambda folder: read_site(folder).answer)
