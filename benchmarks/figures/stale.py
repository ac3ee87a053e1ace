"""Which pages and figures were recorded with other code than today's."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rivals import runs
from fedshed.experiments.provenance import code_hash, code_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("results.md", "figures/beyond-ablation.md", "figures/rivals.md")


def others() -> list[str]:
    """A line for each page, and one for all figures that were recorded with other code."""
    pages = [DOCS / name for name in PAGES]
    found = [f"{_name(page)} was recorded with {_code(page)}" for page in pages if not _current(page)]
    figures = [_name(path) for path in sorted((DOCS / "figures").glob("*.svg")) if not _current(path)]
    if figures:
        found.append(f"{len(figures)} figures were recorded with other code: {', '.join(figures)}")
    return found


def _current(path: Path) -> bool:
    """Whether it was recorded with today's code; a figure without a stamp was drawn by hand."""
    own = runs.code() if path.name.startswith("rivals") else code_hash()
    code = code_of(path)
    return code == own or (code is None and path.suffix != ".md")


def _code(page: Path) -> str:
    return f"code {code_of(page) or '(none is said)'}"


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))
