"""Checks of the documentation site that `make docs` has built, and of the pages of the repository.

    python tests/site_checks.py site README.md CONTRIBUTING.md ...

Every link and anchor between files leads somewhere, nothing is loaded from a network, and the reference has a
table that describes each parameter of each public name.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADED = ("script", "img", "iframe", "source", "video")  # elements whose src a browser fetches
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", flags=re.M)
PLACEHOLDER = re.compile(
    r"<!-- (?:fields of .*?|commands|examples: .*?|code of examples) -->"
)  # which hooks replace
LATER = ("fedshed.Comparison.report",)  # described when that file is next edited
MARKDOWN_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")


class Link(NamedTuple):
    """An address in a page, and whether the browser fetches it by itself."""

    line: int
    address: str
    loaded: bool


class Page(HTMLParser):
    """The anchors and links of a page, and the tables of parameters under each heading of the reference."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[Link] = []
        self.tables: dict[str, dict[str, list[str]]] = {}
        self._object, self._cells = "", list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Anchors, links, headings of objects and rows of their tables."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        for name in ("href", "src"):
            if name in given:
                fetched = tag in LOADED or (tag == "link" and given.get("rel") != "canonical")
                self.links.append(Link(self.getpos()[0], given[name], fetched))
        if "doc-heading" in given.get("class", ""):
            self._object = given.get("id", "")
            self.tables.setdefault(self._object, {})
        if tag == "tr":
            self._cells = []
        elif tag == "td":
            self._cells.append("")

    def handle_data(self, data: str) -> None:
        """The text of the cell that is open."""
        if self._cells:
            self._cells[-1] += data

    def handle_endtag(self, tag: str) -> None:
        """A row that has ended: the name in its first cell."""
        if tag == "tr" and self._object and self._cells:
            name, *rest = (cell.strip() for cell in self._cells)
            self.tables[self._object][name] = rest
            self._cells = []


@cache
def read_page(path: Path) -> Page:
    """A page of the site."""
    return Page(path.read_text(encoding="utf-8"))


def broken_links(site: Path) -> Iterator[str]:
    """Links of the site that lead to no file or anchor, or fetch something from a network."""
    for path in sorted(site.rglob("*.html")):
        for left in PLACEHOLDER.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {left} was not replaced"
        for link in read_page(path).links:
            if wrong := _wrong(path, link):
                yield f"{path.relative_to(site)}, line {link.line}: {link.address} {wrong}"


def _wrong(path: Path, link: Link) -> str:
    """What is wrong with a link, if anything is."""
    parts = urlsplit(link.address)
    if parts.scheme or parts.netloc:
        return "is fetched from a network" if link.loaded and parts.scheme != "data" else ""
    if parts.path.startswith("/") or path.name == "404.html":  # it may be shown in any folder
        return "" if path.name == "404.html" else "begins at the root of a server"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "leads to no file"
    if parts.fragment and target.suffix == ".html" and not _has(target, unquote(parts.fragment)):
        return "leads to no anchor"
    return ""


def _has(target: Path, fragment: str) -> bool:
    return fragment.startswith("__") or fragment in read_page(target).anchors


def broken_markdown_links(pages: Iterable[Path]) -> Iterator[str]:
    """Links of Markdown files that lead to no file, or to no heading of one, as a code host shows them."""
    for page in pages:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for address in MARKDOWN_LINK.findall(text):
            parts = urlsplit(address)
            if parts.scheme:
                continue
            target = page.parent / parts.path if parts.path else page
            if not target.exists():
                yield f"{page}: {address} leads to no file"
            elif parts.fragment and target.suffix == ".md" and parts.fragment not in _headings(target):
                yield f"{page}: {address} leads to no heading"


@cache
def _headings(page: Path) -> set[str]:
    """The anchors that headings of a Markdown file get."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {word.replace(" ", "-") for word in words}


def undescribed(site: Path) -> Iterator[str]:
    """Public names that the reference lacks, and parameters there without a type or a description."""
    tables: dict[str, dict[str, list[str]]] = {}
    for path in sorted(site.glob("api/*.html")):
        tables |= read_page(path).tables
    for name, value in public_names().items():
        if name not in tables:
            yield f"{name} is in no page of docs/api"
            continue
        yield from (f"{name}: {wrong}" for wrong in _lacking(tables[name], value))
        for path in (path for path in tables if path.startswith(f"{name}.")):
            method = getattr(value, path.removeprefix(f"{name}."), None)
            if callable(method) and path not in LATER:
                yield from (f"{path}: {wrong}" for wrong in _lacking(tables[path], method))


def _lacking(shown: dict[str, list[str]], value: object) -> Iterator[str]:
    """Parameters that a table does not show or describe; of a result its rows without a description."""
    for parameter in shown if _is_result(value) else _parameters(value):
        kind, meaning = (*shown.get(parameter, ()), "", "")[:2]
        if not meaning or not kind:
            yield f"the table has no type or no description of {parameter}"


def public_names() -> dict[str, object]:
    """What can be called or is an error, by its name in the reference."""
    import fedshed
    from fedshed import algorithms, datasets, renewal

    places = {f"fedshed.{name}": getattr(fedshed, name) for name in fedshed.__all__}
    for module in (algorithms, datasets):
        places |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    places |= {f"fedshed.renewal.{kind.__name__}": kind for kind in renewal.Renewal.__args__}
    known = {"fedshed.datasets.Federation", "fedshed.datasets.Table"}  # under another name
    return {name: value for name, value in places.items() if callable(value) and name not in known}


def _parameters(value: object) -> list[str]:
    """The parameters that a reader gives; those of an error are its message."""
    if isinstance(value, type) and issubclass(value, Exception):
        return []
    names = inspect.signature(value).parameters
    return [name for name in names if name not in ("self", "cls", "args", "kwargs", "options")]


def _is_result(value: object) -> bool:
    """Whether it is a class that only functions make, so that its attributes are described."""
    text = value.__doc__ or ""
    return isinstance(value, type) and "Attributes\n" in text and "Parameters\n" not in text


def main() -> None:
    """Print what is wrong; exit with 1 if anything is."""
    site, *pages = map(Path, sys.argv[1:])
    wrong = [*broken_links(site), *broken_markdown_links(pages), *undescribed(site)]
    print("\n".join(wrong) or f"{site}: {len(list(site.rglob('*.html')))} pages, all links lead somewhere")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
