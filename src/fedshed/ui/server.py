"""A small web server for the live page: the report, its data, events, and the commands of a simulation.

Everything asks for the key that was printed with the address; commands also for the token of the run, and
for an Origin that is this server.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedshed._utils.errors import Error
from fedshed.experiments import ComparisonSpec
from fedshed.report import page, payload
from fedshed.report.page import COLUMNS
from fedshed.ui.live import Simulation, Source, Status

PACE = 0.2  # seconds between two looks at the source
MOST_BODY = 16_384  # bytes of a request to start a run
HEADERS = {
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


class Site:
    """The live page of one source."""

    def __init__(self, source: Source, key: str, hosts: list[str]) -> None:
        self._source, self._key = source, key
        routes = [
            Route("/", self.page),
            Route("/data", self.data),
            Route("/events", self.events),
            Route("/report.html", self.saved),
            Route("/start", self.start, methods=["POST"]),
            Route("/{command:str}", self.command, methods=["POST"]),
        ]
        self.app = Starlette(
            routes=routes,
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],  # no other name leads here
            exception_handlers={HTTPException: _sentence},
        )

    # --- looking ---------------------------------------------------------------------------------

    def page(self, request: Request) -> Response:
        """The report, which goes on by itself."""
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
        sent = int(cursor) if cursor.isdecimal() else 0
        while True:
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
                body = msgspec.json.encode({"status": status, "rows": new})
                yield b"id: %s.%d\ndata: %s\n\n" % (generation.encode(), sent, body)
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
            "datasets": _datasets() if simulation else (),
        }

    # --- commanding ------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        """Begin a run with the settings of the form."""
        simulation = self._admit_command(request)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY:
                raise HTTPException(413, "the settings are too long")
        try:
            status = simulation.start(msgspec.json.decode(body, type=ComparisonSpec))
        except (Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HTTPException(400, str(error)) from error
        return _json(status)

    async def command(self, request: Request) -> Response:
        """Pause, resume or stop the run whose token comes with the request."""
        simulation, name = self._admit_command(request), request.path_params["command"]
        if name not in ("pause", "resume", "stop"):
            raise HTTPException(404, f"no command {name!r}")
        token = simulation.status().token
        if token is None or not _same(request.headers.get("x-run-token", ""), token):
            raise HTTPException(403, "this is not the run that goes on; reload the page")
        return _json(simulation.command(name))

    def _admit(self, request: Request) -> None:
        given = request.query_params.get("key") or request.headers.get("x-key", "")
        if not _same(given, self._key):
            raise HTTPException(403, "open the address that `fedshed ui` printed: it has the key")

    def _admit_command(self, request: Request) -> Simulation:
        self._admit(request)
        if request.headers.get("origin") != f"{request.url.scheme}://{request.headers.get('host')}":
            raise HTTPException(403, "commands are taken from this server's own page only")
        if not isinstance(self._source, Simulation):
            raise HTTPException(409, "a log can be looked at, not commanded")
        return self._source


def _same(given: str, secret: str) -> bool:
    """Compared as bytes, for a header may hold any character, and in a time that tells nothing."""
    return secrets.compare_digest(given.encode(), secret.encode())


def _datasets() -> tuple[str, ...]:
    from fedshed.datasets import names

    return names()


def _json(status: Status) -> Response:
    return Response(msgspec.json.encode(status), media_type="application/json", headers=HEADERS)


async def _sentence(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, HTTPException)
    if request.method == "POST":
        return JSONResponse({"error": refused.detail}, refused.status_code, headers=HEADERS)
    return PlainTextResponse(refused.detail, refused.status_code, headers=HEADERS)


def server_of(site: Site) -> uvicorn.Server:
    """A server of the live page, on asyncio and h11 whatever parts an engine has brought along."""
    config = uvicorn.Config(
        site.app, loop="asyncio", http="h11", ws="none", log_level="warning", access_log=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    return uvicorn.Server(config)
