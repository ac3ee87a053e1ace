"""Code in the documentation runs as printed."""

from __future__ import annotations

import hashlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pages import PageError, agrees, blocks, play

ROOT = Path(__file__).parent.parent
PAGES = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")]


def test_a_study_from_tables_to_coefficients(capsys, tmp_path):
    (tmp_path / "preparation.py").write_text("\n".join(blocks(ROOT / "docs/preparation.md")))
    runpy.run_path(str(tmp_path / "preparation.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "region[south]" in printed
    assert "cr(age, df=4): knots" in printed


def test_the_readme_prints_what_it_shows():
    play(ROOT / "README.md")


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} points to {target}"


def test_third_party_files_of_the_site_are_those_that_its_readme_names():
    vendor = ROOT / "docs/vendor"
    named = re.findall(r"^([0-9a-f]{64})  (\S+)$", (vendor / "README.md").read_text(), flags=re.M)
    assert len(named) == 3
    for digest, name in named:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name


# --- the runner of the tutorials (`make tutorials`) ------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("age   0.0290\n", "age 0.0291\n"),  # one unit of the last place; blanks do not count
        ("deviance 745.62\n", "deviance 745.9\n"),  # three digits
        ("norm 5e-15\n", "norm -3.1e-13\n"),  # rounding errors
        ("20,692 bytes\n", "20692 bytes\n"),
        ("──── \n", "─────\n"),  # a rule is as long as the table is wide
        ("a\n...\nz\n", "a\nb 1\nc\nz\n"),
        ("...\n", ""),
    ],
)
def test_outputs_that_agree(shown, printed):
    assert agrees(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("age 0.029\n", "age 0.035\n"),
        ("age 0.029\n", "sex 0.029\n"),
        ("15 exchanges\n", "16 exchanges\n"),
        ("1.0 2.0\n", "1.0 2.5\n"),
        ("a\n", "a\nb\n"),
        ("a\n...\nz\n", "a\nb\n"),
        ("coef -1.2\n", "coef 1.2\n"),
    ],
)
def test_outputs_that_do_not_agree(shown, printed):
    assert not agrees(shown, printed)


def test_numbers_that_may_differ_by_a_share():
    assert agrees("pen 9 Hessians\n", "pen 11 Hessians\n", 0.3)
    assert not agrees("pen 9 Hessians\n", "pen 15 Hessians\n", 0.3)


PAGE = """# Page

```python
x = 41 + 1
print(x)
```

```text
42
```

<!-- ignore: took \\d+ -->
```console
$ printf 'one\\n' \\
    && echo took $$
one
took 7
$ false
[exit 1]
```
"""


def test_a_page_runs_and_a_changed_number_is_found_out_and_corrected(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert play(page) == PAGE
    for right, wrong in (("42", "44"), ("[exit 1]\n", ""), ("\n```text\n42\n```\n", "")):
        page.write_text(PAGE.replace(right, wrong, 1))
        with pytest.raises(PageError, match=r"page\.md, the block at line"):
            play(page)
        assert play(page, update=True) == PAGE


def test_the_runner_says_which_page_is_wrong_and_exits_1(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("42", "44", 1))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/pages.py", page],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "page.md, the block at line 3" in done.stderr


def test_a_page_without_its_data_is_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSHED_DATA", raising=False)
    page = tmp_path / "page.md"
    page.write_text("```python\nopen('$FEDSHED_DATA')\n```\n")
    done = subprocess.run(
        [sys.executable, ROOT / "tests/pages.py", page],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "skipped, FEDSHED_DATA is not set" in done.stdout
