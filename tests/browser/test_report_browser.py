"""The report in a real browser: what is drawn is what was recorded, and all of it can be used."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from msgspec.structs import replace

import fedshed
from fedshed._utils.figure_style import look
from fedshed._utils.names import printable
from fedshed.experiments.networks import TINT
from fedshed.experiments.summaries import KB
from fedshed.report import Agent, Coefficient, Fit, Grid, Problem, Report, Run, Spectrum, write
from fedshed.report.downsample import TARGETS
from fedshed.solve.trace import Trace
from live_runs import wait
from reports import EVIL, FIT, bumpy, report, rows

pytestmark = pytest.mark.browser


def lines(page):
    """The curves that are drawn: name, x and y of each, panel by panel."""
    return page.evaluate(
        "document.getElementById('curves-plot').data.filter(t => t.meta.run)"
        ".map(t => ({run: t.meta.run, x: t.x, y: t.y, axis: t.xaxis}))"
    )


def table(page):
    """The table as it stands: for each row its cells' values."""
    return page.evaluate(
        "[...document.querySelectorAll('#table tbody tr')].map(row => Object.fromEntries("
        "[...row.cells].map(cell => [cell.dataset.column, cell.dataset.value])))"
    )


def place(page, point):
    """Where on the screen a point of the first curve is."""
    return page.evaluate(
        """k => {
            const plot = document.getElementById('curves-plot'), {xaxis, yaxis} = plot._fullLayout;
            const {x, y} = plot.data[0], {left, top} = plot.getBoundingClientRect();
            return [left + xaxis._offset + xaxis.d2p(x[k]), top + yaxis._offset + yaxis.d2p(y[k])];
        }""",
        point,
    )


def choose_target(page, index):
    page.locator("#target").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", index
    )


# Curves


def test_every_iterate_of_every_run_is_a_point_in_every_panel(done, opened):
    comparison, _, _ = done
    drawn = lines(opened)
    assert len(drawn) == 4 * len(comparison.results)
    for curve in drawn:
        trace = comparison.results[curve["run"]].trace
        assert len(curve["x"]) == len(curve["y"]) == len(trace)
        np.testing.assert_allclose(curve["y"], np.maximum(trace.column("gap"), 1e-16), rtol=0)
    rounds = [curve for curve in drawn if curve["axis"] == "x"]
    assert [curve["x"] for curve in rounds] == [
        comparison.results[curve["run"]].trace.column("rounds").tolist() for curve in rounds
    ]


def test_renewals_are_marked(done, opened):
    comparison, _, _ = done
    marked = opened.evaluate(
        "document.getElementById('curves-plot').data.filter(t => t.meta.renewals && t.xaxis === 'x')"
        ".map(t => [t.meta.renewals, t.x])"
    )
    found = {name: rounds for name, rounds in marked if name == "fib-shed"}
    trace = comparison.results["fib-shed"].trace
    assert found == {"fib-shed": [row.rounds for row in trace if row.renewed]}


def test_a_name_hides_its_curves_and_shows_them_again_from_the_keyboard(done, visit):
    comparison, _, address = done
    page = visit(address)
    button = page.locator("#legend button", has_text="newton")
    button.focus()
    page.keyboard.press("Enter")
    assert {curve["run"] for curve in lines(page)} == set(comparison.results) - {"newton"}
    assert button.get_attribute("aria-pressed") == "false"
    page.keyboard.press("Space")
    assert {curve["run"] for curve in lines(page)} == set(comparison.results)
    assert button.get_attribute("aria-pressed") == "true"


def test_costs_scales_and_measure_can_be_chosen(done, visit):
    comparison, _, address = done
    page = visit(address)
    page.get_by_label("iterations").check()
    assert len({curve["axis"] for curve in lines(page)}) == 5
    page.get_by_label("Axis of costs").select_option("log")
    axis = "document.getElementById('curves-plot').layout"
    assert page.evaluate(f"[{axis}.xaxis.type, {axis}.xaxis5.type, {axis}.yaxis.type]") == ["log"] * 3
    page.select_option("#measure", "grad_norm")
    for curve in lines(page):
        norms = comparison.results[curve["run"]].trace.column("grad_norm")
        np.testing.assert_array_equal(curve["y"], np.maximum(norms, 1e-16))


def test_the_iterate_under_the_pointer_is_shown_in_every_panel_with_its_step(done, visit):
    comparison, _, address = done
    page = visit(address)
    page.mouse.move(*place(page, 3))
    page.locator("#curves-plot .hovertext").nth(3).wait_for()
    said = page.locator("#curves-plot .hovertext").all_text_contents()
    assert all("fib-shed, iteration 3" in text for text in said)
    assert all(f"q {comparison.results['fib-shed'].trace[3].q_max}" in text for text in said)


# Costs


def test_the_slider_says_what_the_trace_says(done, visit):
    comparison, _, address = done
    page = visit(address)
    for measure, index in product(("gap", "grad_norm"), range(0, len(TARGETS), 3)):
        if index == 0:
            page.select_option("#measure", measure)
        choose_target(page, index)
        for row in table(page):
            trace = comparison.results[row["name"]].trace
            first = next((one for one in trace if getattr(one, measure) < TARGETS[index]), None)
            assert measure == "grad_norm" or first == trace.first_below(TARGETS[index])
            assert _numbers(row) == (None if first is None else _costs(first, comparison.agents))


def _numbers(row):
    names = ("iteration", "rounds", "exchanges", "hessians", "vectors", "kb_up", "kb_down", "seconds")
    return None if row["rounds"] == "" else [float(row[name]) for name in names]


def _costs(row, agents):
    counts = [row.iteration, row.rounds, row.exchanges, row.hessians, row.uplink_vectors]
    return [*counts, row.uplink_bytes / KB / agents, row.downlink_bytes / KB / agents, row.seconds]


def test_a_head_sorts_up_and_down_and_the_unknown_come_last(done, visit):
    page = visit(done[2])
    choose_target(page, 40)  # 1e-8: not all get there
    columns, orders = (
        ("name", "rounds", "kb_up", "seconds", "last"),
        (("ascending", False), ("descending", True)),
    )
    for column, (order, down) in product(columns, orders):
        page.locator(f"#table thead th[data-column={column}] button").focus()
        page.keyboard.press("Enter")
        values = [row[column] for row in table(page)]
        known = [value if column == "name" else float(value) for value in values if value != ""]
        assert known == sorted(known, reverse=down)
        assert all(value == "" for value in values[len(known) :])
        assert page.locator(f"#table thead th[data-column={column}]").get_attribute("aria-sort") == order


# Agents, spectrum, model, rerun


def test_the_map_is_what_the_master_held(done, visit):
    _, recorders, address = done
    page = visit(address)
    for name in ("fib-shed", "gn-shed+"):
        page.select_option("#grid-run", name)
        found = page.evaluate("document.getElementById('grid-plot').data[0].z")
        assert found == [list(values) for values in recorders[name].pairs().values]


def test_rows_and_classes_are_in_a_table(done, visit):
    comparison, _, address = done
    page = visit(address)
    page.locator("#rows-numbers summary").click()
    page.locator("#rows-numbers tbody tr").first.wait_for()
    cells = page.locator("#rows-numbers tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert {name: int(count) for name, count, *_ in cells} == comparison.federation.rows


def test_q_and_rho_move_with_the_iteration(done, visit):
    _, recorders, address = done
    page, spectrum = visit(address), recorders["fib-shed"].spectra()[0]
    slider = page.locator("#spectrum-step")
    slider.focus()
    for step in range(3):
        drawn = page.evaluate("document.getElementById('spectrum-plot').data.map(trace => trace.y)")
        assert len(drawn[1]) == spectrum.q[step]
        assert drawn[2][0] == spectrum.rho[step]
        page.keyboard.press("ArrowRight")


def test_a_model_has_its_coefficients_and_summary(show):
    page = show(Run("fit", rows([1.0, 0.1])), fit=FIT)
    assert page.locator("#fit-table tbody tr").count() == 2
    assert page.locator("#fit-summary").text_content() == FIT.summary
    assert "90 %" in page.locator("#fit-plot").text_content()


def test_a_model_alone_is_a_report(visit, tmp_path):
    made = Report("a fit", (), report().rerun, FIT)
    page = visit(write(tmp_path / "fit.html", made).as_uri())
    assert page.locator("nav a").all_text_contents() == ["Model", "Rerun"]


def test_what_is_not_known_has_no_section(show):
    page = show(Run("a", rows([1.0, 0.1])))
    assert page.locator("nav a").all_text_contents() == ["Curves", "Costs", "Rerun"]
    assert not page.locator("#fit").is_visible()


def test_several_problems_can_be_looked_at_in_turn(visit, tmp_path):
    problems = [Problem(f"problem {k}", (Run(f"run {k}", rows(bumpy(5 + k))),), 1) for k in range(2)]
    made = Report("two", tuple(problems), report().rerun)
    page = visit(write(tmp_path / "two.html", made).as_uri())
    page.select_option("#problem", "1")
    assert {(curve["run"], len(curve["x"])) for curve in lines(page)} == {("run 1", 6)}


# Times


def test_the_map_of_networks_has_the_numbers_of_the_comparison(done, opened):
    comparison, _, _ = done
    page, found = opened, comparison.time_map()
    drawn = page.evaluate(
        "(({x, y, z, text, colorscale}) => ({x, y, z, text, colorscale}))"
        "(document.getElementById('times-plot').data[0])"
    )
    assert drawn["x"] == ["10 kbit/s", "1 Mbit/s", "100 Mbit/s"]
    assert drawn["y"] == ["1 ms", "10 ms", "100 ms", "1 s"]
    heights = page.locator("#times-plot .ytick").evaluate_all(
        "all => Object.fromEntries(all.map(one => [one.textContent, one.getBoundingClientRect().y]))"
    )
    assert heights["1 s"] < heights["100 ms"] < heights["1 ms"]  # pixels from above: latency upwards
    fastest = list(dict.fromkeys(name for row in found.cells for name, _ in row))
    for i, row in enumerate(found.cells):
        for j, (name, _) in enumerate(row):
            step = drawn["z"][i][j]
            assert step == fastest.index(name)
            tint = [round(255 - TINT * (255 - 255 * part)) for part in to_rgb(look(name).color)]
            share = [step / len(fastest), (step + 1) / len(fastest)]
            scale = [shade for at, shade in drawn["colorscale"] if at in map(pytest.approx, share)]
            assert f"rgb({tint[0]},{tint[1]},{tint[2]})" in scale
            assert drawn["text"][i][j].startswith(f"<b>{name}</b><br>")
    assert page.locator("#times-notes li").all_text_contents() == found.notes()
    seen = page.locator("#times-plot svg.main-svg").first.text_content()
    assert all(name in seen for row in found.cells for name, _ in row)


def test_long_names_in_the_map_can_be_read_on_a_phone(visit, tmp_path):
    federation = fedshed.datasets.load("digits", agents=4)
    found = fedshed.compare(federation, ["newton-seldom"], l2=1e-2)
    page = visit(found.report(tmp_path / "long.html").as_uri(), "phone")
    heights = page.locator("#times-plot .heatmap-label").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height"
        " / one.querySelectorAll('tspan.line').length)"
    )
    assert len(heights) == 12
    assert min(heights) >= 11  # pixels of a line


# Edges


def test_gaps_that_are_not_numbers_are_holes(show):
    gaps = [1.0, np.nan, 1e-3, np.inf, -1e-9]
    page = show(Run("holes", rows(gaps)))
    assert lines(page)[0]["y"] == [1.0, None, 1e-3, None, 1e-16]
    choose_target(page, TARGETS.index(1e-2))
    assert [row["iteration"] for row in table(page)] == ["2"]
    assert "has a hole" in page.locator("#curve-notes").text_content()


def test_a_run_of_unknown_gap_is_shown_by_its_gradient_norm(show):
    unknown = [replace(row, gap=None) for row in rows([1.0, 1e-2])]
    page = show(Run("unknown", unknown))
    assert page.locator("#measure").input_value() == "grad_norm"
    assert lines(page)[0]["y"] == [1.0, 0.1]


def test_one_iteration_is_one_point(show):
    page = show(Run("one", rows([0.5])))
    assert (lines(page)[0]["x"], lines(page)[0]["y"]) == ([0], [0.5])
    assert page.locator("#curves-plot .scatterlayer .points path").count() >= 1


def test_ten_thousand_iterations_are_thinned_and_the_page_says_so(show):
    whole = Trace(rows(bumpy(10_000)))
    page = show(Run("long", whole))
    assert "of 10000 iterations are drawn" in page.locator("#curve-notes").text_content()
    assert len(lines(page)[0]["x"]) < 2000
    for index in (0, 30, 55, 70):
        choose_target(page, index)
        first = whole.first_below(TARGETS[index])
        assert [row["iteration"] for row in table(page)] == ["" if first is None else str(first.iteration)]


def test_a_thousand_agents_are_shown(show):
    agents = tuple(Agent(f"agent {k}", 10, {"a": 4, "b": 6}) for k in range(1000))
    names = tuple(agent.name for agent in agents[::5])
    grid = Grid(names, (1, 2), tuple((k % 7, k % 5) for k in range(200)), (1000, 2))
    page = show(Run("many", rows([1.0, 0.1, 0.01]), pairs=grid), agents=agents)
    assert page.evaluate("document.getElementById('rows-plot').data.map(t => t.y.length)") == [1000] * 2
    assert "200 of 1000 agents" in page.locator("#grid-note").text_content()
    page.locator("#rows-numbers summary").click()
    page.locator("#rows-numbers tbody tr").nth(999).wait_for()


def test_a_script_in_a_name_is_read_and_not_run(show):
    grid = Grid((EVIL,), (1, 2), ((1, 2),), (1, 2))
    spectrum = Spectrum(EVIL, (1, 2), (1, 2), (0.5, 0.1), (0, 0), ((1.0, 0.5),))
    run = Run(EVIL, rows([1.0, 0.1, 0.01]), EVIL, pairs=grid, spectra=(spectrum,))
    page = show(run, agents=(Agent(EVIL, 5, {EVIL: 3, "other": 2}),), title=EVIL, fit=FIT)
    visible = printable(EVIL)
    assert page.title() == visible
    for place in ("h1", "#legend button", "#table tbody th", "#table td[data-column=ended]"):
        assert page.locator(place).first.text_content() == visible
    for plot in ("rows", "grid", "curves", "fit"):
        page.locator(f"#{plot}-numbers summary").click()
        page.locator(f"#{plot}-numbers tbody th", has_text=visible).first.wait_for()
        page.locator(f"#{plot}-plot").focus()
        page.keyboard.press("End")
        assert visible in page.locator(f"#{plot}-said").text_content()
        assert EVIL[:8] in page.locator(f"#{plot}-plot .hovertext").first.text_content()


# For everybody


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_it_fits_the_screen_and_follows_the_colour_scheme(done, visit, size):
    page = visit(done[2], size, color_scheme="dark")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        plot = "document.getElementById('curves-plot')"
        wait(lambda: page.evaluate(f"{plot}.layout.paper_bgcolor === css('--ground')"))  # noqa: B023
        ground = page.evaluate(f"{plot}.layout.paper_bgcolor")
        assert (int(ground[1:3], 16) < 128) == (scheme == "dark")
        newton = page.evaluate(f"{plot}.data.find(t => t.meta.run === 'newton').line.color")
        assert (newton == "#000000") == (scheme == "light")


def test_every_control_is_reached_with_the_tab_key_and_has_a_name(done, visit):
    page = visit(done[2])
    controls, presses = "button, select, input, summary, a[href]", 0
    count = page.locator(controls).evaluate_all(
        "all => all.filter(one => !one.closest('.js-plotly-plot') && one.checkVisibility()).length"
    )
    reached: set[int] = set()
    while len(reached - {-1}) < count and presses < 4 * count:
        presses += 1
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                f"[...document.querySelectorAll('{controls}')]"
                ".filter(one => !one.closest('.js-plotly-plot')).indexOf(document.activeElement)"
            )
        )
    assert len(reached - {-1}) == count
    named = "one => one.labels?.length || one.textContent.trim() || one.getAttribute('aria-label')"
    assert page.locator(controls).evaluate_all(
        f"all => all.filter(one => !one.closest('.js-plotly-plot')).every({named})"
    )


def test_ten_algorithms_of_a_thousand_iterations_open_in_two_seconds(visit, tmp_path):
    """Seconds of the page's own thread, which other work on the machine does not lengthen."""
    runs = [Run(f"run {k}", rows(bumpy(1000, k), lambda t: t % 50 == 1)) for k in range(10)]
    page = visit(write(tmp_path / "report.html", report(*runs)).as_uri())
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _busy(session)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert 0.1 < _busy(session) - before < 2


def _busy(session):
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in metrics if one["name"] == "TaskDuration")


# --- repeats ---------------------------------------------------------------------------------------


def test_repeats_are_drawn_as_medians_with_bands_and_ranges(show):
    """Three runs that spend 1, 2 and 3 times as much: the median is the second, the band the others."""
    gaps = [1.0, 1e-3, 1e-6, 1e-9]
    slow = [rows(np.repeat(gaps, k)) for k in (2, 1, 3)]
    page = show(Run("newton", slow[0], "done", True, repeats=tuple(slow[1:])))
    drawn = page.evaluate(
        "document.getElementById('curves-plot').data.filter(t => t.xaxis === 'x')"
        ".map(t => ({meta: t.meta, x: t.x, y: t.y}))"
    )
    assert [list(one["meta"]) for one in drawn] == [["band"], ["median"]]
    band, line = drawn
    n = len(line["x"])
    most, least = np.array(band["y"][:n]), np.array(band["y"][n:])[::-1]
    assert (least <= line["y"]).all()
    assert (line["y"] <= most).all()
    by_hand = [
        sorted(r[max(k for k, row in enumerate(r) if row.rounds <= x)].gap for r in slow) for x in line["x"]
    ]
    np.testing.assert_allclose(line["y"], [three[1] for three in by_hand])
    np.testing.assert_allclose(least, [three[0] for three in by_hand])
    choose_target(page, int(np.argmin(np.abs(np.log10(TARGETS) + 5))))
    (row,) = table(page)
    reached = sorted(next(one.rounds for one in r if one.gap < 1e-5) for r in slow)
    assert float(row["rounds"]) == reached[1]
    cell = page.locator("#table td[data-column=rounds]").inner_text()
    assert cell == f"{reached[1]} ({reached[0]}–{reached[2]})"
    assert "medians over 3 partitions" in page.locator("#curve-notes").inner_text()


# --- on paper --------------------------------------------------------------------------------------


def test_paper_holds_every_row(show, tmp_path):
    """Nothing that is printed scrolls or is folded, and plots are no wider than the page."""
    names = [f"coefficient {k}" for k in range(40)]
    fit = Fit(tuple(Coefficient(name, 1.0, 0.1, 0.8, 1.2, 0.01) for name in names), "a summary")
    agents = tuple(Agent(f"site {k}", 10 + k, {"0": 4, "1": 6 + k}) for k in range(60))
    page = show(Run("newton", rows([1.0, 1e-4, 1e-9]), "", True), agents=agents, fit=fit)
    clipped = """() => [...document.querySelectorAll('.scroll, .tall, pre')].filter(
        (one) => one.scrollHeight > one.clientHeight + 1 || one.scrollWidth > one.clientWidth + 1)
        .map((one) => one.id || one.firstElementChild?.id)"""
    assert page.evaluate(clipped)  # on a screen they scroll
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 690, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(clipped) == []
    shown = page.evaluate(
        "[...document.querySelectorAll('tbody th')].filter(c => c.offsetHeight).map(c => c.innerText)"
    )
    assert {*names, *(agent.name for agent in agents)} <= set(shown)
    assert (
        page.evaluate(
            "Math.max(...[...document.querySelectorAll('.js-plotly-plot svg')].map(s => s.clientWidth))"
        )
        <= 690
    )
    assert not page.locator(".controls").first.is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert not page.evaluate("document.getElementById('rows-numbers').open")
    assert len(page.pdf(format="A4")) > 10_000
