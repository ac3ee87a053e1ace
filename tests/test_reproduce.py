"""The figures as data: every experiment loads, runs in its quick form, draws, and is judged."""

from __future__ import annotations

import numpy as np
import pytest

from fedshed import ConfigError
from fedshed.datasets import names as datasets
from fedshed.experiments import claims, plan, runs, spectra
from fedshed.experiments.draw import draw
from fedshed.experiments.plan import Problem, Run, load, names, select
from fedshed.experiments.reproduce import recorded, reproduce, specs_of
from fedshed.experiments.runs import Record, Spec, execute, recall

SMALL = Problem("digits", 1e-2, partition="iid", agents=4, target=1)


@pytest.mark.parametrize("name", names())
def test_every_experiment_is_complete_and_names_known_data(name):
    figure = load(name)
    for panel in figure.panels:
        assert panel.problem.dataset in datasets()
        assert figure.kind in ("s-star",) or panel.runs
        assert len({run.name for run in panel.runs}) == len(panel.runs)
    assert load(name, quick=True).title.startswith("QUICK")


def test_families_and_mistakes():
    assert select("mnist") == ("mnist-1e-5", "mnist-1e-6")
    assert select("all") == names()
    with pytest.raises(ConfigError, match="did you mean 'w8a'"):
        select("w8b")


def test_a_run_is_made_once_and_then_recalled(tmp_path, monkeypatch):
    spec = Spec(SMALL, Run("fib-shed", max_iterations=5), 1e-12)
    assert recall(spec, tmp_path) is None
    made = execute(spec, tmp_path)
    monkeypatch.setattr(runs, "_make", lambda *_: pytest.fail("made twice"))
    assert execute(spec, tmp_path) == made
    assert len(made.errors) == len(made.rows) == 6
    np.testing.assert_allclose(made.rows[0].gap, made.rows[0].f - made.f_star)


def test_other_settings_and_other_code_are_other_runs(tmp_path, monkeypatch):
    spec = Spec(SMALL, Run("fib-shed", max_iterations=3), 1e-12)
    execute(spec, tmp_path)
    assert recall(Spec(SMALL, Run("fib-shed", max_iterations=4), 1e-12), tmp_path) is None
    monkeypatch.setattr(runs, "code_hash", lambda: "another")
    assert recall(spec, tmp_path) is None


def test_a_damaged_record_is_made_again(tmp_path):
    spec = Spec(SMALL, Run("fib-shed", max_iterations=2), 1e-12)
    made = execute(spec, tmp_path)
    (path,) = (p for p in tmp_path.iterdir() if "optimum" not in p.name)
    path.write_bytes(path.read_bytes()[:50])
    again = execute(spec, tmp_path)
    assert [row.f for row in again.rows] == [row.f for row in made.rows]


def test_the_grid_chooses_the_best_step_size(tmp_path):
    tuned = execute(Spec(SMALL, Run("agd", tuned=True, max_iterations=40), 0.0), tmp_path)
    assert tuned.step_size in runs.GRID
    for step_size in runs.GRID:
        other = execute(Spec(SMALL, Run("agd", step_size=step_size, max_iterations=40), 0.0), tmp_path)
        assert tuned.rows[-1].f <= other.rows[-1].f


def test_quick_figures_are_drawn_and_every_claim_is_judged(tmp_path):
    paths = reproduce(
        [load(name, quick=True) for name in names()], tmp_path, tmp_path / "cache", quick=True, jobs=1
    )
    assert len(paths) == len(names())
    for path in paths:
        assert path.read_bytes().startswith(b"#" if path.suffix == ".md" else b"<?xml")
    page = claims.page(tmp_path / "cache", "figures", quick=True)
    verdicts = [line.rsplit("**", 2)[1] for line in page.splitlines() if line.endswith("** |")]
    assert len(verdicts) == len(claims.claims())
    assert set(verdicts) <= {claims.HOLDS, claims.PARTLY, claims.FAILS}
    assert "Quick form" in page


def test_curves_show_what_was_recorded(tmp_path):
    figure = load("least-squares", quick=True)
    for panel in figure.panels:
        for spec in specs_of(figure, panel):
            execute(spec, tmp_path)
    records = recorded(figure, tmp_path)
    drawn = draw(figure, records).axes[0].lines
    first: Record = records[figure.panels[0].title][0]
    assert [line.get_label() for line in drawn] == [run.name for run in figure.panels[0].runs]
    np.testing.assert_allclose(drawn[0].get_xdata(), [row.rounds for row in first.rows])


def test_the_factor_of_theorem_1_is_least_on_s_star():
    spectrum, q = np.array([5.0, 3.0, 2.0, 1.0, 0.5]), 2
    best = 1 - 0.5 / ((2.0 + 0.5) / 2)
    assert spectra.factor(spectrum, q, (2.0 + 0.5) / 2, 1.0) == pytest.approx(best)
    grid = [
        spectra.factor(spectrum, q, r, e) for r in np.linspace(0.1, 4, 60) for e in np.linspace(0.1, 2, 60)
    ]
    assert min(grid) >= best - 1e-12


def test_all_claims_have_a_judge_and_a_figure():
    for claim in claims.claims():
        assert claim.judge in claims.JUDGES
        assert claim.figure in plan.names()
