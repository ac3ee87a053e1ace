"""The Master's end of connections on this machine: sites connect, identify themselves, answer in time."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from fedshed._utils.errors import ProtocolError
from fedshed._utils.files import write_atomically
from fedshed.exchange import frames

HOST = "127.0.0.1"
HELLO_SECONDS = 5.0
GONE = (OSError, asyncio.IncompleteReadError, TimeoutError, ProtocolError, msgspec.MsgspecError)


class Hub:
    """A transport to sites that connect here, each known by its name and a token, never by its connection.

    A site that was away is sent the open request again when it comes back; what comes after the deadline is
    handed over with a later exchange.  The port is written to the file `address`, where sites look for it.
    """

    stateless = False

    def __init__(
        self, tokens: Mapping[str, bytes], address: str | Path, deadline: float = 10.0,
        most_bytes: int = frames.MOST_BYTES,
    ) -> None:  # fmt: skip
        self._tokens, self._deadline, self._most = dict(tokens), deadline, most_bytes
        self._connections: set[asyncio.StreamWriter] = set()
        self._links: dict[str, asyncio.StreamWriter] = {}  # the newest connection of each site
        self._open: dict[str, bytes] = {}
        self._number, self._arrived = 0, list[tuple[str, bytes]]()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._welcome, HOST, 0))
        port = self._server.sockets[0].getsockname()[1]
        write_atomically(address, f"{HOST} {port}".encode())

    def agents(self) -> Sequence[str]:
        """Names of the sites that may connect."""
        return sorted(self._tokens)

    def exchange(self, payloads: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
        """Send, and return what came back by the deadline, and what came late since the last exchange."""
        self._number += 1
        self._open = dict(payloads)
        for i in payloads:
            self._send(i)
        self._loop.run_until_complete(self._until(lambda: not self._open, self._deadline))
        self._open = {}
        arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self, seconds: float) -> None:
        """Until every site has connected once."""
        self._loop.run_until_complete(self._until(lambda: len(self._links) == len(self._tokens), seconds))
        missing = sorted(set(self._tokens) - set(self._links))
        if missing:
            raise ProtocolError(f"sites {missing} did not connect within {seconds:g} s")

    def close(self) -> None:
        """Close all connections."""
        self._server.close()
        for writer in self._connections:
            writer.transport.abort()
        while tasks := asyncio.all_tasks(self._loop):
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _until(self, done: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()

    def _send(self, i: str) -> None:
        """Send the open request; a site that has not taken the last one must connect again."""
        if (link := self._links.get(i)) is None:
            return
        if link.transport.get_write_buffer_size():
            link.transport.abort()
        else:
            link.write(frames.frame(self._number, self._open[i]))

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its hello to its end."""
        name = None
        self._connections.add(writer)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                name = self._named((await frames.read(reader, 4096))[1])
            if (old := self._links.get(name)) is not None:
                old.transport.abort()
            self._links[name] = writer
            self._changed.set()
            if name in self._open:
                self._send(name)
            while True:
                self._take(name, *await frames.read(reader, self._most))
        except GONE:
            pass
        finally:
            if name is not None and self._links.get(name) is writer:
                del self._links[name]
            writer.transport.abort()
            self._connections.discard(writer)

    def _named(self, hello: bytes) -> str:
        """Who says hello, if the token is that site's."""
        name, token = msgspec.msgpack.decode(hello, type=tuple[str, bytes])
        if not hmac.compare_digest(self._tokens.get(name, b""), token) or not token:
            raise ProtocolError(f"{name!r} is not known here, or its token is wrong")
        return name

    def _take(self, name: str, number: int, payload: bytes) -> None:
        self._arrived.append((name, payload))
        if number == self._number:
            self._open.pop(name, None)
            self._changed.set()
