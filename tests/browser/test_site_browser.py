"""The documentation site in a real browser, opened from disk as `make docs` leaves it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
SITE = Path(__file__).parents[2] / "site"
DISPLAYED = ".arithmatex > .katex-display"


@pytest.fixture
def read(visit):
    """Opens a page of the site from disk; console errors and requests outside the site fail the test."""
    if not (SITE / "index.html").is_file():
        pytest.skip("no documentation site; make docs builds it")

    def opened(name, **options):
        return visit((SITE / name).as_uri(), ready="main", within=SITE.as_uri(), **options)

    return opened


def test_every_page_opens_on_a_phone_with_its_formulas_typeset(read):
    page, formulas = read("index.html", size="phone"), 0
    for path in sorted(SITE.rglob("*.html")):
        if path.name == "404.html":  # which only a server shows
            continue
        page.goto(path.as_uri())
        marked, typeset, wrong = (
            page.locator(each).count() for each in (".arithmatex", ".arithmatex .katex-html", ".katex-error")
        )
        assert (typeset, wrong) == (marked, 0), path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        formulas += marked
    assert formulas > 100


def test_the_contents_of_a_page_have_typeset_formulas_and_no_latex(read):
    page = read("results.html", size="desktop")
    contents = page.locator("nav.md-nav--secondary")
    assert contents.locator(".katex-html").count() > 10
    shown = contents.locator(".md-ellipsis").evaluate_all(
        "all => all.map(one => { const copy = one.cloneNode(true);"
        " copy.querySelectorAll('.katex-mathml').forEach(hidden => hidden.remove());"
        " return copy.textContent; })"
    )
    assert not [text for text in shown if "\\" in text]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_formulas_have_the_colour_of_the_text(read, size, scheme):
    page = read("cost.html", size=size, color_scheme=scheme)
    body = page.locator("body").get_attribute("data-md-color-scheme")
    assert body == {"light": "default", "dark": "slate"}[scheme]
    colours = page.evaluate(
        f"['{DISPLAYED}', 'article p'].map(s => getComputedStyle(document.querySelector(s)).color)"
    )
    assert colours[0] == colours[1]


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_search_finds_pages_without_a_server(read, size):
    page = read("index.html", size=size)
    if size == "phone":
        page.locator("label[for=__search].md-header__button").tap()
    page.locator("input[name=query]").press_sequentially("concordance")  # "Kaplan-" is no query of lunr
    first = page.locator(".md-search-result__item a").first
    first.wait_for()
    first.click()
    page.wait_for_url(SITE.as_uri() + "/**")
    assert "concordance" in page.locator("main").inner_text().lower()


def test_the_site_of_a_release_has_a_selector_of_versions_and_the_plain_one_has_none():
    config = pytest.importorskip("mkdocs.config", reason="needs pip install 'fedshed[docs]'")
    release, plain = (
        config.load_config(str(SITE.parent / name)) for name in ("mkdocs.release.yml", "mkdocs.yml")
    )
    assert release.extra["version"]["provider"] == "mike"
    assert "version" not in plain.extra
    assert release.nav == plain.nav
