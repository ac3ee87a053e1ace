"""A real browser for the tests: Debian's chromium, headless, driven by Playwright; every page is watched."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedshed.report import Run, write
from live_runs import KEY
from reports import compared, fitted_report, report

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, or a skip that says what is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="needs pip install 'fedshed[browser]'")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium; on Debian: apt-get install chromium")
    with api.sync_playwright() as playwright:
        # Root, as in a container, has no user namespace to build the sandbox from.
        sandbox = os.geteuid() != 0
        opened = playwright.chromium.launch(executable_path=program, headless=True, chromium_sandbox=sandbox)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, str]:
    """A comparison, what was recorded, and the address of its report."""
    comparison, recorders, made = compared()
    return comparison, recorders, write(tmp_path_factory.mktemp("report") / "report.html", made).as_uri()


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """A model with an evaluation, and the address of its report, with every plot that comparisons lack."""
    model, made = fitted_report()
    return model, write(tmp_path_factory.mktemp("fit") / "report.html", made).as_uri()


@pytest.fixture
def show(visit: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Opens a report that is made up."""

    def open_report(*runs: Run, size: str = "desktop", **parts: Any) -> Any:
        return visit(write(tmp_path / "report.html", report(*runs, **parts)).as_uri(), size)

    return open_report


@pytest.fixture(scope="session")
def opened(browser: Any, done: tuple[Any, Any, str]) -> Iterator[Any]:
    """The report of the comparison, open at a desktop, for tests that only look at it."""
    context = browser.new_context(viewport=SIZES["desktop"])
    page = context.new_page()
    page.goto(done[2])
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address and waits until all is drawn; errors, dialogs and foreign requests fail the test."""
    contexts, wrong, allowed, expected = [], [], [], []

    def go(
        address: str,
        size: str = "desktop",
        expected_errors: int = 0,
        ready: str = "body[data-ready]",
        within: str | None = None,
        **options: Any,
    ) -> Any:
        expected.append(expected_errors)
        phone = {"is_mobile": True, "has_touch": True} if size == "phone" else {}
        context = browser.new_context(viewport=SIZES[size], **phone, **options)
        contexts.append(context)
        allowed.append(within or address.split("?")[0])
        page = context.new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda request: _foreign(request.url, allowed) and wrong.append(request.url))
        page.goto(address)
        page.wait_for_selector(ready)
        return page

    yield go
    for context in contexts:
        context.close()
    assert len(wrong) == sum(expected), wrong


@pytest.fixture
def serve() -> Iterator[Any]:
    """Serves a source on a free port of loopback, and gives the address."""
    pytest.importorskip("uvicorn", reason="needs pip install 'fedshed[ui]'")
    from fedshed.cli.ui import LOOPBACK, listening
    from fedshed.ui.server import Site, server_of

    running: list[Any] = []

    def start(source: Any) -> str:
        loopback = listening("127.0.0.1", 0)
        server = server_of(Site(source, KEY, LOOPBACK))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [loopback]})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{loopback.getsockname()[1]}/"

    def stop() -> None:
        for server, thread in running:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()

    start.stop = stop  # type: ignore[attr-defined]
    yield start
    stop()


@pytest.fixture
def violations() -> Callable[[Any], list[str]]:
    """What axe-core has against a page, a line for each kind."""
    api = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs pip install 'fedshed[browser]'"
    )

    def found(page: Any) -> list[str]:
        answer = api.Axe().run(page, options={"runOnly": LEVELS, "resultTypes": ["violations"]})
        return [
            f"{one['id']}: {[node['target'] for node in one['nodes'][:3]]}"
            for one in answer.response["violations"]
        ]

    return found


def _foreign(url: str, allowed: list[str]) -> bool:
    return not url.startswith(("data:", "blob:", *allowed))
