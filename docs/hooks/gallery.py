"""A hook of the documentation site: the gallery runs the scripts in examples/ and shows their figures.

`<!-- examples: NAME NAME ... -->` in a page stands for a card per script, and `<!-- code of examples -->`
for a section per script.  Up to `<!-- /examples -->` there follows a list of links to the scripts, for those
who read the page as a file; the cards take its place.  A script begins with a docstring, its title first,
and ends by saving NAME.svg.
"""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import os
import re
import runpy
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LOG = logging.getLogger("mkdocs.hooks.gallery")  # a warning fails the build
EXAMPLES = Path(__file__).parents[2] / "examples"
CARDS = re.compile(r"<!-- examples: (?P<names>[^>]*) -->(?P<links>.*?)<!-- /examples -->", flags=re.S)
CODE = "<!-- code of examples -->"


class Example(NamedTuple):
    """A script: its title, the text below it, its code, what it prints, and its figure."""

    name: str
    title: str
    text: str
    code: str
    printed: str
    figure: bytes


@cache
def example(path: Path, source: str) -> Example:
    """A script that has been run; a second build of the same process does not run it again."""
    tree = ast.parse(source)
    title, _, text = (ast.get_docstring(tree) or "").partition("\n")
    code = "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip()
    printed, figure = run(path)
    return Example(path.stem, title.removesuffix("."), " ".join(text.split()), code, printed, figure)


def run(path: Path) -> tuple[str, bytes]:
    """What a script prints, and the figure that it saves."""
    os.environ |= {"MPLBACKEND": "agg", "SOURCE_DATE_EPOCH": "0"}  # the same bytes in every build
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()) as out,
        mpl.rc_context({"svg.hashsalt": "fedshed"}),
    ):
        runpy.run_path(str(path), run_name="__main__")
        plt.close("all")
        return out.getvalue(), Path(f"{path.stem}.svg").read_bytes()


def _examples() -> dict[str, Example]:
    return {path.stem: example(path, path.read_text()) for path in sorted(EXAMPLES.glob("*.py"))}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the figures and the scripts to the site."""
    for one in _examples().values():
        script = str(EXAMPLES / f"{one.name}.py")
        files.append(File.generated(config, f"gallery/{one.name}.svg", content=one.figure))
        files.append(File.generated(config, f"gallery/{one.name}.py", abs_src_path=script))
    return files


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """The gallery with its cards and sections."""
    if CODE not in markdown:
        return markdown
    found = _examples()
    named = [name for cards in CARDS.finditer(markdown) for name in cards["names"].split()]
    for name in set(found) ^ set(named):
        LOG.warning("%s and examples/ do not agree about %s", page.file.src_uri, name)
    listed = {line for cards in CARDS.finditer(markdown) for line in cards["links"].splitlines() if line}
    for line in listed ^ {f"- [{found[name].title}](../examples/{name}.py)" for name in named}:
        LOG.warning("%s: the list of scripts and their titles differ at %s", page.file.src_uri, line)
    markdown = CARDS.sub(lambda cards: _cards([found[name] for name in cards["names"].split()]), markdown)
    return markdown.replace(CODE, "\n\n".join(_section(found[name]) for name in named))


def _cards(shown: list[Example]) -> str:
    cards = "\n\n".join(
        f"-   [![{one.title}](gallery/{one.name}.svg)](#{_anchor(one)})\n\n    [{one.title}](#{_anchor(one)})"
        for one in shown
    )
    return f'<div class="grid cards gallery" markdown>\n\n{cards}\n\n</div>'


def _section(one: Example) -> str:
    printed = f"\n\n```text\n{one.printed.rstrip()}\n```" if one.printed else ""
    return (
        f"### {one.title} {{#{_anchor(one)}}}\n\n{one.text}\n\n![{one.title}](gallery/{one.name}.svg)\n\n"
        f"```python\n{one.code}\n```{printed}\n\n[Download {one.name}.py](gallery/{one.name}.py){{download}}"
    )


def _anchor(one: Example) -> str:
    return one.name.replace("_", "-")
