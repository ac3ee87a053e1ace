"""The report of the demo in a browser: with the pointer at an iterate, and on a phone in the dark."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from benchmarks.figures.recorded import is_current, note
from fedshed.experiments import ComparisonSpec
from fedshed.experiments.provenance import stamp

DESK, PHONE = {"width": 1120, "height": 1580}, {"width": 390, "height": 844}
POINT = """() => {
    const plot = document.getElementById('curves-plot'), {xaxis, yaxis} = plot._fullLayout;
    const {x, y} = plot.data.find(one => one.meta.run === 'fib-shed+');
    const k = Math.floor(x.length / 2), {left, top} = plot.getBoundingClientRect();
    return [left + xaxis._offset + xaxis.d2p(x[k]), top + yaxis._offset + yaxis.d2p(y[k])];
}"""


def make(spec: ComparisonSpec, folder: Path) -> None:
    """Both pictures, unless they are current: they show seconds, which differ from run to run."""
    desk, phone = folder / "report-desktop.png", folder / "report-phone.png"
    if all(is_current(path.name) for path in (desk, phone)):
        return
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        print("not made: pictures of the report need chromium and pip install 'fedshed[browser]'")
        return
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        page = spec.run().report(Path(name) / "report.html").as_uri()
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=os.geteuid() != 0)
        _save(desk, [_desk(browser, page)])
        _save(phone, _phone(browser, page))
        browser.close()
    note([desk.name, phone.name])


def _desk(browser: Any, address: str) -> bytes:
    """The curves with an iterate under the pointer, and the table."""
    page = browser.new_context(viewport=DESK).new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    page.mouse.move(*page.evaluate(POINT))
    page.wait_for_timeout(500)
    return bytes(page.screenshot())


def _phone(browser: Any, address: str) -> list[bytes]:
    """The beginning, and the spectrum."""
    context = browser.new_context(viewport=PHONE, is_mobile=True, has_touch=True, color_scheme="dark")
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    first = bytes(page.screenshot())
    page.locator("a", has_text="Spectrum").first.click()
    page.wait_for_timeout(500)
    return [first, bytes(page.screenshot())]


def _save(path: Path, shots: list[bytes]) -> None:
    """The pictures side by side, with the stamp among the metadata."""
    images = [Image.open(io.BytesIO(shot)).convert("RGB") for shot in shots]
    whole = Image.new("RGB", (sum(one.width for one in images), images[0].height))
    for k, one in enumerate(images):
        whole.paste(one, (k * one.width, 0))
    about = PngInfo()
    about.add_text("Description", stamp((0,)).sentence(quote=""))
    whole.save(path, pnginfo=about, optimize=True)
