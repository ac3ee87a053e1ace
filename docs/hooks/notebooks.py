"""A hook of the documentation site: notebooks are run, and shown as pages with what their cells print.

They are kept without outputs, so that what the site shows is what the code gives; a cell that fails ends the
build.  As pages they have the site's formulas, search and colours.
"""

from __future__ import annotations

import logging
import posixpath
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from traitlets.config import Config

LOG = logging.getLogger("mkdocs.hooks.notebooks")  # a warning fails the build
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SETUP = """
import matplotlib
%config InlineBackend.figure_formats = ["svg"]
%config InlineBackend.rc = {"svg.hashsalt": "fedshed"}
"""
TO_NOTEBOOK = re.compile(r"\((?:\.\./)+notebooks/(\w+)\.ipynb\)")
LINKS = ((r"\(\.\./docs/", "(../"), (r"\((\w+)\.ipynb\)", r"(\1.md)"))


@cache
def executed(path: Path, source: str) -> list[Any]:
    """The cells of a notebook after they have been run, in an empty folder."""
    notebook = nbformat.reads(source, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        files = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})  # no port is opened
        options = {"timeout": 300, "startup_timeout": 300, "coalesce_streams": True}
        NotebookClient(notebook, resources=where, config=files, **options).execute()
    return notebook.cells[1:]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """A page, its figures and the notebook itself, for each notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        figures: list[bytes] = []
        text = "\n\n".join(_cell(cell, path.stem, figures) for cell in executed(path, path.read_text()))
        text += f"\n\n[Download this notebook]({path.name}){{download}}\n"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
        for k, figure in enumerate(figures):
            files.append(File.generated(config, f"notebooks/{path.stem}-{k}.svg", content=figure))
    return files


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Links of other pages to a notebook lead to its page."""
    folder = posixpath.dirname(page.file.src_uri)
    return TO_NOTEBOOK.sub(
        lambda found: f"({posixpath.relpath(f'notebooks/{found[1]}.md', folder or '.')})", markdown
    )


def _cell(cell: Any, name: str, figures: list[bytes]) -> str:
    """A cell as Markdown; its figures are added to those of the page."""
    if cell.cell_type == "markdown":
        text = cell.source
        for old, new in LINKS:
            text = re.sub(old, new, text)
        return str(text)
    shown = (_output(output, name, figures) for output in cell.outputs)
    return "\n\n".join([f"```python\n{cell.source}\n```", *filter(None, shown)])


def _output(output: Any, name: str, figures: list[bytes]) -> str:
    """What a cell prints, returns or draws."""
    if output.output_type == "stream":
        if output.name == "stderr":
            LOG.warning("notebook %s writes to stderr: %s", name, output.text)
        return f"```text\n{output.text.rstrip()}\n```"
    if "image/svg+xml" in output.data:
        figures.append(output.data["image/svg+xml"].encode())
        return f"![What the cell above draws]({name}-{len(figures) - 1}.svg)"
    if "text/html" in output.data:
        table = re.sub(r"<style.*?</style>", "", output.data["text/html"], flags=re.S)
        table = re.sub(r' (?:class|border|style)="[^"]*"', "", table)
        return f"<div>{table}</div>"
    return f"```text\n{output.data['text/plain']}\n```"
