"""A small web server for the live page: the report, its data, events, and the commands of a simulation.

Every request needs the key that was printed with the address; commands also need the token of the run, and
an Origin header that names this server.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedshed._utils.errors import Error
from fedshed.report import page, payload
from fedshed.report.page import COLUMNS
from fedshed.ui.choices import choices, read_settings
from fedshed.ui.live import Simulation, Source, Status

PACE = 0.2  # seconds between two looks at the source
MOST_BODY = 16_384  # bytes of a request to start a run
HEADERS = {
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


class Site:
    """The live page of one source."""

    def __init__(self, source: Source, key: str, hosts: tuple[str, ...] | None) -> None:
        self._source, self._key, self._hosts, self.ending = source, key, hosts, False
        routes = [
            Route("/", self.page),
            Route("/data", self.data),
            Route("/events", self.events),
            Route("/report.html", self.saved),
            Route("/start", self.start, methods=["POST"]),
            Route("/{command:str}", self.command, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: _sentence})

    def end(self) -> None:
        """End the source; the streams then send their last event."""
        self._source.close()
        self.ending = True

    # --- looking ---------------------------------------------------------------------------------

    def page(self, request: Request) -> Response:
        """The report, which updates itself."""
        self._admit(request)
        return HTMLResponse(page(self._source.report(), live=self._live()), headers=HEADERS)

    def saved(self, request: Request) -> Response:
        """The report as it is now, as a file."""
        self._admit(request)
        attachment = {"Content-Disposition": 'attachment; filename="report.html"'}
        return HTMLResponse(page(self._source.report()), headers=HEADERS | attachment)

    def data(self, request: Request) -> Response:
        """All of the page's data."""
        self._admit(request)
        live = self._live()  # before the rows: what comes in between is sent again, not lost
        body = msgspec.json.encode(payload(self._source.report()) | {"live": live})
        return Response(body, media_type="application/json", headers=HEADERS)

    async def events(self, request: Request) -> Response:
        """Rows as they come, as server-sent events."""
        self._admit(request)
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return StreamingResponse(self._stream(after), media_type="text/event-stream", headers=HEADERS)

    async def _stream(self, after: str) -> AsyncIterator[bytes]:
        last: tuple[Status, int] | None = None
        generation, _, cursor = after.partition(".")
        sent, over = int(cursor) if cursor.isdecimal() else 0, False
        while not over:
            over = self.ending  # what is said after that is the last
            status = self._source.status()
            rows = self._source.rows
            if str(status.generation) != generation:
                generation, sent = str(status.generation), 0
            if (status, len(rows)) != last:
                last = (status, len(rows))
                new = [
                    [name, [getattr(row, column) for column in COLUMNS]] for name, row in rows[sent : last[1]]
                ]
                sent = last[1]
                body = msgspec.json.encode({"status": status, "rows": new, "over": over})
                yield b"id: %s.%d\ndata: %s\n\n" % (generation.encode(), sent, body)
            if not over:
                await asyncio.sleep(PACE)

    def _live(self) -> dict[str, Any]:
        status = self._source.status()
        simulation = self._source if isinstance(self._source, Simulation) else None
        return {
            "key": self._key,
            "status": status,
            "after": f"{status.generation}.{len(self._source.rows)}",
            "columns": COLUMNS,
            "study": simulation and simulation.settings(),
            "choices": choices() if simulation else None,
        }

    # --- commanding ------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        """Begin a run with the settings of the form."""
        simulation = self._admit_command(request)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY:
                raise HTTPException(413, f"the settings are longer than {MOST_BODY} bytes")
        try:
            status = simulation.start(read_settings(body))
        except Error as error:
            said = {"error": str(error), "field": getattr(error, "field", "")}
            return JSONResponse(said, 400, headers=HEADERS)
        return _json(status)

    async def command(self, request: Request) -> Response:
        """Pause, resume or stop the run whose token comes with the request."""
        simulation, name = self._admit_command(request), request.path_params["command"]
        if name not in ("pause", "resume", "stop"):
            raise HTTPException(404, f"there is no command {name!r}; use pause, resume or stop")
        token = simulation.status().token
        if token is None or not _same(request.headers.get("x-run-token", ""), token):
            raise HTTPException(403, "this page belongs to another run than the present one; reload it")
        return _json(simulation.command(name))

    def _admit(self, request: Request) -> None:
        if self._hosts is not None and _host(request) not in self._hosts:  # no other name leads here
            raise HTTPException(400, "this server has another name; open the address that it printed")
        given = request.query_params.get("key") or request.headers.get("x-key", "")
        if not _same(given, self._key):
            raise HTTPException(403, "open the address that `fedshed ui` printed: it has the key")

    def _admit_command(self, request: Request) -> Simulation:
        self._admit(request)
        if request.headers.get("origin") != f"{request.url.scheme}://{request.headers.get('host')}":
            raise HTTPException(403, "commands are accepted only from this server's own page")
        if not isinstance(self._source, Simulation):
            raise HTTPException(409, "this page shows a log, which cannot be paused, resumed or stopped")
        return self._source


def _host(request: Request) -> str | None:
    """The name or address by which the server is called, without its port."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return None


def _same(given: str, secret: str) -> bool:
    """Compare as bytes, since a header may hold any character, and in constant time."""
    return secrets.compare_digest(given.encode(), secret.encode())


def _json(status: Status) -> Response:
    return Response(msgspec.json.encode(status), media_type="application/json", headers=HEADERS)


async def _sentence(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, HTTPException)
    if request.method == "POST":
        return JSONResponse({"error": refused.detail}, refused.status_code, headers=HEADERS)
    return PlainTextResponse(refused.detail, refused.status_code, headers=HEADERS)


class _Server(uvicorn.Server):
    """A server that ends its source before it closes the connections, so that open pages are told."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the run, let every page say so, then close."""
        await asyncio.to_thread(self._site.end)
        await super().shutdown(sockets)


def server_of(site: Site) -> uvicorn.Server:
    """A server of the live page, on asyncio and h11 whatever parts an engine has brought along."""
    config = uvicorn.Config(
        site.app, loop="asyncio", http="h11", ws="none", log_level="warning", access_log=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    return _Server(config, site)
