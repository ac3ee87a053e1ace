"""A real browser for the tests: Debian's chromium, headless, driven by Playwright; every page is watched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address and waits until all is drawn; errors, dialogs and foreign requests fail the test."""
    contexts, wrong, allowed, expected = [], [], [], []

    def go(address: str, size: str = "desktop", expected_errors: int = 0, **options: Any) -> Any:
        expected.append(expected_errors)
        phone = {"is_mobile": True, "has_touch": True} if size == "phone" else {}
        context = browser.new_context(viewport=SIZES[size], **phone, **options)
        contexts.append(context)
        allowed.append(address.split("?")[0])
        page = context.new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda request: _foreign(request.url, allowed) and wrong.append(request.url))
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        return page

    yield go
    for context in contexts:
        context.close()
    assert len(wrong) == sum(expected), wrong


def _foreign(url: str, allowed: list[str]) -> bool:
    return not url.startswith(("data:", "blob:", *allowed))
