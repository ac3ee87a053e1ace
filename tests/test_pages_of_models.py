"""The pages on models print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import play

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["families", "survival", "firth", "random", "sites_differ", "missing"])
def test_the_page_prints_what_it_shows(name):
    play(DOCS / f"{name}.md")
