"""A hook of the documentation site: pages of the reference are made from the objects they are about.

In a page, `<!-- fields of MODULE.CLASS -->` stands for a table of the fields of a file, and
`<!-- commands -->` for all commands with their options.  A page that is named in a docstring, such as
docs/privacy.md, becomes a link.
"""

from __future__ import annotations

import logging
import pkgutil
import re
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import griffe
import msgspec
from commands import command_sections
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from parameter_tables import KINDS, elsewhere, field_comments, of_file, sentence, source_of

LOG = logging.getLogger("mkdocs.hooks.reference")  # a warning fails the build
FIELDS = re.compile(r"<!-- fields of (?P<place>[\w.]+)(?: but (?P<but>\w+))? -->")
COMMANDS = "<!-- commands -->"
NAMED = re.compile(r"(?<![\w/\"])docs/(?P<path>[\w/-]+)\.md(?P<anchor>#[\w-]+)?")
WORDS = {
    str: "text",
    bool: "`true` or `false`",
    int: "whole number",
    float: "number",
    NoneType: "",
}


def on_config(config: Any) -> None:
    """Warn of descriptions that the source has by now."""
    for file, classes in elsewhere().items():
        for name, fields in classes.items():
            for field in set(fields) & set(of_file(source_of(file)).get(name, {})):
                LOG.warning("descriptions.toml: %s has a comment beside %s; remove it here", file, field)


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """The page with the tables that it asks for."""
    markdown = FIELDS.sub(lambda found: field_table(found["place"], found["but"]), markdown)
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, command_sections(LOG.warning))
    return markdown


def on_page_content(html: str, page: Page, files: Files, **kwargs: Any) -> str:
    """The page with links to those that docstrings name."""
    if not page.file.src_uri.startswith(("api/", "reference/")):
        return html

    def link(found: re.Match[str]) -> str:
        target = files.get_file_from_path(f"{found['path']}.md")
        if target is None:
            LOG.warning("%s names %s, which is no page", page.file.src_uri, found[0])
            return found[0]
        address = get_relative_url(target.url, page.url) + (found["anchor"] or "")
        return f'<a href="{address}">{found["path"]}</a>'

    return NAMED.sub(link, html)


def field_table(place: str, but: str | None = None) -> str:
    """A table of the fields of a file: type, default and meaning of each."""
    kind = pkgutil.resolve_name(place)
    said = _meanings(kind)
    rows = ["| field | meaning | type | default |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(kind):
        if field.name == but:
            continue
        if not (meaning := said.get(field.name, "")):
            LOG.warning("%s: field %s has no description in the source", place, field.name)
        cells = (f"`{field.name}`", meaning, in_words(field.type), _default(field))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _meanings(kind: type) -> dict[str, str]:
    """What is said of the fields, in the docstring or in comments beside them."""
    text = griffe.Docstring(kind.__doc__ or "", parser="numpy")
    rows = [row for part in text.parsed if part.kind in KINDS for row in part.value]
    described = {name: row.description for row in rows for name in row.name.split(", ")}
    beside = field_comments(source_of(kind.__module__.replace("fedshed.", "").replace(".", "/") + ".py"))
    found = {name: sentence(words) for name, words in beside.get(kind.__name__, {}).items()} | described
    return {name: " ".join(words.split()) for name, words in found.items()}


def in_words(hint: Any) -> str:
    """A type as a reader of TOML says it."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in WORDS:
        return WORDS[hint]
    if origin is Literal:
        return _either([f'`"{word}"`' for word in inner])
    if origin in (tuple, list):
        return f"list of {_plural(in_words(inner[0]))}"
    if origin is dict:
        return f"table of {_plural(in_words(inner[1]))}"
    if hasattr(origin, "__metadata__") or "Annotated" in str(hint):
        return in_words(inner[0])
    if inner:
        return _either([word for word in dict.fromkeys(map(in_words, inner)) if word])
    return "date and time" if hint.__name__ == "datetime" else "table"


def _either(words: list[str]) -> str:
    """Several words as one choice."""
    if set(words) == {"`true` or `false`", "whole number", "number", "text"}:
        return "text, number, `true` or `false`"
    words = [word for word in words if word != "whole number" or "number" not in words]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _plural(words: str) -> str:
    known = {"number": "numbers", "whole number": "whole numbers", "text": "texts", "table": "tables"}
    known["text, number, `true` or `false`"] = "values"
    return known.get(words, words)


def _default(field: Any) -> str:
    """What holds where a field is left out."""
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, msgspec.Struct):
        return "as below"
    return f"`{msgspec.json.encode(value).decode()}`"
