"""Code in the documentation runs as printed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)


def test_write_your_own_algorithm(capsys, tmp_path):
    (code,) = blocks("docs/extend.md")
    body = code[code.index("class DiagonalNewton") : code.index("federation =")]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 40
    (tmp_path / "extend.py").write_text(code)
    runpy.run_path(str(tmp_path / "extend.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("True")


def test_a_study_from_tables_to_coefficients(capsys, tmp_path):
    (code,) = blocks("docs/preparation.md")
    (tmp_path / "preparation.py").write_text(code)
    runpy.run_path(str(tmp_path / "preparation.py"), run_name="__main__")
    assert "region[south]" in capsys.readouterr().out


def test_the_readme_prints_what_it_shows(capsys, tmp_path):
    for k, code in enumerate(blocks("README.md")):
        (tmp_path / f"readme_{k}.py").write_text(code)
        runpy.run_path(str(tmp_path / f"readme_{k}.py"), run_name="__main__")
    summary, shown = capsys.readouterr().out, (ROOT / "README.md").read_text()
    table = summary[: summary.index("Certificate")]  # what follows is at rounding level
    assert table in shown
    assert "\nTrue " in summary


@pytest.mark.parametrize(
    "page", ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} points to {target}"
