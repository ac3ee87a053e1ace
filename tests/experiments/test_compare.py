"""Comparisons: the same data, start and f* for all, nothing run when something is wrong, one look each."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

import fedshed
from fedshed._utils.canvas import save
from fedshed._utils.errors import ConfigError, DataError, SingularError
from fedshed._utils.figure_style import LOOKS, look
from fedshed.algorithms import ALGORITHMS, Newton, Shed
from fedshed.algorithms.base import Algorithm, Info, State, advance, gradient
from fedshed.algorithms.channels import Constant, PerAgent
from fedshed.algorithms.gradients import GradientAlgorithm
from fedshed.cli.compare import _files, _print_summary
from fedshed.datasets.loaders import DATASETS
from fedshed.experiments import ComparisonSpec, compare
from fedshed.experiments import study as study_module
from fedshed.experiments.figure import FLOOR, PANELS, draw
from fedshed.experiments.study import facts
from fedshed.solve.trace import COLUMNS, Trace

NAMES = ("fib-shed", "fib-shed+", "newton")


@pytest.fixture(scope="module")
def federation():
    """Four unequal sites, two classes that no plane separates."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6)) * np.geomspace(1, 0.1, 6)
    y = np.where(X @ rng.normal(size=6) + rng.logistic(size=120) > 0, 1, -1)
    return fedshed.Federation.from_arrays(X, y, sites=np.repeat(list("abcd"), [12, 24, 36, 48]))


@pytest.fixture(scope="module")
def comparison(federation):
    return compare(federation, NAMES, l2=1e-3)


@pytest.fixture
def no_run(monkeypatch):
    """Any run is a failure: what is wrong must be said before."""

    def refuse(*_, **__):
        pytest.fail("something ran before the mistake was named")

    module = sys.modules[compare.__module__]
    monkeypatch.setattr(module, "optimize", refuse)
    monkeypatch.setattr(module, "optimum", refuse)


# What a comparison is


def test_all_reach_the_pooled_optimum_from_the_same_start(federation, comparison):
    theta, f_star = fedshed.optimum(federation, l2=1e-3)
    assert comparison.f_star == f_star
    assert list(comparison.results) == list(NAMES)
    assert len({result.trace[0].f for result in comparison.results.values()}) == 1
    for result in comparison.results.values():
        assert result.converged
        np.testing.assert_allclose(result.theta, theta, atol=1e-6)


def test_each_run_is_what_optimize_gives_alone(federation, comparison):
    budget = {"fib-shed+": fedshed.Rayleigh()}
    for name, result in comparison.results.items():
        alone = fedshed.optimize(
            federation, l2=1e-3, algorithm=name.removesuffix("+"), budget=budget.get(name)
        )
        assert np.array_equal(alone.theta, result.theta)
        assert alone.trace[-1].uplink_bytes == result.trace[-1].uplink_bytes


def test_the_summary_is_the_last_row_per_agent(comparison):
    for one, (name, result) in zip(comparison.summary(), comparison.results.items(), strict=True):
        last = result.trace[-1]
        assert one.algorithm == name
        assert (one.iterations, one.rounds, one.exchanges) == (last.iteration, last.rounds, last.exchanges)
        assert one.kb_up == pytest.approx(last.uplink_bytes / 4 / 1000)
        assert one.kb_down == pytest.approx(last.downlink_bytes / 4 / 1000)
        assert (one.vectors_up, one.hessians, one.gap) == (last.uplink_vectors, last.hessians, last.gap)
        assert (one.converged, one.reason) == (result.converged, result.reason)


def test_a_target_gap_counts_up_to_the_first_iterate_below_it(federation, comparison):
    early = compare(federation, NAMES, l2=1e-3, target_gap=1e-4).summary()
    for one, end in zip(early, comparison.summary(), strict=True):
        assert one.gap < 1e-4
        assert (one.converged, one.reason) == (True, "gap below 0.0001")
        assert one.iterations <= end.iterations
        assert one.kb_up < end.kb_up


def test_a_target_gap_that_is_not_reached_is_said(federation):
    (one,) = compare(federation, ["fib-shed"], l2=1e-3, target_gap=1e-9, max_iterations=1).summary()
    assert not one.converged
    assert one.reason == "gap not below 1e-09; max_iterations = 1 reached"
    assert one.iterations == 1


@pytest.mark.parametrize("gap", [0.0, -1.0, float("nan")])
def test_a_target_gap_that_no_run_can_reach_is_refused(federation, gap):
    with pytest.raises(ConfigError, match=r"target_gap \(--gap\) must be above 0"):
        compare(federation, NAMES, target_gap=gap)


class Unfinished(Algorithm[Any, Any, Any, Any, Any], frozen=True, tag=True):
    """Without anything."""


class Gradients(GradientAlgorithm[Any], frozen=True, tag=True):
    """Asks and answers, but does not step."""

    state: ClassVar[Any] = State[None]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Unfinished(), "has no state and no messages and no ask and no absorb and no step and no respond"),
        (Gradients(), "the class Gradients has no step; docs/extend.md"),
    ],
)
@pytest.mark.usefixtures("no_run")
def test_an_algorithm_that_is_not_complete_is_refused_before_anything_runs(federation, algorithm, words):
    with pytest.raises(ConfigError, match=words):
        compare(federation, ["newton", algorithm])


@pytest.mark.usefixtures("no_run")
def test_links_of_sites_that_do_not_exist_are_refused(federation):
    links = PerAgent({"agent-9999": Constant(3)})
    with pytest.raises(ConfigError, match="'fib-shed': its budget names 'agent-9999', which is not a site"):
        compare(federation, ["fib-shed"], budget=links)


def test_every_row_but_the_last_is_shown_while_it_works(federation, comparison):
    seen = []
    compare(federation, NAMES, l2=1e-3, on_row=lambda name, row: seen.append((name, row.iteration)))
    expected = [
        (name, row.iteration) for name, result in comparison.results.items() for row in result.trace[:-1]
    ]
    assert seen == expected


# Budget and line search go where they belong


def test_a_budget_is_for_those_who_take_one_and_have_no_plus(federation, comparison):
    more = compare(federation, (*NAMES, "mont-dec"), l2=1e-3, budget=5).results
    own = comparison.results
    assert more["fib-shed"].trace[1].uplink_vectors == own["fib-shed"].trace[1].uplink_vectors + 4
    for name in ("fib-shed+", "newton"):
        assert np.array_equal(more[name].theta, own[name].theta)
        assert more[name].trace[-1].uplink_bytes == own[name].trace[-1].uplink_bytes
    assert more["mont-dec"].trace[1].uplink_vectors == more["fib-shed"].trace[1].uplink_vectors


def test_a_line_search_is_for_those_who_search(federation, comparison):
    fused = compare(federation, NAMES, l2=1e-3, line_search=fedshed.Fused()).results
    for name in NAMES:
        assert np.array_equal(fused[name].theta, comparison.results[name].theta)
        assert fused[name].trace[-1].exchanges < comparison.results[name].trace[-1].exchanges
    plain = compare(federation, ["shed-ls"], loss="least-squares", l2=1e-3)
    same = compare(federation, ["shed-ls"], loss="least-squares", l2=1e-3, line_search=fedshed.Fused())
    assert same.results["shed-ls"].trace[-1].uplink_bytes == plain.results["shed-ls"].trace[-1].uplink_bytes


# What is refused


@pytest.mark.usefixtures("no_run")
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("newton", "fib-shd"), "did you mean 'fib-shed'"),
        (("fib-shed", "shed-ls"), "shed-ls is for least-squares only, not for logistic"),
        (("fib-shed", "newton+"), "newton sends messages of fixed size"),
        (("newton", "fib-shed", "newton"), "'newton' is named twice"),
        ((), "at least one algorithm"),
    ],
)
def test_names_that_cannot_work_are_refused_before_anything_runs(federation, names, message):
    with pytest.raises(ConfigError, match=message):
        compare(federation, names)


@pytest.mark.usefixtures("no_run")
def test_a_budget_that_cannot_work_is_refused_before_anything_runs(federation):
    with pytest.raises(ConfigError, match="eigenpairs per round, must be a whole number >= 0, not -1"):
        compare(federation, ["newton", "fib-shed"], budget=-1)


def test_a_singular_problem_is_refused_with_a_remedy():
    twice = fedshed.Federation.from_arrays(np.ones((8, 2)), [1, -1] * 4, sites=list("aaaabbbb"))
    with pytest.raises(SingularError, match="l2 > 0"):
        compare(twice, ["newton"], l2=0.0)


# Studies


def test_a_resolved_study_says_what_it_does():
    study = ComparisonSpec(dataset="digits", agents=5).resolved()
    own = DATASETS["digits"]
    assert (study.agents, study.partition, study.target, study.loss) == (
        5,
        own.partition,
        own.target,
        own.loss,
    )
    assert study.algorithms[0] == "fib-shed"
    assert study.resolved() == study


@pytest.mark.parametrize("loss", ["logistic", "least-squares"])
def test_the_default_algorithms_suit_the_loss(federation, loss):
    names = ComparisonSpec(loss=loss).resolved().algorithms
    assert list(compare(federation, names, loss=loss, max_iterations=1).results) == list(names)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dataset": "digit"}, ConfigError, "did you mean 'digits'"),
        ({"budget": "raleigh"}, ConfigError, "or 'rayleigh', not 'raleigh'"),
        ({"budget": "1.5"}, ConfigError, "whole number"),
        ({"line_search": "fuse"}, ConfigError, "did you mean 'fused'"),
        ({"preprocessing": "pca-rescaled"}, ConfigError, "'digits' has no choice of pre-processing"),
        ({"dataset": "mnist", "preprocessing": "rescaled"}, ConfigError, "did you mean 'pca-rescaled'"),
        ({"partition": "idd"}, ConfigError, "did you mean 'iid'"),
        ({"loss": "logist"}, ConfigError, "did you mean 'logistic'"),
        ({"l2": -1.0}, ConfigError, "l2 must be"),
        ({"tol": float("nan")}, ConfigError, "tol must be"),
    ],
)
def test_a_study_refuses_what_it_cannot_do(options, error, message):
    with pytest.raises(error, match=message):
        ComparisonSpec(**options).run()


def test_the_command_of_a_study_contains_its_preprocessing():
    study = ComparisonSpec(dataset="mnist", preprocessing="pca-rescaled").resolved()
    assert "--dataset mnist" in study.command()
    assert "--preprocessing pca-rescaled" in study.command()
    assert ComparisonSpec(dataset="mnist").resolved().preprocessing == "pca-uncentred"
    assert "--preprocessing" not in ComparisonSpec().resolved().command()


def test_a_study_loads_its_preprocessing(monkeypatch, federation):
    asked = []
    monkeypatch.setattr(study_module, "load", lambda name, **how: asked.append((name, how)) or federation)
    ComparisonSpec(dataset="mnist", preprocessing="pca-rescaled").data()
    ((name, how),) = asked
    assert (name, how["preprocessing"]) == ("mnist", "pca-rescaled")


def test_a_study_of_absent_data_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match="FEDSHED_DATA"):
        ComparisonSpec(dataset="w8a").run()


def test_a_report_can_be_read_as_a_study_again():
    study = ComparisonSpec(agents=4, algorithms=("newton",), budget="3", max_iterations=2).resolved()
    report = json.loads(msgspec.json.encode(facts(msgspec.structs.asdict(study), study.run())))
    assert msgspec.convert(report["settings"], ComparisonSpec) == study


# Traces and figure


def test_the_csv_holds_every_row_to_the_last_bit(comparison):
    rows = list(csv.reader(io.StringIO(comparison.to_csv())))
    assert rows[0] == ["algorithm", *COLUMNS]
    expected = [
        (name, row.iteration, row.f, row.gap) for name in NAMES for row in comparison.results[name].trace
    ]
    columns = [rows[0].index(name) for name in ("algorithm", "iteration", "f", "gap")]
    found = [[row[k] for k in columns] for row in rows[1:]]
    assert [(name, int(t), float(f), float(gap)) for name, t, f, gap in found] == expected


def test_the_figure_draws_each_algorithm_alike_in_every_panel(comparison):
    figure = draw(comparison, "title")
    axes = figure.axes
    assert [ax.get_xlabel() for ax in axes] == [panel.label for panel in PANELS]
    for ax in axes:
        drawn = {
            line.get_label(): (line.get_color(), line.get_linestyle(), line.get_marker()) for line in ax.lines
        }
        expected = {name: (look(name).color, look(name).line, look(name).marker) for name in NAMES}
        assert drawn == expected
        assert ax.get_yscale() == "log"
    assert len(figure.legends) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(NAMES)


def test_gaps_at_rounding_level_are_drawn_at_the_floor_and_a_note_says_so(federation, comparison):
    trial = msgspec.structs.replace(
        comparison.trials[0], results={"newton": _lowered(comparison.results["newton"])}
    )
    below = msgspec.structs.replace(comparison, trials=(trial,))
    (low,) = {min(line.get_ydata()) for ax in draw(below).axes for line in ax.lines}
    assert low == FLOOR
    assert "10^{-16}" in draw(below).get_supxlabel()


def _lowered(result):
    """The same run with a last gap of -1."""
    rows = [*result.trace[:-1], msgspec.structs.replace(result.trace[-1], gap=-1.0)]
    return msgspec.structs.replace(result, trace=Trace(rows))


def test_a_run_that_goes_on_is_cut_and_a_note_says_so(federation):
    long = compare(federation, ["newton", "mont-dec"], l2=1e-3, budget=1, max_iterations=60)
    assert not long.results["mont-dec"].converged
    figure = draw(long)
    end = long.results["newton"].trace[-1].rounds
    assert end < figure.axes[0].get_xlim()[1] < 2 * end
    assert f"after {long.results['mont-dec'].trace[-1].rounds} rounds" in figure.get_supxlabel()


class TooLong(Newton, frozen=True, tag="too-long"):
    """Gradient steps of the wrong length."""

    length: float = 1e6

    def step(self, problem, state):
        g = gradient(problem, state)
        return advance(state, 1e3 * state.theta - self.length * g, g), Info(1.0, 1)


@pytest.mark.parametrize("length", [1e3, float("nan")])
def test_a_run_that_diverges_is_said_once_and_the_others_are_drawn(federation, tmp_path, capsys, length):
    """Its costs of 1e300 ended the figure with `OverflowError: cannot convert float infinity to integer`."""
    found = compare(federation, {"newton": "newton", "mine": TooLong(length=length)}, l2=1e-3)
    named = {one.algorithm: one for one in found.summary()}
    assert named["newton"].converged
    assert named["mine"].reason.startswith("diverged: ")
    written = [path.name for path in _files(tmp_path, found, {}, tmp_path / "report.html")]
    assert {"comparison.png", "networks.png", "report.html"} <= set(written)
    figure = draw(found)
    start = found.results["newton"].trace[0].gap
    for ax in figure.axes:
        assert ax.get_ylim()[1] == pytest.approx(10 * start)
    assert figure.get_supxlabel().count("mine diverged") == 1
    _print_summary(found, every_column=False)
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("mine diverged: ") == 1
    assert "usable answer" not in said


class NoStep(Newton, frozen=True, tag="no-step"):
    """It stops where it starts."""

    def step(self, problem, state):
        yield from ()
        return state, Info(0.0, 0, stopped="the line search found no step size above 2^-40")


def test_a_run_that_found_no_step_is_a_point_with_a_note(federation):
    """It was in the legend alone: one iterate had no marker, and only runs that diverged had a note."""
    figure = draw(compare(federation, {"newton": "newton", "mine": NoStep()}, l2=1e-3))
    assert "mine stopped: the line search found no step size above 2^-40." in figure.get_supxlabel().replace(
        "\n", " "
    )
    mine = next(line for line in figure.axes[0].lines if line.get_label() == "mine")
    assert len(mine.get_xdata()) == 1
    assert mine.get_markevery() is None


def test_a_run_that_converges_to_rounding_is_on_the_map_with_its_figure(federation, capsys):
    found = compare(federation, ["newton", "lbfgs"], l2=1e-3, tol=1e-18)
    for one in found.summary():
        assert one.converged
        assert "converged to rounding" in one.reason
    assert found.time_map().left_out == ()
    _print_summary(found, every_column=False)
    said = " ".join(capsys.readouterr().out.split())
    assert f"the gradient norm, {found.results['lbfgs'].trace[-1].grad_norm:.1e}," in said
    assert "stopped" not in said


def test_the_figure_is_saved_as_png_and_svg_the_same_every_time(comparison, tmp_path):
    first = save(draw(comparison), tmp_path / "a")
    second = save(draw(comparison), tmp_path / "b")
    assert [path.name for path in first] == ["comparison.png", "comparison.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in first[1].read_bytes()


def test_every_algorithm_has_a_look_of_its_own():
    assert set(ALGORITHMS) <= set(LOOKS)
    looks = [look(name + plus) for name in LOOKS for plus in ("", "+")]
    marks = [(one.color, one.marker, one.hollow) for one in looks]  # dots have no line to tell them apart
    assert len(set(marks)) == len(marks)
    assert look("my-method") == look("my-method")
    assert look("my-method") != look("my-method+")
    assert look("fib-shed").color == look("fib-shed+").color


# A user's own algorithms, and repeats


def test_instances_and_names_are_compared_together(federation, comparison):
    own = Newton(line_search=fedshed.Fused())
    found = compare(federation, ["newton", own, Shed(channel=fedshed.Constant(3)), Shed()], l2=1e-3)
    newton, fused, three, plain = found.results
    assert (newton, plain) == ("newton", "Shed")
    assert fused == "Newton(line_search=Fused(alpha=0.1, beta=0.5, candidates=8))"
    assert three == "Shed(channel=Constant(pairs=3))"
    assert np.array_equal(found.results[plain].theta, comparison.results["fib-shed"].theta)
    assert found.results[three].trace[-1].exchanges < found.results[plain].trace[-1].exchanges
    assert found.results[fused].trace[-1].exchanges < found.results[newton].trace[-1].exchanges


def test_a_mapping_names_them(federation):
    wanted = {"d = 3": Shed(channel=fedshed.Constant(3)), "mine": Newton(), "newton": "newton"}
    found = fedshed.compare(federation, wanted, l2=1e-3)
    assert list(found.results) == list(wanted)
    assert np.array_equal(found.results["mine"].theta, found.results["newton"].theta)
    assert [one.algorithm for one in found.summary()] == list(wanted)
    assert [text.get_text() for text in found.plot().legends[0].get_texts()] == list(wanted)


@pytest.mark.usefixtures("no_run")
@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([Newton(), Newton()], "'Newton' is named twice; name each once, or give a dict"),
        ([Newton], "a name or an instance of Algorithm"),
        ({"mine": Newton}, "a name or an instance of Algorithm"),
        ("newton", r"write \['newton'\]"),
        ([Shed(line_search=fedshed.FullStep())], "is for least-squares only"),
        (["absent.py:Mine"], "absent.py: there is no such file"),
        ({}, "at least one algorithm"),
    ],
)
def test_what_is_no_algorithm_is_refused_before_anything_runs(federation, wanted, message):
    with pytest.raises(ConfigError, match=message):
        compare(federation, wanted)


def test_a_file_of_the_users_own_is_compared(federation, tmp_path):
    path = tmp_path / "my.py"
    path.write_text(
        "from fedshed.algorithms import Newton\n"
        "from fedshed import Fused\n"
        "class Mine(Newton, frozen=True, tag=True, kw_only=True):\n    needs: int\n"
        "class Plain(Newton, frozen=True, tag=True):\n    pass\n"
        "fused = Plain(line_search=Fused())\n"
    )
    found = compare(federation, ["newton", f"{path}:Plain", f"{path}:fused"], l2=1e-3)
    assert list(found.results) == ["newton", "Plain", "fused"]
    assert np.array_equal(found.results["Plain"].theta, found.results["newton"].theta)
    for name, message in (("Mine", "needs arguments"), ("Plan", "did you mean 'Plain'")):
        with pytest.raises(ConfigError, match=message):
            compare(federation, [f"{path}:{name}"])
    path.write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"my\.py cannot be loaded: ZeroDivisionError"):
        compare(federation, [f"{path}:Plain"])


@pytest.fixture(scope="module")
def repeated():
    several = [fedshed.datasets.load("digits", agents=4, partition="iid", seed=seed) for seed in (3, 4, 5)]
    return several, compare(several, ["newton", "fib-shed"], l2=1e-2)


def test_repeats_are_the_single_comparisons_and_their_medians(repeated):
    several, found = repeated
    alone = [compare(federation, ["newton", "fib-shed"], l2=1e-2) for federation in several]
    for trial, one in zip(found.trials, alone, strict=True):
        assert trial.f_star == one.f_star
        assert np.array_equal(trial.results["fib-shed"].theta, one.results["fib-shed"].theta)
    for k, summary in enumerate(found.summary()):
        for name in ("exchanges", "kb_up", "gap"):
            values = sorted(getattr(one.summary()[k], name) for one in alone)
            assert [summary.least[name], getattr(summary, name), summary.most[name]] == values
    assert all(one.converged for one in found.summary())
    assert len({one.summary()[1].exchanges for one in alone}) > 1  # else nothing was shown


def test_a_repeat_that_did_not_converge_is_counted(repeated):
    several, _ = repeated
    needed = sorted(compare(one, ["fib-shed"], l2=1e-2).summary()[0].iterations for one in several)
    found = compare(several, ["fib-shed"], l2=1e-2, max_iterations=int(needed[1]))
    (one,) = found.summary()
    assert not one.converged
    assert one.reason.startswith(f"in {sum(k > needed[1] for k in needed)} of 3 repeats: max_iterations")


def test_repeats_say_that_they_are_medians(repeated):
    shown = repr(repeated)
    assert "median (least-most) of 3 partitions" in shown
    assert re.search(r"\d+ \(\d+-\d+\)", shown)


def test_repeats_in_a_frame_in_csv_and_in_json(repeated):
    _, found = repeated
    frame = found.to_pandas()
    assert list(frame.columns) == ["algorithm", "repeat", *COLUMNS]
    assert set(zip(frame["algorithm"], frame["repeat"], strict=True)) == {
        (name, k) for name in ("newton", "fib-shed") for k in range(3)
    }
    part = frame[(frame["algorithm"] == "newton") & (frame["repeat"] == 2)]
    np.testing.assert_array_equal(part["gap"], found.trials[2].results["newton"].trace.column("gap"))
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [(row["algorithm"], int(row["repeat"])) for row in rows] == list(
        zip(frame["algorithm"], frame["repeat"], strict=True)
    )
    assert {row["repeat"] for row in found.traces()["newton"]} == {0, 1, 2}


def test_the_figure_of_repeats_has_medians_between_the_edges_of_bands(repeated):
    _, found = repeated
    for panel, ax in zip(PANELS, found.plot().axes, strict=True):
        assert len(ax.collections) == 2  # a band each
        for name in found.results:
            curve = panel.curve(name, found)
            assert (curve.least <= curve.y).all()
            assert (curve.y <= curve.most).all()
            assert (np.diff(curve.x) > 0).all()
            runs = [panel.points(trial.results[name], 4) for trial in found.trials]
            at = 0.5 * curve.x[-1]  # by hand: the gap of each run's last iterate until then
            gaps = [gap[x <= at][-1] for x, gap in runs]
            shown = curve.y[np.searchsorted(curve.x, at, side="right") - 1]
            assert shown == np.median(gaps)
    assert "medians over 3 partitions" in found.plot().get_supxlabel()


def test_the_report_of_repeats_holds_every_trace(repeated, tmp_path):
    _, found = repeated
    page = found.report(tmp_path / "report.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    (problem,) = data["problems"]
    assert [len(run["repeats"]) for run in problem["runs"]] == [3, 3]
    assert problem["runs"][0]["repeats"][2]["gap"] == [
        row.gap for row in found.trials[2].results["newton"].trace
    ]


def test_a_study_of_repeats_deals_the_rows_anew():
    study = ComparisonSpec(agents=4, algorithms=("newton",), repeats=2, seed=7, max_iterations=2).resolved()
    found = study.run()
    assert [trial.federation.fingerprint() for trial in found.trials] == [
        study.data(7).fingerprint(), study.data(8).fingerprint(),
    ]  # fmt: skip
    assert "--repeats 2" in study.command()
    assert "median of 2 partitions" in found.title
    for wrong in ({"repeats": 0}, {"repeats": 2, "dataset": "heart"}):
        with pytest.raises(ConfigError, match="repeats"):
            ComparisonSpec(**wrong).resolved()
