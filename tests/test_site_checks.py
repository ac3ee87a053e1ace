"""The checks of the documentation site find what is wrong with a site."""

from __future__ import annotations

import pytest

import site_checks
from site_checks import broken_links, broken_markdown_links, undescribed


@pytest.fixture
def site(tmp_path):
    """Writes pages of a small site and returns its folder."""
    site_checks.read_page.cache_clear()
    site_checks._headings.cache_clear()

    def made(**pages):
        for name, text in pages.items():
            path = tmp_path / f"{name.replace('__', '/')}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ('<a href="other.html">', ""),
        ('<a href="other.html#there">', ""),
        ('<a href="#here">', ""),
        ('<a href="https://example.org/">', ""),
        ('<img src="data:image/png;base64,AAAA">', ""),
        ('<a href="missing.html">', "leads to no file"),
        ('<a href="other.html#nowhere">', "leads to no anchor"),
        ('<a href="#nowhere">', "leads to no anchor"),
        ('<a href="/other.html">', "begins at the root of a server"),
        ('<img src="figure.svg">', "leads to no file"),
        ('<script src="https://example.org/a.js">', "is fetched from a network"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "is fetched from a network"),
    ],
)
def test_links_of_a_site(site, link, wrong):
    folder = site(index=f'<h1 id="here"></h1>{link}', other='<h2 id="there"></h2>')
    found = list(broken_links(folder))
    assert len(found) == bool(wrong)
    assert all("index.html, line 1" in line and line.endswith(wrong) for line in found)


def test_links_of_a_readme(tmp_path):
    (tmp_path / "other.md").write_text("# A page\n\n## Two words, `code`\n\n```\n# no heading\n```\n")
    page = tmp_path / "README.md"
    page.write_text(
        "[a](other.md) [b](other.md#two-words-code) [c](https://example.org) `[d](none.md)`\n"
        "[e](none.md) [f](other.md#no-heading) [g](#nowhere)\n"
    )
    found = [line.removeprefix(f"{page}: ") for line in broken_markdown_links([page])]
    assert found == [
        "none.md leads to no file",
        "other.md#no-heading leads to no heading",
        "#nowhere leads to no heading",
    ]


ROW = "<tr><td>{}</td><td>float</td><td>{}</td><td>required</td></tr>"


def test_a_public_name_or_parameter_that_the_reference_lacks_is_found(site):
    heading = '<h3 id="fedshed.Network" class="doc doc-heading"></h3>'
    described = ROW.format("latency", "Seconds.") + ROW.format("rate", "")
    found = list(undescribed(site(api__index=f"{heading}<table>{described}</table>")))
    assert "fedshed.Network: the table has no type or no description of rate" in found
    assert not any("latency" in line for line in found)
    assert "fedshed.fit is in no page of docs/api" in found
