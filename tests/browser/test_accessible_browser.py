"""For everybody: every plot has a name, is read from the keyboard and as a table, and is never cut."""

from __future__ import annotations

import re

import pytest

from browser.conftest import SIZES
from fedshed._utils.figure_style import look
from fedshed.report import Agent, Coefficient, Fit, Grid, Run, SiteTraffic
from live_runs import wait
from reports import bumpy, rows

pytestmark = pytest.mark.browser
COMPARED = {"curves", "times", "rows", "grid", "spectrum"}
FITTED = {"fit", "roc", "calibration", "curves", "course", "sites", "rows", "grid", "spectrum"}


@pytest.fixture(params=["compared", "fitted"])
def either(request, done, fitted):
    """The names of a report's plots, and its address."""
    return (COMPARED, done[2]) if request.param == "compared" else (FITTED, fitted[1])


def plots(page):
    """The names of the plots that are shown."""
    ids = page.locator("figure:visible > .plot").evaluate_all("all => all.map(one => one.id)")
    return [name.removesuffix("-plot") for name in ids]


def test_every_plot_has_a_name_a_place_in_the_tab_order_and_a_table_of_its_numbers(either, visit):
    expected, address = either
    page = visit(address)
    assert set(plots(page)) == expected
    for name in plots(page):
        plot, numbers = page.locator(f"#{name}-plot"), page.locator(f"#{name}-numbers")
        assert plot.get_attribute("role") == "application"
        assert plot.get_attribute("tabindex") == "0"
        assert len(plot.get_attribute("aria-label")) > 20
        numbers.locator("summary").click()
        numbers.locator("tbody tr").first.wait_for()
        assert numbers.locator("thead th").count() == numbers.locator("tbody tr").first.locator("> *").count()
    unnamed = page.locator("svg, canvas, img").evaluate_all(
        "all => all.filter(one => one.id !== 'js-plotly-tester' && !one.getAttribute('aria-label')"
        " && !(one.closest('[aria-hidden=true]') && one.closest('[aria-label], button'))).length"
    )
    assert unnamed == 0


def test_arrow_keys_move_along_a_curve_and_the_value_is_said(either, visit):
    """In every plot: a point is under the cursor, another after a key, and none after Escape."""
    page = visit(either[1])
    for name in plots(page):
        plot, said = page.locator(f"#{name}-plot"), page.locator(f"#{name}-said")
        assert said.get_attribute("role") == "status"  # a polite live region
        plot.focus()
        top = page.evaluate("scrollY")
        heard = []
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "Home"):
            page.keyboard.press(key)
            heard.append(said.text_content())
            assert re.search(r"\d", heard[-1])
            assert plot.locator(".hovertext").count() >= 1
        assert len(set(heard)) >= 2
        assert heard[-1] == heard[0] or len(page.evaluate(f"readings.get('{name}').curves")) > 1
        assert page.evaluate("scrollY") == top
        page.keyboard.press("Escape")
        assert said.text_content() == ""
        assert plot.locator(".hovertext").count() == 0


def test_what_is_said_of_a_point_is_what_the_trace_says(done, visit):
    comparison, _, address = done
    page = visit(address)
    page.locator("#curves-plot").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    row, name = comparison.results["fib-shed"].trace[3], page.locator("#curves-said")
    assert name.text_content().startswith(f"fib-shed, iteration 3: gap f − f* {row.gap:.3g}"[:40])
    assert f"rounds {row.rounds}, " in name.text_content()
    page.keyboard.press("ArrowDown")
    assert name.text_content().startswith("gn-shed+, iteration 3:")
    page.keyboard.press("End")
    assert f"iteration {comparison.results['gn-shed+'].trace[-1].iteration}:" in name.text_content()


def test_the_focus_is_seen_and_a_hint_says_which_keys(done, visit):
    page = visit(done[2])
    while page.evaluate("document.activeElement.id") != "curves-plot":
        page.keyboard.press("Tab")
    ring = page.locator("#curves-plot").evaluate(
        "one => [getComputedStyle(one).outlineStyle, getComputedStyle(one).outlineWidth]"
    )
    assert ring == ["solid", "3px"]
    assert "arrows move along a curve" in page.locator("#curves-said").text_content()


def test_a_click_elsewhere_does_not_miss_although_the_readout_goes_away(done, visit):
    page = visit(done[2])
    page.locator("#rows-plot").focus()
    page.keyboard.press("End")
    assert page.locator("#rows-said").text_content()
    page.locator("#rows-numbers summary").click()  # it moves when the line above it goes away
    page.locator("#rows-numbers tbody tr").first.wait_for()
    assert page.locator("#rows-said").text_content() == ""


def test_a_plot_can_be_saved_as_a_picture(done, visit):
    page = visit(done[2])
    page.locator("#grid-numbers summary").click()
    with page.expect_download() as saved:
        page.locator("#grid-numbers button").click()
    assert saved.value.suggested_filename == "fedshed-grid.svg"
    assert saved.value.path().read_text().startswith("<svg")


def test_algorithms_have_the_colours_and_markers_of_the_figures(done, opened):
    comparison, page = done[0], opened
    drawn = page.evaluate(
        "document.getElementById('curves-plot').data.filter(t => t.meta.end && t.xaxis === 'x')"
        ".map(t => [t.meta.end, t.marker.color, t.marker.symbol])"
    )
    assert [name for name, _, _ in drawn] == list(comparison.results)
    assert [colour for _, colour, _ in drawn] == [look(name).color for name in comparison.results]
    samples = page.locator("#legend button path").evaluate_all(
        "all => all.map(one => one.getAttribute('stroke'))"
    )
    assert samples == [look(name).color for name in comparison.results]
    assert len({symbol for _, _, symbol in drawn}) == len(drawn)


# What axe-core finds


def test_axe_finds_nothing_wrong(either, visit, violations):
    page = visit(either[1])
    page.locator("#rows-numbers summary").click()
    if page.locator("#legend button").count() > 1:
        page.locator("#legend button").first.click()  # a hidden run
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_in_plots_and_edges_of_controls_stand_out(opened):
    """Text 4.5 to 1 (WCAG 1.4.3), controls and focus 3 to 1 (1.4.11), in cells of the map of networks too."""
    for scheme in ("dark", "light"):
        opened.emulate_media(color_scheme=scheme)
        names = ("ground", "panel", "ink", "soft", "edge", "mark", "alarm")
        colour = {name: opened.evaluate(f"css('--{name}')") for name in names}
        for ground in ("ground", "panel"):
            assert (
                min(contrast(colour[text], colour[ground]) for text in ("ink", "soft", "mark", "alarm"))
                >= 4.5
            )
            assert contrast(colour["edge"], colour[ground]) >= 3
    cells = opened.evaluate("document.getElementById('times-plot').data[0].colorscale")
    shades = [re.fullmatch(r"rgb\((\d+),(\d+),(\d+)\)", colour).groups() for _, colour in cells]
    assert (
        min(contrast("#000000", "#" + "".join(f"{int(part):02x}" for part in each)) for each in shades) >= 4.5
    )
    assert opened.evaluate("document.getElementById('times-plot').data[0].textfont.color") == "#000000"


# Nothing is cut or covered

# every plot is as wide as its figure, and arranged for that width
DRAWN = """() => document.documentElement.scrollWidth <= innerWidth
    && [...document.querySelectorAll('.plot')].filter(one => one.checkVisibility())
        .every(one => Math.abs(one._fullLayout.width - one.parentElement.clientWidth) < 1)
    && document.getElementById('curves-plot').layout.grid.columns === columnsOfPanels()"""
LONG = "a_site_or_algorithm_with_a_name_that_is_very_long_indeed_and_goes_on"
CUT = """() => [...document.querySelectorAll('.plot')].filter(one => one.checkVisibility()).flatMap(plot => {
    const whole = plot.getBoundingClientRect(), out = (box) => box.left < whole.left - 1
        || box.right > whole.right + 1 || box.top < whole.top - 1 || box.bottom > whole.bottom + 1;
    return [...plot.querySelectorAll('text')].filter(one => one.textContent.trim() && one.checkVisibility())
        .filter(one => out(one.getBoundingClientRect())).map(one => `${plot.id}: ${one.textContent}`);
})"""


def long_names():
    """A report in which every name is long, and reasons too."""
    names = [f"{LONG}_{k}" for k in range(6)]
    grid = Grid(tuple(names), (1, 2, 3), tuple((k, k + 1, k + 2) for k in range(6)), (6, 3))
    sites = tuple(SiteTraffic(name, 5000, 7000, 5) for name in names)
    reason = "the gradient is at rounding level, above tol: no algorithm can do better; " + LONG
    run = Run(LONG, rows(bumpy(40)), reason, pairs=grid, traffic=sites)
    some = [
        Coefficient(name, k - 2.0, 0.5, k - 3.0, k - 1.0, 0.1, deviation=2.0) for k, name in enumerate(names)
    ]
    agents = tuple(Agent(name, 10, {f"class {LONG}": 4, "other": 6}) for name in names)
    return run, {"agents": agents, "fit": Fit(tuple(some), ratio="odds ratio"), "title": LONG}


@pytest.mark.parametrize("made", ["compared", "fitted", "long names"])
def test_nothing_in_a_plot_is_cut_and_the_page_does_not_scroll_sideways(done, fitted, show, visit, made):
    """Not even labels of the first and the last point of every curve, at a desk and on a phone."""
    if made == "long names":
        run, parts = long_names()
        page = show(run, **parts)
    else:
        page = visit(done[2] if made == "compared" else fitted[1])
    for size in SIZES.values():
        page.set_viewport_size(size)
        wait(lambda: page.evaluate(DRAWN))
        assert page.evaluate(CUT) == []
        for name in plots(page):
            for curve, at in ((0, 0), (0, 10**6), (10**6, 10**6)):
                page.evaluate(f"point('{name}', {{curve: {curve}, at: {at}}})")
                assert page.evaluate(CUT) == []
            page.evaluate(f"leave('{name}')")
        reasons = page.locator("#table td.words")
        assert reasons.evaluate_all("all => all.every(one => one.scrollWidth <= one.clientWidth)")


def test_no_tool_bar_covers_a_plot(opened):
    opened.locator("#grid-plot").hover()
    assert opened.locator(".modebar:visible").count() == 0


# Motion


def test_who_wants_no_motion_gets_none(done, opened, visit):
    page = visit(done[2], reduced_motion="reduce")
    assert not page.locator("#spectrum-play").is_visible()
    assert opened.locator("#spectrum-play").is_visible()
