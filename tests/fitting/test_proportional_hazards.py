"""The test of proportional hazards is that of R's cox.zph, on one scale of time for all sites.

The oracle is `cox.zph(coxph(... + strata(site)))`, whose values tests/oracles/proportional_hazards.R wrote.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata

import fedshed
from fedshed import ConfigError, DataError, ProtocolError, Study
from fedshed.deployment.config import SiteFile, Source, StudyFile
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.exchange.watched import WatchedModel
from fedshed.fitting.conduct import conduct
from fedshed.fitting.sites import LocalTables
from fedshed.objectives.cox import Cox
from fedshed.objectives.life_table import exact_grid, life_table
from fedshed.objectives.time_scale import TimeScale, pooled_scale
from fedshed.privacy.points import ForbiddenPointError, PointRules, centre_worst, effective_rows
from fedshed.privacy.policy import Policy
from fedshed.protocol.codec import encode
from fedshed.protocol.conversation import Agent
from fedshed.solve.goal import Goal
from fedshed.solve.survival_checks import CheckSurvival, SurvivalCheck
from fedshed.tables.survival import survival

ORACLES = Path(__file__).parents[1] / "oracles"
ZPH = json.loads((ORACLES / "proportional_hazards.json").read_text())
SCALES = ("identity", "log", "rank", "km")
MORE = {"colon": {}, "small_sites": {}, "pbc": {"ties": "breslow"}, "heart": {"entry": "start"}}


def tables(name):
    rows = pd.read_csv(ORACLES / f"{name}.csv")
    return {site: mine.drop(columns="site") for site, mine in rows.groupby("site")}


def study(name, **more):
    columns = tuple(ZPH[name]["names"])
    return Study(family="cox", time="time", event="status", columns=columns, **MORE[name], **more)


def statistics(model):
    facts = model.inference.survival
    found = [*facts.proportional, facts.proportional_global]
    return [one.statistic for one in found], [one.p_value for one in found]


@pytest.mark.parametrize("name", sorted(ZPH))
@pytest.mark.parametrize("scale", SCALES)
def test_statistics_are_those_of_cox_zph_on_every_scale_that_it_has(name, scale):
    model = fedshed.fit(tables(name), study(name, ph_transform=scale))
    theirs = ZPH[name]["tests"][scale]
    np.testing.assert_allclose(model.inference.coef, ZPH[name]["coef"], rtol=1e-7, atol=1e-9)
    chi2, p = statistics(model)
    np.testing.assert_allclose(chi2, theirs["chisq"], rtol=1e-7)
    np.testing.assert_allclose(p, theirs["p"], rtol=1e-6)
    assert model.inference.survival.transform == scale
    said = " ".join(str(model.summary()).split())
    assert f"Its scale of time: {scale}" in said


def test_the_time_itself_is_the_scale_if_none_is_named_and_takes_no_further_exchange():
    plain = fedshed.fit(tables("pbc"), study("pbc"))
    named = fedshed.fit(tables("pbc"), study("pbc", ph_transform="identity"))
    counted = fedshed.fit(tables("pbc"), study("pbc", ph_transform="km"))
    assert statistics(plain) == statistics(named)
    assert plain.run.exchanges == counted.run.exchanges - 2  # the times of events, and the counts
    assert encode(plain.plan.study) == encode(study("pbc"))


def test_a_note_on_a_hazard_ratio_that_changes_names_the_scale():
    said = " ".join(str(fedshed.fit(tables("colon"), study("colon", ph_transform="log")).summary()).split())
    assert "score test of proportional hazards on the log scale of time" in said


def test_a_grid_gives_the_pooled_curve_of_its_cells():
    """On a grid that separates all times of events the test is the exact one; otherwise its P is near."""
    rows = pd.read_csv(ORACLES / "pbc.csv")
    exact = tuple(exact_grid(np.unique(rows.time[rows.status == 1])).tolist())
    for grid, near in ((exact, 1e-6), (tuple(np.arange(200.0, 4800.0, 200.0)), 0.1)):
        asked = study("pbc", ph_transform="km", grid=grid)
        found = conduct(asked, LocalTables(tables("pbc")), Goal(1e-9, 200)).model
        np.testing.assert_allclose(statistics(found)[1], ZPH["pbc"]["tests"]["km"]["p"], atol=near)


def test_a_ridge_leaves_the_test_the_same_for_other_origins_of_time():
    """gamma is tested beside theta, so that a + b g(t) gives the statistic of g(t): cox.zph centres it."""
    given = tables("colon")
    years = {site: t.assign(time=t.time / 365.25) for site, t in given.items()}
    days, years = (fedshed.fit(each, study("colon", l2=1e-3, ph_transform="log")) for each in (given, years))
    np.testing.assert_allclose(statistics(days)[0], statistics(years)[0], rtol=1e-6)


def test_scales_of_all_rows_are_ranks_and_the_kaplan_meier_curve():
    rng = np.random.default_rng(4)
    time = rng.integers(1, 9, size=60).astype(float)
    event, entry = rng.random(60) < 0.6, np.full(60, -np.inf)
    grid = exact_grid(np.unique(np.append(time[event], time.max())))
    table = life_table(grid, entry, time, event, np.zeros(60, dtype=np.intp), 1)
    ranks = pooled_scale("rank", table).of(time[event])
    np.testing.assert_allclose(ranks, rankdata(time)[event] / 60, rtol=1e-12)
    left, curve = 1.0, {}
    for t in np.unique(time[event]):
        curve[t] = 1 - left
        left *= 1 - (event & (time == t)).sum() / (time >= t).sum()
    moments = np.unique(time[event])
    np.testing.assert_allclose(pooled_scale("km", table).of(moments), [curve[t] for t in moments], atol=1e-12)


def test_a_protected_study_has_the_same_test():
    for scale in ("identity", "log"):
        masked = fedshed.fit(tables("pbc"), study("pbc", ph_transform=scale, protected=True))
        np.testing.assert_allclose(statistics(masked)[0], ZPH["pbc"]["tests"][scale]["chisq"], rtol=1e-6)


def test_nodes_count_on_the_grid_of_their_study_and_have_the_test_of_a_fit_here(tmp_path):
    """Behind a policy small counts are told with the next, so that g is a little different."""
    rows = pd.read_csv(ORACLES / "pbc.csv")
    number = rows.pop("site").str[1:].astype(int)
    given = {"a": rows[number <= 6], "b": rows[(number > 6) & (number <= 9)], "c": rows[number > 9]}
    asked = study("pbc", ph_transform="km", grid=(900.0, 2000.0, 5000.0))
    nodes = {}
    for site, table in given.items():
        table.to_csv(tmp_path / f"{site}.csv", index=False)
        policy = Policy(max_curvature=50.0, max_numbers=50.0)
        nodes[site] = Node(
            SiteFile(
                name=site, table=Source(csv=f"{site}.csv"), state=f"state-{site}", audit=f"{site}.jsonl",
                any_study=True, disclosure=policy,
            ),
            tmp_path,
        )  # fmt: skip
    there, _ = conduct_study(StudyFile(asked, tuple(given)), InProcess(nodes))
    here = conduct(asked, LocalTables(given), Goal(1e-9, 200)).model
    assert there.inference.survival.transform == "km"
    np.testing.assert_allclose(statistics(there)[1], statistics(here)[1], atol=0.06)
    with pytest.raises(ConfigError, match="which sites give on a grid only; give grid"):
        StudyFile(study("pbc", ph_transform="km"), tuple(given))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"ph_transform": "km", "weight": "w"}, "weights does not have; use ph_transform = 'identity'"),
        ({"ph_transform": "rank", "protected": True}, "on a grid only; give grid"),
        ({"ph_transform": "sqrt"}, "ph_transform cannot be 'sqrt'"),
    ],
)
def test_a_scale_without_its_counts_is_refused(more, sentence):
    with pytest.raises(ConfigError, match=sentence):
        study("colon", **more)
    with pytest.raises(ConfigError, match="ph_transform is for survival models"):
        Study(family="linear", target="y", ph_transform="log")


def test_an_event_at_time_zero_has_no_logarithm():
    given = tables("pbc")
    given["s012"] = given["s012"].assign(time=lambda t: t.time.where(t.time > t.time.min(), 0.0), status=1.0)
    model = fedshed.fit(given, study("pbc", ph_transform="log"))
    (note,) = (note for note in model.inference.notes if "proportional" in note)
    assert "site 's012': an event at time 0 has no logarithm; use another ph_transform" in note


# --- what a site lets out -------------------------------------------------------------------------------


def watched(times, **rules):
    rng = np.random.default_rng(2)
    model = Cox(rng.normal(size=(len(times), 2)), survival(times, np.ones(len(times))))
    return WatchedModel(model, PointRules(Policy(**rules), model))


def test_a_site_refuses_steps_that_single_out_an_event():
    """With g = 1 after one time and 0 before it, the sum would be that of the events after it alone."""
    site, theta = watched(np.arange(1.0, 61.0)), np.zeros(2)
    even = TimeScale("km", np.arange(10.0, 61.0, 10.0), np.linspace(0, 1, 7))
    assert site.proportionality(theta, even)
    for times, values in (([30.0, 59.0], [0.0, 0.0, 1.0]), ([1.0, 30.0], [0.0, 1.0, 1.0])):
        with pytest.raises(ForbiddenPointError, match="events, or none, in each interval of the grid"):
            site.proportionality(theta, TimeScale("km", np.array(times), np.array(values)))


def test_a_site_refuses_the_time_itself_if_one_event_is_far_from_all_others():
    times = np.arange(1.0, 61.0)
    assert watched(times).proportionality(np.zeros(2), TimeScale("identity"))
    times[-1] = 1e5
    site = watched(times)
    assert site.proportionality(np.zeros(2), TimeScale("log"))
    with pytest.raises(ForbiddenPointError, match="effective_rows"):
        site.proportionality(np.zeros(2), TimeScale("identity"))


@pytest.mark.parametrize("few", [1, 2, 3])
def test_a_site_refuses_the_time_itself_if_a_few_events_are_far_from_all_others(few):
    """The gradient leaves, too, so a reader can shift all times until only the few count."""
    times = np.concatenate([np.linspace(1, 2, 100), 1e4 + np.arange(few)])
    site = watched(times)
    with pytest.raises(ForbiddenPointError, match="effective_rows"):
        site.proportionality(np.zeros(2), TimeScale("identity"))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["even", "exponential", "two far", "ties", "late"])
def test_times_are_shifted_to_where_fewest_events_count(kind, weighted):
    rng = np.random.default_rng(5)
    g = {
        "even": np.arange(1.0, 41.0), "exponential": rng.exponential(size=40), "late": 1e9 + np.arange(40.0),
        "two far": np.append(rng.uniform(1, 2, 38), [1e4, 1.1e4]),
        "ties": np.repeat([1.0, 2.0, 50.0], [30, 9, 1]),
    }[kind]  # fmt: skip
    w = rng.uniform(0.5, 3.0, len(g)) if weighted else np.ones(len(g))
    found = effective_rows(w * centre_worst(g, w))
    spread = np.ptp(g)
    tried = [*g, *np.linspace(g.min() - spread, g.max() + spread, 4001), *np.linspace(1, 2, 1001)]
    assert found <= min(effective_rows(w * (g - c)) for c in tried) * (1 + 1e-6)


def test_an_approved_study_has_one_scale_and_one_grid():
    model = Cox(np.random.default_rng(0).normal(size=(30, 2)), survival(np.arange(1.0, 31.0), np.ones(30)))
    agent, theta = Agent("a", model), np.zeros(2)
    approved = SurvivalCheck(transform="km", grid=(10.0, 20.0))
    steps = np.array([0.0, 0.3, 0.6])
    assert approved.respond(agent, None, CheckSurvival(theta, "km", np.array([10.0, 20.0]), steps), None)
    with pytest.raises(ProtocolError, match="another scale of time"):
        approved.respond(agent, None, CheckSurvival(theta), None)
    with pytest.raises(ProtocolError, match="another grid of times"):
        approved.respond(agent, None, CheckSurvival(theta, "km", np.array([10.0, 21.0]), steps), None)


@pytest.mark.parametrize(
    ("transform", "times", "values"),
    [
        ("identity", [1.0], [0.0, 1.0]), ("km", None, None), ("km", [1.0], None), ("rank", [1.0], [0.0]),
        ("km", [2.0, 1.0], [0.0, 0.5, 1.0]), ("km", [1.0, 2.0], [0.0, 1.0, 0.5]), ("km", [], [0.0]),
    ],
)  # fmt: skip
def test_impossible_scales_are_refused_before_they_are_used(transform, times, values):
    times, values = (None if each is None else np.array(each) for each in (times, values))
    with pytest.raises(ValueError, match="scale"):
        CheckSurvival(np.zeros(2), transform, times, values)


def test_no_error_of_the_data_is_hidden():
    with pytest.raises(DataError, match="time 0"):
        TimeScale("log").of(np.array([0.0, 1.0]))
