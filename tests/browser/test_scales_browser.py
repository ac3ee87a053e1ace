"""The axis of a cost is scaled by the data, so that every curve can be read, or as the reader chooses."""

from __future__ import annotations

import numpy as np
import pytest

from fedshed.report import Run
from reports import rows

pytestmark = pytest.mark.browser
SHARE = 1 / 8  # of the axis that every curve has at least

ENDS = {
    "alike": (40, 50, 60, 90),
    "one slow": (40, 50, 60, 90, 1000),
    "two slow": (40, 45, 50, 60, 90, 900, 1000),
    "spread": (3, 10, 30, 100, 300, 1000),
    "one fast": (2, 100, 110, 120),
    "alone": (40,),
}


def runs(ends):
    return [Run(f"run {k}", rows(np.geomspace(1, 1e-12, end + 1)), "", True) for k, end in enumerate(ends)]


def axis(page):
    """The axis of rounds as it is drawn: its type, and where each curve ends as a share of its width."""
    return page.evaluate(
        """() => {
            const plot = document.getElementById('curves-plot'), {xaxis} = plot._fullLayout;
            const curves = plot.data.filter(t => t.meta.run && t.xaxis === 'x');
            const share = (at) => curves.map(t => xaxis.d2p(t.x.at(at)) / xaxis._length);
            return [xaxis.type, share(-1), share(0)];
        }"""
    )


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """One page for all of the data, which keeps nothing between them."""
    from fedshed.report import write
    from reports import report

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, folder = context.new_page(), tmp_path_factory.mktemp("scales")

    def go(ends):
        page.goto(write(folder / "report.html", report(*runs(ends))).as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    yield go
    context.close()


@pytest.mark.parametrize(
    ("data", "kind", "beyond"),
    [
        ("alike", "linear", []), ("one slow", "linear", [4]), ("two slow", "linear", [5, 6]),
        ("spread", "log", []), ("one fast", "log", []), ("alone", "linear", []),
    ],
)  # fmt: skip
def test_every_curve_can_be_read(pages, data, kind, beyond):
    """It has an eighth of the axis at least, and its end is on the axis or in a note."""
    page = pages(ENDS[data])
    found, ends, starts = axis(page)
    assert found == kind
    assert min(ends) >= SHARE
    assert [k for k, end in enumerate(ends) if end > 1] == beyond
    assert starts == pytest.approx([0.0] * len(starts), abs=1e-9)
    said = page.locator("#curve-notes").inner_text()
    for k, end in enumerate(ENDS[data]):
        assert (f"run {k} goes on beyond the axis, to {2 * end} rounds" in said) == (k in beyond)
    assert ("has no zero" in said) == (kind == "log")


def test_the_reader_can_choose_and_the_choice_is_remembered(pages):
    page = pages(ENDS["one slow"])
    for scale, kind, last in (("log", "log", 1), ("linear", "linear", 1), ("cut", "linear", 11)):
        page.get_by_label("Axis of costs").select_option(scale)
        found, ends, _ = axis(page)
        assert (found, ends[-1]) == (kind, pytest.approx(last, rel=0.1))
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#scale").input_value() == scale
        assert axis(page)[:2] == [found, ends]
    page.locator("#log-y").uncheck()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert not page.locator("#log-y").is_checked()
    page.evaluate("localStorage.clear()")


def test_a_start_that_costs_nothing_says_so_on_a_logarithmic_axis(pages):
    page = pages(ENDS["spread"])
    page.locator("#curves-plot").focus()
    page.keyboard.press("Home")
    assert "rounds 0," in page.locator("#curves-said").text_content()
    assert "rounds 0" in page.locator("#curves-plot .hovertext").first.text_content()
    ticks = page.locator("#curves-plot .xtick text").all_text_contents()
    assert ticks[0] == "0"
    assert {"10", "100", "1000"} <= set(ticks)


def test_a_browser_that_keeps_nothing_shows_the_report(visit, tmp_path):
    from fedshed.report import write
    from reports import report

    page = visit(write(tmp_path / "report.html", report(*runs((5, 6)))).as_uri())
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new Error('not allowed'); }});"
    )
    page.reload()
    page.wait_for_selector("body[data-ready]")
    page.get_by_label("Axis of costs").select_option("log")
    assert axis(page)[0] == "log"
