"""Coefficients on one scale, and what a study over sites took, as the page draws them."""

from __future__ import annotations

import numpy as np
import pytest

from fedshed._utils.log_axis import ticks
from fedshed.report import Coefficient, Fit, Run, SiteTraffic
from log_axes import AXES
from reports import rows

pytestmark = pytest.mark.browser


def drawn(page):
    """The plot of coefficients: type of its axis, estimates, lower and upper ends, and the line."""
    return page.evaluate(
        """() => {
            const {data: [points, intervals], layout} = document.getElementById('fit-plot');
            return {
                type: layout.xaxis.type, range: layout.xaxis.range, line: layout.shapes[0].x0, x: points.x,
                low: points.x.map((x, k) => intervals.x[3 * k]),
                high: points.x.map((x, k) => intervals.x[3 * k + 1]),
                labels: layout.xaxis.ticktext,
            };
        }"""
    )


def test_coefficients_are_drawn_per_standard_deviation_as_odds_ratios(fitted, visit):
    model, address = fitted
    page = visit(address)
    inference = model.inference
    shown = [name for name in inference.names if name != "intercept"]
    places = [inference.names.index(name) for name in shown]
    scale = np.array([model.deviations.get(name, 1.0) for name in shown])
    table = inference.table()[places][:, [0, 4, 5]]
    assert set(model.deviations) == {"age", "dose_at_admission_in_grams_per_day"}

    def agree(expected, kind, line):
        found = drawn(page)
        np.testing.assert_allclose(np.array([found["x"], found["low"], found["high"]]).T, expected)
        assert (found["type"], found["line"]) == (kind, line)

    agree(np.exp(table * scale[:, None]), "log", 1)
    assert "odds ratio per standard deviation" in page.locator("#fit-plot").text_content()
    assert "Not drawn, because they have no column: intercept" in page.locator("#fit-notes").inner_text()
    assert "no standard deviation is known" in page.locator("#fit-notes").inner_text()  # smoker: two values
    page.locator("#fit-ratio").uncheck()
    agree(table * scale[:, None], "linear", 0)
    page.select_option("#fit-unit", "unit")
    agree(table, "linear", 0)
    page.select_option("#fit-unit", "error")
    agree(table / inference.std_err()[places][:, None], "linear", 0)
    assert page.locator("#fit-ratio").is_disabled()
    # the plot on one scale shows effects that the raw numbers hide: each interval is a fair share of the axis
    page.select_option("#fit-unit", "deviation")
    found = drawn(page)
    width = found["range"][1] - found["range"][0]
    assert min(np.subtract(found["high"], found["low"])) > 0.05 * width
    page.locator("#fit-numbers summary").click()
    page.locator("#fit-numbers tbody tr").first.wait_for()
    units = page.locator("#fit-numbers tbody tr td:last-child").all_text_contents()
    assert units[0].startswith("a standard deviation of 1")
    assert "level against the reference" in units


def test_an_interval_that_would_squeeze_the_others_is_cut_and_said(show):
    some = [Coefficient(f"x{k}", 0.5, 0.1, 0.3, 0.7, 0.01) for k in range(5)]
    wide = Coefficient("rare", -2.0, 500.0, -982.0, 978.0, 0.99)
    page = show(fit=Fit((*some, wide), ratio=""))
    found = drawn(page)
    assert -3 < found["range"][0] < -2
    assert 0.7 < found["range"][1] < 1
    assert "go on beyond the axis: rare (-982 to 978)" in page.locator("#fit-notes").inner_text()
    assert page.locator("#fit-unit option").evaluate_all("all => all.map(o => o.value)") == ["unit", "error"]
    assert not page.locator("#fit-ratio-label").is_visible()


def test_with_exp_the_table_and_the_first_plot_are_the_exponentials_of_the_summary(show):
    some = (Coefficient("age", 0.5, 0.1, 0.3, 0.7, 0.01, deviation=3.0),)
    page = show(fit=Fit(some, ratio="odds ratio", exp=True))
    assert drawn(page)["x"] == pytest.approx([np.exp(0.5)])
    heads = page.locator("#fit-table thead th").all_text_contents()
    assert [head.strip() for head in heads] == ["coefficient", "odds ratio", "low", "high", "p"]
    cells = page.locator("#fit-table tbody td").all_text_contents()
    assert float(cells[-4]) == pytest.approx(np.exp(0.5), rel=1e-3)


def test_the_interval_of_a_huge_ratio_is_drawn_from_its_own_ends(show):
    """From its length, 4.4e22 to 3.4e61 was drawn across 1, above some 65 labels of 20 digits and more."""
    some = (
        Coefficient("smoothness", 97.0, 22.9, 52.0, 141.7, 2e-5),
        Coefficient("radius", 1.3, 0.2, 1.0, 1.6, 0.01),
    )
    found = drawn(show(fit=Fit(some, ratio="odds ratio", exp=True)))
    np.testing.assert_allclose(np.log(found["low"]), [52.0, 1.0])
    np.testing.assert_allclose(np.log(found["high"]), [141.7, 1.6])
    assert found["labels"] == ["10<sup>0</sup>", "10<sup>20</sup>", "10<sup>40</sup>", "10<sup>60</sup>"]


@pytest.mark.parametrize("ends", AXES)
def test_the_page_labels_a_logarithmic_axis_as_the_figures_do(show, ends):
    page = show(fit=Fit((Coefficient("a", 0.5),), ratio="rate ratio"))
    found = page.evaluate("([left, right]) => logTicks(left, right, 6)", np.log10(ends).tolist())
    np.testing.assert_allclose(np.array(found["tickvals"], float), ticks(*ends, 6), rtol=1e-9)


def test_a_fit_without_intervals_is_points(show):
    page = show(fit=Fit((Coefficient("a", 0.5), Coefficient("b", -1.0)), ratio="rate ratio"))
    assert drawn(page)["x"] == pytest.approx([np.exp(0.5), np.exp(-1)])
    assert page.locator("#fit-unit option").evaluate_all("all => all.map(o => o.value)") == ["unit"]


def test_hessians_and_bytes_are_drawn_by_exchange_and_by_site(show):
    trace = rows([1.0, 1e-3, 1e-6])
    sites = (SiteTraffic("north", 5000, 7000, 5), SiteTraffic("south", 3000, 3000, 4, 1))
    page = show(Run("newton", trace, "", True, traffic=sites))
    assert page.locator("nav a").all_text_contents() == ["Curves", "Costs", "Traffic", "Rerun"]
    course = page.evaluate("document.getElementById('course-plot').data.map(t => [t.name, t.x, t.y])")
    assert [name for name, _, _ in course] == ["Hessians, per site", "KB up, per site", "KB down, per site"]
    assert all(x == [row.exchanges for row in trace] for _, x, _ in course)
    assert course[0][2] == [row.hessians for row in trace]
    assert course[1][2] == [row.uplink_bytes / 1000 for row in trace]
    bars = page.evaluate("document.getElementById('sites-plot').data.map(t => t.x)")
    assert bars == [[5, 3], [7, 3]]
    assert page.locator("#axes input:checked").evaluate_all("all => all.map(o => o.value)") == [
        "exchanges", "kb_up", "hessians", "seconds"
    ]  # fmt: skip


def test_hessians_that_a_log_does_not_tell_have_no_curve(show):
    from msgspec.structs import replace

    trace = [replace(row, hessians=float("nan")) for row in rows([1.0, 1e-3])]
    page = show(Run("Shed", trace, traffic=(SiteTraffic("a", 1, 1, 1),)))
    names = page.evaluate("document.getElementById('course-plot').data.map(t => t.name)")
    assert names == ["KB up, per site", "KB down, per site"]


def test_what_the_gap_is_stands_beside_the_curves(fitted, visit):
    page = visit(fitted[1])
    assert page.locator("#measure option").first.text_content() == "estimated gap"
    assert "g'H⁻¹g/2" in page.locator("#curve-notes").inner_text()
    page.select_option("#measure", "grad_norm")
    assert "g'H⁻¹g/2" not in page.locator("#curve-notes").inner_text()
