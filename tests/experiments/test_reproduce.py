"""The figures as data: every experiment loads, runs in its quick form, draws, and is judged."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace

from calls import call
from fedshed import ConfigError
from fedshed._utils import figure_style
from fedshed.algorithms import build
from fedshed.algorithms.linesearch import TwoExchange
from fedshed.algorithms.renewal import Fibonacci
from fedshed.datasets import names as datasets
from fedshed.experiments import claims, plan, problems, runs, spectra
from fedshed.experiments import reproduce as reproducing
from fedshed.experiments.draw import draw
from fedshed.experiments.page import page as whole_page
from fedshed.experiments.plan import Problem, Run, load, load_file, names, select
from fedshed.experiments.provenance import stamp
from fedshed.experiments.repeats import FLOOR, Amount, Repeats, exactly, middle
from fedshed.experiments.reproduce import recorded, reproduce, specs_of
from fedshed.experiments.runs import Record, Spec, execute, recall
from fedshed.experiments.verdicts import threshold

SMALL = Problem("digits", 1e-2, partition="iid", agents=4, target=1)


@pytest.mark.parametrize("name", names())
def test_every_experiment_is_complete_and_names_known_data(name):
    figure = load(name)
    for panel in figure.panels:
        assert panel.problem.dataset in datasets()
        assert figure.kind in ("s-star",) or panel.runs
        assert len({run.name for run in panel.runs}) == len(panel.runs)
    assert load(name, quick=True).title.startswith("QUICK")
    assert load(name, quick=True).x_max == ()  # the paper's axes would hide or squeeze the curves of digits


def test_families_and_mistakes():
    assert select("mnist") == ("mnist-1e-5", "mnist-1e-6")
    assert select("all") == names()
    with pytest.raises(ConfigError, match="did you mean 'w8a'"):
        select("w8b")


def test_a_field_that_says_nothing_changes_no_key(tmp_path):
    """A new field of a problem or run is in the key of a recorded run only where it says something."""
    spec = Spec(SMALL, Run("newton"), 1e-9)
    assert runs._path(spec, tmp_path) != runs._path(replace(spec, run=Run("newton", rate=1.0)), tmp_path)
    assert "preprocessing" not in runs._without_none(SMALL)


PREPROCESSED = """
[problem]
dataset = "mnist"
l2 = 1e-2
preprocessing = "pca-rescaled"
[[runs]]
algorithm = "newton"
[[panels]]
title = "one"
[quick]
dataset = "digits"
"""


def test_a_plan_may_name_a_preprocessing(tmp_path, monkeypatch):
    path = tmp_path / "own.toml"
    path.write_text(PREPROCESSED)
    problem = load_file(path).panels[0].problem
    assert problem.preprocessing == "pca-rescaled"
    asked = []
    monkeypatch.setattr(problems, "load_dataset", lambda name, **how: asked.append(how["preprocessing"]))
    problems.load(problem)
    problems.load(SMALL)
    assert asked == ["pca-rescaled", None]
    quick = load_file(path, quick=True).panels[0].problem
    assert (quick.dataset, quick.preprocessing) == ("digits", None)
    for changes, words in (
        (
            ("rescaled", "rescald"),
            "own.toml: unknown preprocessing 'pca-rescald'; did you mean 'pca-rescaled'",
        ),
        (("mnist", "w8a"), "own.toml: data set 'w8a' has no choice of pre-processing"),
    ):
        path.write_text(PREPROCESSED.replace(*changes))
        with pytest.raises(ConfigError, match=words):
            load_file(path)


def test_a_run_is_made_once_and_then_recalled(tmp_path, monkeypatch):
    spec = Spec(SMALL, Run("fib-shed", max_iterations=5), 1e-12)
    assert recall(spec, tmp_path) is None
    made = execute(spec, tmp_path)
    monkeypatch.setattr(runs, "_make", lambda *_: pytest.fail("made twice"))
    assert execute(spec, tmp_path) == made
    assert len(made.errors) == len(made.rows) == 6
    np.testing.assert_allclose(made.rows[0].gap, made.rows[0].f - made.f_star)


def test_other_settings_and_another_behaviour_are_other_runs(tmp_path, monkeypatch):
    spec = Spec(SMALL, Run("fib-shed", max_iterations=3), 1e-12)
    execute(spec, tmp_path)
    assert recall(Spec(SMALL, Run("fib-shed", max_iterations=4), 1e-12), tmp_path) is None
    now = runs.behaviour_of(spec)
    monkeypatch.setattr(runs, "behaviour_of", lambda _: replace(now, rows=now.rows[:-1]))
    assert recall(spec, tmp_path) is None
    monkeypatch.undo()
    assert recall(spec, tmp_path) is not None


def test_figures_go_on_where_they_were_stopped(tmp_path, monkeypatch):
    """Finished runs are kept, and so are figures whose runs are finished; equal files are left."""
    plans, drawn = [load("rho", quick=True), load("gn-shed", quick=True)], list[str]()

    def stop(done, count, name):
        drawn.append(f"{done}/{count} {name}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(plans, tmp_path, tmp_path / "cache", jobs=1, on_figure=stop)
    assert drawn == ["1/2 rho"]
    first = tmp_path / "rho.svg"
    before = first.stat().st_mtime_ns, first.read_bytes()
    assert not (tmp_path / "gn-shed.svg").exists()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*.mp")}
    recorded(plans[0], tmp_path / "cache")  # all of its runs
    monkeypatch.setattr(reproducing, "stamp", lambda seeds: replace(stamp(seeds), commit="another"))
    paths = reproduce(plans, tmp_path, tmp_path / "cache", jobs=1)
    assert [path.name for path in paths] == ["rho.svg", "gn-shed.svg"]
    assert (first.stat().st_mtime_ns, first.read_bytes()) == before
    assert kept == {path: path.stat().st_mtime_ns for path in kept}  # no run was made twice


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
    page = whole_page(tmp_path / "cache", "figures", quick=True)
    stated = claims.claims()
    lines = page.splitlines()
    verdicts = r"\*\*(holds|holds partly|does not hold|undecided)\*\*"
    rows = [line for line in lines if re.search(rf"\| {verdicts}( \(\d+ of \d+\))? \|$", line)]
    assert len(rows) == len(stated.claims) == page.count("<details") == page.count("</details>")
    assert [row.split(" | ")[2] for row in rows] == [claim.says for claim in stated.claims]
    for contrast in stated.contrasts:
        assert any(line.startswith(f"| {contrast.says} |") for line in lines)
    assert sum(map(int, re.findall(r"\d+", _line(lines, "Of ")))) == 2 * len(stated.claims)
    assert "first Hessian as a matrix" in page
    assert not any("(not in the paper" in line for line in lines)
    assert "Quick form" in page
    assert stamp((0,)).sentence() in page


def _line(lines, start):
    return next(line for line in lines if line.startswith(start))


def test_claims_need_all_runs(tmp_path):
    refused = call("reproduce", "gn-shed", "--quick", "--out", tmp_path, "--results", tmp_path / "page.md")
    assert refused.exit_code == 2
    assert "fedshed reproduce all" in refused.stderr


def test_a_claim_whose_runs_are_missing_says_which(tmp_path):
    with pytest.raises(ConfigError, match="fedshed reproduce rho"):
        whole_page(tmp_path, "figures", quick=True)


def test_curves_show_what_was_recorded(tmp_path):
    figure = load("least-squares", quick=True)
    for panel in figure.panels:
        for (spec,) in specs_of(figure, panel):
            execute(spec, tmp_path)
    records = recorded(figure, tmp_path)
    drawn = draw(figure, records).axes[0].lines
    first: Record = records[figure.panels[0].title][0].first
    assert [line.get_label() for line in drawn] == [run.name for run in figure.panels[0].runs]
    np.testing.assert_allclose(drawn[0].get_xdata(), [row.rounds for row in first.rows])
    for line, run in zip(drawn, figure.panels[0].runs, strict=True):
        look = figure_style.look(run.algorithm)
        assert (line.get_color(), line.get_marker()) == (look.color, look.marker)
        assert line.get_markerfacecolor() == ("white" if look.hollow else look.color)


def test_runs_of_several_seeds_have_medians_within_bands(tmp_path):
    plan = replace(load_file(_own(tmp_path, "fib-shed")), seeds=3)
    panel = plan.panels[0]
    specs = [spec for each in specs_of(plan, panel) for spec in each]
    assert sorted({spec.problem.seed for spec in specs}) == [0, 1, 2]
    for spec in (spec for one in plan.panels for each in specs_of(plan, one) for spec in each):
        execute(spec, tmp_path)
    records = recorded(plan, tmp_path)
    ax = draw(plan, records).axes[0]
    assert len(ax.collections) == len(panel.runs)  # a band each
    counts = records[panel.title][0].amounts("exchanges")
    assert len(counts) == 3
    assert middle(counts).least == np.median([one.least for one in counts])


def test_two_labels_of_one_run_are_one_run(tmp_path):
    made = execute(Spec(SMALL, Run("fib-shed", max_iterations=3), 1e-12), tmp_path)
    found = recall(Spec(SMALL, Run("fib-shed", max_iterations=3, label="the paper's"), 1e-12), tmp_path)
    assert found.name == "the paper's"
    assert found.rows == made.rows


def test_the_factor_of_theorem_1_is_least_on_s_star():
    spectrum, q = np.array([5.0, 3.0, 2.0, 1.0, 0.5]), 2
    best = 1 - 0.5 / ((2.0 + 0.5) / 2)
    assert spectra.factor(spectrum, q, (2.0 + 0.5) / 2, 1.0) == pytest.approx(best)
    grid = [
        spectra.factor(spectrum, q, r, e) for r in np.linspace(0.1, 4, 60) for e in np.linspace(0.1, 2, 60)
    ]
    assert min(grid) >= best - 1e-12


def test_claims_name_thresholds_figures_and_runs_that_exist():
    for claim in claims.claims().claims:
        assert claim.figure in plan.names()
        for test in claim.tests:
            assert threshold(test.by)
            for place in (*test.at, *test.base):
                there = _runs_at(place) | {claims.BOUND}
                assert {*test.of, *(other for run in test.of for other in test.others(run))} <= there


def test_contrasts_are_of_one_problem_under_both_pre_processings():
    for contrast in claims.claims().contrasts:
        pairs = [(contrast.rescaled, contrast.uncentred), (contrast.rescaled_base, contrast.uncentred_base)]
        for pair in (pair for pair in pairs if any(pair)):
            rescaled, uncentred = (_problem_at(place) for place in pair)
            assert rescaled.preprocessing == "pca-rescaled"
            assert uncentred == replace(rescaled, preprocessing="pca-uncentred")
            for place in pair:
                assert {*contrast.of, *filter(None, [contrast.over])} <= _runs_at(place)


def test_the_figures_of_the_paper_have_its_data_and_its_algorithms_only():
    """Images are pre-processed as we believe that the paper did it; L-BFGS and Newton are drawn beside."""
    for name in names():
        figure = load(name)
        if figure.beside or not figure.paper.startswith("Figure"):
            continue
        for panel in figure.panels:
            pictures = panel.problem.dataset in ("fashion-mnist", "emnist-digits")
            assert panel.problem.preprocessing == ("pca-rescaled" if pictures else None)
            assert panel.problem.dataset != "mnist"
            assert not {"lbfgs", "newton", "agd"} & {run.algorithm for run in panel.runs}


def _problem_at(place):
    figure, panel = claims.place_of(place)
    return load(figure).panels[panel].problem


def _runs_at(place):
    figure, panel = claims.place_of(place)
    return {run.name for run in load(figure).panels[panel].runs}


def test_parameters_of_a_run_may_be_parts():
    """GIANT with another beta, and a Fibonacci set from 0, as the files of experiments say it."""
    by_label = {run.name: run for run in load("giant-beta").panels[0].runs}
    giant = runs.configured(by_label[r"giant, $\beta = 0.25$"], runs.data_of(SMALL), SMALL.l2, SMALL.seed)
    assert giant == replace(build("giant"), line_search=TwoExchange(beta=0.25))
    assert by_label[r"giant, $\beta = 0.5$"].options == ()  # the run of the paper's figures, made once
    (late,) = [run for run in load("fibonacci-start").panels[0].runs if run.options]
    assert runs.configured(late, runs.data_of(SMALL), SMALL.l2, SMALL.seed).renewal == Fibonacci(start=0)


def test_three_renewals_are_marked_where_the_paper_marks_them(tmp_path):
    """Figure 6 (b): on the curve, at the iterates whose Hessians are new."""
    figure = load("increments", quick=True)
    for panel in figure.panels:
        for (spec,) in specs_of(figure, panel):
            execute(spec, tmp_path)
    records = recorded(figure, tmp_path)
    marked = [
        [line for line in ax.lines if line.get_label() == "renewals"] for ax in draw(figure, records).axes
    ]
    assert [len(lines) for lines in marked] == [0, 1, 0, 0]
    ((line,),) = (lines for lines in marked if lines)
    rows = records[figure.panels[1].title][0].first.rows
    renewed = [k for k, row in enumerate(rows) if row.renewed][-3:]
    assert [t for t in (1, 2, 4, 7, 12, 20, 33, 54) if t < len(rows)][-3:] == renewed
    np.testing.assert_array_equal(line.get_xdata(), [rows[t - 1].rounds for t in renewed])
    np.testing.assert_array_equal(line.get_ydata(), [rows[t - 1].gap for t in renewed])


def test_a_first_hessian_counts_packed_and_as_a_matrix(tmp_path):
    """FedNL: (n + 1)/2 vectors packed, n as a matrix."""
    record = execute(Spec(SMALL, Run("fednl", max_iterations=3), 1e-12), tmp_path)
    runs_of = Repeats((record,))
    (packed,), (matrix,) = (runs_of.amounts(count, 1e9) for count in ("uplink_vectors", "matrix_vectors"))
    assert packed.least == record.rows[0].uplink_vectors
    assert matrix.least - packed.least == record.n - (record.n + 1) / 2


def test_a_gap_of_a_run_that_was_stopped_before_is_a_bound(tmp_path):
    record = execute(Spec(SMALL, Run("giant", max_iterations=4), 1e-12), tmp_path)
    last = record.rows[-1]
    assert Repeats((record,)).amounts(f"gap@{last.rounds}")[0] == exactly(last.gap)
    assert Repeats((record,)).amounts(f"gap@{last.rounds + 1}")[0] == Amount(FLOOR, last.gap)


# --- experiments of the user's own -----------------------------------------------------------------

OWN = """
title = "Two ridges"
x = ["exchanges"]

[problem]
dataset = "digits"
agents = 4
partition = "iid"

[[panels]]
title = "strong"
l2 = 1e-2

[[panels]]
title = "weak"
l2 = 1e-3

[[runs]]
algorithm = "newton"
max_iterations = 8

[[runs]]
algorithm = "{mine}"
label = "mine"
max_iterations = 8
"""
MINE = "from fedshed.algorithms import Newton\n\n\nclass Mine(Newton, frozen=True, tag=True):\n    {body}\n"


def _own(folder, mine):
    (folder / "own.toml").write_text(OWN.format(mine=mine))
    return folder / "own.toml"


def test_an_experiment_of_the_users_own_with_an_algorithm_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(MINE.format(body="pass"))
    (tmp_path / "own.toml").write_text(OWN.format(mine="my.py:Mine"))
    done = call("reproduce", "--file", "own.toml", "--out", "figures", "--jobs", "1")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "figures/own.svg").exists()
    assert "fedshed reproduce --file own.toml" in (tmp_path / "figures/own.html").read_text()
    plan = load_file("own.toml")
    found = recorded(plan, runs.cache_folder())
    for newton, mine in found.values():
        assert [row.f for row in newton.first.rows] == [row.f for row in mine.first.rows]
    (tmp_path / "my.py").write_text(MINE.format(body='"""Changed."""'))
    ((spec,),) = specs_of(plan, plan.panels[0])[1:]
    assert recall(spec, runs.cache_folder()) is None  # another file is another algorithm


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title =", "title ="), None),
        (('dataset = "digits"', 'dataset = "digit"'), "did you mean 'digits'"),
        (('title = "weak"', 'title = "strong"'), "same title"),
        (('label = "mine"', 'label = "newton"'), "different labels"),
        (('x = ["exchanges"]', 'x = ["exchange"]'), "did you mean 'exchanges'"),
        (("max_iterations = 8", "iterations = 8"), "unknown field `iterations`"),
        (('title = "Two', 'seeds = 0\ntitle = "Two'), "seeds must be at least 1, not 0"),
        (("l2 = 1e-2", ""), "missing required field `l2`"),
        (("[[panels]]", "[[panel]]"), "unknown field 'panel'; did you mean 'panels'"),
        (("title =", "gapp = 1e-3\ntitle ="), "unknown field 'gapp'; did you mean 'gap'"),
        (('title = "Two ridges"', "title = "), "is not TOML"),
        (('x = ["exchanges"]', 'kind = "pie"'), "kind cannot be 'pie'"),
        (
            ('title = "weak"', 'title = "weak"\nrenewals = "shed"'),
            "renewals must be the label of a run, not 'shed'",
        ),
    ],
)
def test_what_is_wrong_in_such_a_file_is_said_before_anything_runs(tmp_path, change, message):
    path = tmp_path / "own.toml"
    path.write_text(OWN.format(mine="fib-shed").replace(*change))
    if message is None:
        assert [panel.title for panel in load_file(path).panels] == ["strong", "weak"]
        return
    with pytest.raises(ConfigError, match=message):
        load_file(path)


def test_the_command_needs_a_name_or_a_file_and_says_which_names(tmp_path):
    for arguments in ((), ("rho", "--file", "own.toml")):
        done = call("reproduce", *arguments)
        assert done.exit_code == 2
        assert all(name in done.stderr for name in names())
    missing = call("reproduce", "--file", tmp_path / "absent.toml")
    assert missing.exit_code == 2
    assert "there is no such file" in missing.stderr
    (tmp_path / "own.toml").write_text(OWN.format(mine="fib-shed"))
    assert "no table [quick]" in call("reproduce", "--file", tmp_path / "own.toml", "--quick").stderr
    assert "fmnist-1e-5" in call("reproduce", "--help").stdout
