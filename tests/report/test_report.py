"""The report's data: exact answers however long the trace, names that stay text, one file without links."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from importlib.resources import files

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from fedshed._utils.figure_style import look
from fedshed._utils.names import printable
from fedshed.algorithms import ALGORITHMS
from fedshed.algorithms.base import SiteModel, State
from fedshed.algorithms.shed_curvature import SharedCurvature
from fedshed.cli import app
from fedshed.experiments import ComparisonSpec
from fedshed.experiments.plan import Figure, Panel
from fedshed.experiments.plan import Problem as PlanProblem
from fedshed.experiments.plan import Run as PlanRun
from fedshed.experiments.repeats import Repeats
from fedshed.experiments.reproduce import specs_of
from fedshed.experiments.runs import execute
from fedshed.experiments.sources import of_experiment
from fedshed.fitting.model import Model
from fedshed.report import Agent, Recorder, Run, page, payload, write
from fedshed.report.downsample import MOST_POINTS, TARGETS, spread, thinned
from fedshed.report.page import _words, distinct, embedded
from fedshed.solve.engine import Progress
from fedshed.solve.trace import Trace
from reports import EVIL, FIT, STUDY, bumpy, compared, report, rows


@pytest.fixture(scope="module")
def done():
    return compared()


def data_in(text: str):
    """The data of a page, as a browser reads it."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


# Thinning


@pytest.mark.parametrize("length", [1, 2, MOST_POINTS, MOST_POINTS + 1, 10_000])
@pytest.mark.parametrize("column", ["gap", "grad_norm"])
def test_a_thinned_trace_gives_the_same_answer_to_every_target(length, column):
    whole = rows(bumpy(length))
    few = thinned(whole)

    def first(trace, target):
        return next((row for row in trace if getattr(row, column) < target), None)

    assert [first(few, target) for target in TARGETS] == [first(whole, target) for target in TARGETS]
    assert len(few) <= MOST_POINTS + 2 * len(TARGETS)
    assert (few[0], few[-1]) == (whole[0], whole[-1])


def test_a_thinned_trace_keeps_renewals_where_they_are_few():
    whole = rows(bumpy(10_000), renewed=lambda t: 3 * (t % 97 == 1))
    assert [row for row in thinned(whole) if row.renewed] == [row for row in whole if row.renewed]


def test_answers_skip_what_is_not_a_number():
    gaps = bumpy(5000)
    gaps[::3] = np.nan
    few, whole = Trace(thinned(rows(gaps))), Trace(rows(gaps))
    for target in TARGETS:
        assert few.first_below(target) == whole.first_below(target)


@pytest.mark.parametrize(("count", "most"), [(1, 5), (5, 5), (6, 5), (1000, 7), (3, 1)])
def test_a_spread_has_both_ends_and_no_more_than_asked(count, most):
    found = spread(count, most)
    assert found[0] == 0
    assert len(found) == len(set(found)) == min(count, most)
    assert most == 1 or found[-1] == count - 1


# What a comparison's report holds


def test_the_traces_are_there_to_the_last_bit(done):
    comparison, _, made = done
    (problem,) = data_in(page(made))["problems"]
    for run, (name, result) in zip(problem["runs"], comparison.results.items(), strict=True):
        assert run["name"] == name
        assert run["columns"]["gap"] == [row.gap for row in result.trace]
        assert run["columns"]["uplink_bytes"] == [row.uplink_bytes for row in result.trace]


def test_pairs_held_agree_with_the_trace(done):
    """The most pairs held of one agent is q_max, and a new Hessian begins with few."""
    comparison, recorders, _ = done
    trace, held = comparison.results["fib-shed"].trace, recorders["fib-shed"].pairs()
    assert held.agents == comparison.federation.sites
    assert np.max(held.values, axis=0).tolist() == [trace[t].q_max for t in held.iterations]
    renewals = [k for k, t in enumerate(held.iterations) if trace[t].renewed]
    assert renewals
    assert all(value[k] == 1 for value in held.values for k in renewals)


def test_budgets_are_those_the_links_drew(done):
    """On a new Hessian an agent sends exactly what its link carries."""
    comparison, recorders, made = done
    run = next(run for run in made.problems[0].runs if run.name == "gn-shed+")
    trace, held = comparison.results["gn-shed+"].trace, recorders["gn-shed+"].pairs()
    first = [k for k, t in enumerate(held.iterations) if trace[t].renewed]
    most = min(len(comparison.federation.tables[site].y) for site in held.agents)  # the rank of a Hessian
    for drawn, pairs in zip(run.budget.values, held.values, strict=True):
        assert [pairs[k] for k in first] == [min(drawn[k], most) for k in first]


def test_a_spectrum_falls_and_rho_is_what_follows(done):
    _, recorders, made = done
    for spectrum in recorders["fib-shed"].spectra():
        for step, q in enumerate(spectrum.q):
            values = spectrum.values[spectrum.hessian[step]][:q]
            assert len(values) == q
            assert list(values) == sorted(values, reverse=True)
            assert spectrum.rho[step] <= values[-1]
    whole = next(run for run in made.problems[0].runs if run.name == "fib-shed").spectra[0].whole
    assert len(whole) == 64


def test_an_algorithm_without_eigenpairs_has_no_map(done):
    _, recorders, _ = done
    assert recorders["newton"].pairs() is None
    assert recorders["newton"].spectra() == ()


def test_agents_have_their_rows_and_classes(done):
    comparison, _, made = done
    agents = made.problems[0].agents
    assert {agent.name: agent.rows for agent in agents} == comparison.federation.rows
    assert all(sum(agent.classes.values()) == agent.rows for agent in agents)


def test_the_command_makes_the_same_study_again(monkeypatch, done):
    seen = []

    def run(study, *_, **__):
        seen.append(study)
        raise KeyboardInterrupt

    monkeypatch.setattr(ComparisonSpec, "run", run)
    _, *words = STUDY.command().split()
    CliRunner().invoke(app, words)
    assert seen[0] == STUDY
    assert done[2].rerun.data == {"digits": done[0].federation.fingerprint()}


# One file


def test_names_cannot_leave_the_data(tmp_path):
    """No name adds a tag or a comment to the page, and every name is read back as it may be shown."""

    def written(name):
        made = report(Run(name, rows([1.0])), agents=(Agent(name, 3, {name: 3}),), title=name, fit=FIT)
        return write(tmp_path / "report.html", made).read_text()

    marks = ("<script", "</script", "<!--", "-->", "<b>")
    assert [written(EVIL).count(mark) for mark in marks] == [written("plain").count(mark) for mark in marks]
    found = data_in(written(EVIL))
    assert found["title"] == found["problems"][0]["runs"][0]["name"] == printable(EVIL)


def test_a_placeholder_in_a_name_is_a_name():
    name = "{{script}} {{data}}"
    assert data_in(page(report(Run(name, rows([1.0])), title=name)))["title"] == name


def test_what_is_not_finite_is_null():
    columns = payload(report(Run("a", rows([np.nan, np.inf, 1.0]))))["problems"][0]["runs"][0]["columns"]
    assert json.loads(embedded(columns))["gap"] == [None, None, 1.0]


def test_ten_algorithms_of_a_thousand_iterations_are_written_in_two_seconds_and_six_megabytes(tmp_path):
    runs = [Run(f"run {k}", rows(bumpy(1000, k))) for k in range(10)]
    start = time.process_time()
    path = write(tmp_path / "report.html", report(*runs))
    assert time.process_time() - start < 2
    assert path.stat().st_size < 6e6


def test_the_largest_report_stays_below_six_megabytes():
    """Ten algorithms, ten thousand iterations, a thousand agents, 799 eigenpairs in every round."""
    recorder, names = Recorder(), [f"agent {i}" for i in range(1000)]
    for t in range(1, 201):
        values = np.geomspace(1, 1e-9, 799) * t
        held = SharedCurvature(t, np.zeros(0), values, np.zeros((0, 0)), 1e-9, True, t)
        known = dict.fromkeys(names, SiteModel(np.zeros(0), 0.0, np.zeros(0), held))
        recorder(Progress(State(t, np.zeros(0), known), rows=[None] * t))
    pairs, spectra = recorder.pairs(), recorder.spectra()
    assert pairs.values[0] == (799,) * 100
    trace = rows(bumpy(10_000))
    runs = [Run(f"run {k}", trace, pairs=pairs, budget=pairs, spectra=spectra) for k in range(10)]
    agents = tuple(Agent(name, 60_000, {"y=-1": 50_000, "y=1": 10_000}) for name in names)
    assert len(page(report(*runs, agents=agents)).encode()) < 6e6


def test_the_plotting_library_is_the_one_that_is_named():
    vendor = files("fedshed.report").joinpath("vendor")
    library = vendor.joinpath("plotly-cartesian.min.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() in vendor.joinpath("README.md").read_text()
    assert not re.search(rb"</script|<!--", library, re.IGNORECASE)


def test_no_two_runs_of_a_problem_look_alike():
    names = [f"d = {k}" for k in range(20)] + ["fib-shed", "fib-shed+", "pen", "auto"]
    looks = distinct([Run(name, ()) for name in names])
    assert len(set(looks)) == len(looks)
    assert looks[-4:] == [look(name) for name in names[-4:]]


def test_an_experiment_is_a_report_with_a_problem_for_each_panel(tmp_path):
    plan = Figure("small", "A small experiment", "Fig. 0", "curves", tuple(
        Panel(f"l2 = {l2:g}", PlanProblem("digits", l2, partition="iid", agents=4, target=1), PLANNED)
        for l2 in (1e-1, 1e-2)
    ))  # fmt: skip
    plan = msgspec.structs.replace(plan, seeds=2)
    records = {
        panel.title: [
            Repeats(tuple(execute(spec, tmp_path) for spec in each)) for each in specs_of(plan, panel)
        ]
        for panel in plan.panels
    }
    made = of_experiment(plan, records, "fedshed reproduce small")
    assert [problem.title for problem in made.problems] == ["l2 = 0.1", "l2 = 0.01"]
    for problem, panel in zip(made.problems, plan.panels, strict=True):
        for run, made_by in zip(problem.runs, records[panel.title], strict=True):
            assert [list(run.rows), *map(list, run.repeats)] == [list(one.rows) for one in made_by.records]
        assert problem.runs[0].pairs.of == (4, len(problem.runs[0].rows) - 1)
        assert problem.runs[1].pairs is None
        assert len(problem.agents) == problem.count == 4
    assert set(made.rerun.data) == {"l2 = 0.1", "l2 = 0.01"}


PLANNED = (PlanRun("fib-shed", max_iterations=4), PlanRun("newton", max_iterations=4))


# On the command line


ARGUMENTS = ("compare", "--agents", "3", "--algorithms", "newton", "--max-iterations", "2")


@pytest.mark.parametrize(
    ("options", "written"),
    [((), "out/report.html"), (("--no-report",), None), (("--report", "{}/here.html"), "here.html")],
)
def test_compare_writes_the_report_beside_the_figure_unless_told_not_to(
    tmp_path, monkeypatch, options, written
):
    monkeypatch.setattr("fedshed._utils.canvas.save", lambda *_: [])
    options = [option.format(tmp_path) for option in options]
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path / "out"), *options])
    assert result.exit_code == 0
    pages = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")]
    assert pages == ([] if written is None else [written])
    for path in pages:
        assert len(data_in((tmp_path / path).read_text())["problems"][0]["runs"]) == 1


def test_fit_writes_its_model_into_a_report_that_says_how_to_make_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedshed._utils.canvas.save", lambda *_: [])
    rng = np.random.default_rng(0)
    lines = [
        f"{'abc'[k % 3]},{x:.3f},{int(x + rng.logistic() > 0)}" for k, x in enumerate(rng.normal(size=90))
    ]
    table = tmp_path / "my table.csv"
    table.write_text("site,x,ill\n" + "\n".join(lines) + "\n")
    words = ["fit", str(table), "--target", "ill", "--site", "site", "--no-intercept", "--level", "0.9"]
    assert CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")]).exit_code == 0
    found = data_in((tmp_path / "out" / "report.html").read_text())
    (one,) = found["fit"]["coefficients"]
    model = Model.load(tmp_path / "out" / "model.json")
    assert [one["estimate"], one["standard_error"], one["p_value"], one["low"], one["high"]] == pytest.approx(
        np.delete(model.inference.table(0.9), 2, axis=1)[0].tolist()
    )
    assert found["fit"]["summary"] == str(model.summary(level=0.9, influence=True))
    assert {agent["name"]: agent["rows"] for agent in found["problems"][0]["agents"]} == dict.fromkeys(
        "abc", 30
    )
    assert found["rerun"]["data"] == {"my table.csv": hashlib.sha256(table.read_bytes()).hexdigest()}
    again = shlex.split(found["rerun"]["command"])[1:]
    assert sorted(again) == sorted([*words, "--out", str(tmp_path / "out")])
    (tmp_path / "out" / "model.json").unlink()
    assert CliRunner().invoke(app, again).exit_code == 0
    assert Model.load(tmp_path / "out" / "model.json").coefficients == model.coefficients


def test_every_algorithm_has_a_look_that_the_page_can_draw():
    for name in ALGORITHMS:
        assert set(_words(look(name))) == {"color", "dash", "symbol"}
