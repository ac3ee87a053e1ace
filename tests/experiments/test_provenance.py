"""Recorded results say where they come from; figures keep it in their metadata, the same bytes each time."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace

from fedshed._utils.canvas import rendered, wrapped
from fedshed._utils.mathematics import plain, tex, typeset
from fedshed.experiments import provenance
from fedshed.experiments.provenance import Stamp, save, stamp, stamped

MADE = Stamp(
    "abc1234", "2026-01-02", True, {"fedshed": "1", "numpy": "2", "scipy": "3", "Python": "4"},
    "a <processor>, 2 cores", (0, 1, 2),
)  # fmt: skip


def test_a_stamp_says_all_of_it_in_a_line():
    assert MADE.sentence() == (
        "Recorded at commit `abc1234` of 2026-01-02 with uncommitted changes; fedshed 1, "
        "numpy 2, scipy 3, Python 4; partition seeds 0, 1 and 2; a <processor>, 2 cores."
    )
    assert "uncommitted" not in replace(MADE, changed=False).sentence()
    assert "Recorded at no commit; fedshed" in replace(MADE, commit="").sentence()
    assert "; partition seed 7; " in replace(MADE, seeds=(7,)).sentence()
    assert "seed" not in replace(MADE, seeds=()).sentence()


def test_a_figure_keeps_its_stamp_and_a_new_one_takes_its_place():
    svg = rendered(Figure(), "svg")
    once = stamped(svg, MADE)
    assert once == stamped(rendered(Figure(), "svg"), MADE)  # nothing of today's clock
    tree = ElementTree.fromstring(once)
    (found,) = tree.iter("{http://purl.org/dc/elements/1.1/}description")
    assert found.text == MADE.sentence(quote="")
    assert stamped(once, MADE) == once


def test_a_file_of_which_only_the_stamp_would_change_is_left(tmp_path):
    svg, later = rendered(Figure(), "svg"), replace(MADE, commit="def5678")
    figure = save(tmp_path / "figure.svg", stamped(svg, MADE))
    save(figure, stamped(svg, later))
    assert figure.read_bytes() == stamped(svg, MADE)
    save(figure, stamped(rendered(Figure((2, 2)), "svg"), later))
    assert b"def5678" in figure.read_bytes()
    page = save(tmp_path / "page.md", f"# A\n\n{MADE.sentence()}\n".encode())
    save(page, f"# A\n\n{later.sentence()}\n".encode())
    assert "abc1234" in page.read_text()
    save(page, f"# B\n\n{later.sentence()}\n".encode())
    assert "def5678" in page.read_text()


def test_a_package_that_is_no_checkout_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_git", lambda *_: "")
    made = stamp((0,))
    assert (made.commit, made.changed) == ("", False)
    monkeypatch.undo()
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "lib" / "site-packages" / "fedshed")
    assert provenance._git("log") == ""


# Mathematics


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1e-5, "10^{-5}"),
        (2e-3, r"2 \times 10^{-3}"),
        (0.0, "0"),
        (0.05, "0.05"),
        (64.0, "64"),
        (1e4, "10^{4}"),
    ],
)
def test_numbers_in_tex(number, expected):
    assert tex(number) == expected


def test_texts_for_figures_and_for_terminals():
    title = "digits: 20 agents, n = 64, logistic, l2 = 1e-05, gap 2.8e-14"
    assert typeset(title) == (
        r"digits: 20 agents, $n = 64$, logistic, $\ell_2 = 10^{-5}$, gap $2.8 \times 10^{-14}$"
    )
    assert plain(r"$\rho^\star$ with $\eta = 1$, $\lambda_{q+1}$, $\mu = 10^{-5}$, $d_\gamma$") == (
        "ρ* with η = 1, λ_(q+1), μ = 10⁻⁵, d_γ"
    )


def test_lines_are_as_long_as_they_are_shown_and_formulas_are_whole():
    text = r"the gap $f(\theta^t) - f^\star < 10^{-11}$ of a run that is long"
    for line in wrapped(text, 24).splitlines():
        assert line.count("$") % 2 == 0
        assert len(plain(line)) <= 24
    assert wrapped(text, 24).replace("\n", " ") == text
