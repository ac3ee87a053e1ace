"""`fedshed.survival`: curves of all sites, wherever these are, and what a policy lets out of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedshed
from calls import call, strict_json
from embedded import example
from fedshed import ConfigError, DataError, DisclosureError, ProtocolError
from fedshed._utils.errors import CodecError
from fedshed.exchange import Stateless
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.objectives.cox import Cox
from fedshed.privacy.audit import Audit
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy
from fedshed.protocol.codec import codec_of
from fedshed.solve.life_counts import AskCounts, AskTimes, LifeCounts, SurvivalCounts
from fedshed.tables.survival import survival as records

COLUMNS = {"time": "time", "event": "death"}


@pytest.fixture(scope="module")
def hospitals():
    return example("survival")


@pytest.fixture(scope="module")
def found(hospitals):
    return fedshed.survival(hospitals, **COLUMNS, by="sex")


def test_the_curves_of_the_hospitals_are_those_of_all_patients(hospitals, found):
    from lifelines import KaplanMeierFitter
    from lifelines.statistics import multivariate_logrank_test
    from statsmodels.duration.survfunc import survdiff

    data = pd.concat([table.assign(site=name) for name, table in hospitals.items()])
    assert found.groups == ("female", "male")
    assert found.exact
    for sex, curve in found.curves.items():
        own = data[data["sex"] == sex]
        km = KaplanMeierFitter().fit(own["time"], own["death"])
        np.testing.assert_allclose(
            curve.survival, km.survival_function_at_times(curve.times), rtol=1e-10, atol=1e-12
        )
        counted = found.to_frame().query("group == @sex and events > 0").set_index("time")
        wanted = km.event_table[["at_risk", "observed"]].loc[counted.index]
        np.testing.assert_array_equal(counted[["at_risk", "events"]], wanted)
        assert found.to_frame().query("group == @sex")["censored"].sum() == (own["death"] == 0).sum()
    oracle = multivariate_logrank_test(data["time"], data["sex"], data["death"])
    assert found.logrank().statistic == pytest.approx(oracle.test_statistic, rel=1e-10)
    oracle = survdiff(data["time"], data["death"], data["sex"], strata=data["site"])
    assert found.logrank(stratified=True).statistic == pytest.approx(oracle[0], rel=1e-10)
    alone = found.of_site("north")["male"]
    own = data[(data["sex"] == "male") & (data["site"] == "north")]
    km = KaplanMeierFitter().fit(own["time"], own["death"])
    np.testing.assert_allclose(
        alone.survival, km.survival_function_at_times(alone.times), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("over", [Stateless, fedshed.ProcessSites()], ids=["stateless", "processes"])
def test_sites_elsewhere_give_the_same_curves(hospitals, found, over):
    there = fedshed.survival(hospitals, **COLUMNS, by="sex", over=over)
    assert there.to_csv() == found.to_csv()
    assert there.uplink_bytes == found.uplink_bytes


@pytest.mark.parametrize("least", [0, 5])
def test_on_a_grid_the_exact_curves_lie_within_the_bounds(hospitals, found, least):
    coarse = fedshed.survival(hospitals, **COLUMNS, by="sex", every=30, until=900, least=least)
    assert not coarse.exact
    for sex, curve in coarse.curves.items():
        place = np.searchsorted(found[sex].times, curve.times, side="right") - 1
        exact = np.where(place < 0, 1.0, found[sex].survival[place])
        assert (curve.lowest <= exact + 1e-12).all()
        assert (exact <= curve.highest + 1e-12).all()
        assert np.abs(curve.survival - exact).max() <= coarse.error_bound + 1e-12
        after, until = curve.median_bounds()
        assert after <= found[sex].median()[0] <= until
    assert f"within {coarse.error_bound:.2g}" in " ".join(coarse.summary().split())
    assert coarse.uplink_bytes < found.uplink_bytes / 5


def test_without_groups_there_is_one_curve_and_no_test(hospitals):
    from lifelines import KaplanMeierFitter

    whole = fedshed.survival(hospitals, **COLUMNS, until=500)
    data = pd.concat(hospitals.values())
    km = KaplanMeierFitter().fit(data["time"], data["death"])
    assert whole.table.times[-1] == 500
    np.testing.assert_allclose(
        whole["all"].survival, km.survival_function_at_times(whole["all"].times), rtol=1e-10
    )
    with pytest.raises(ConfigError, match="needs at least two groups"):
        whole.logrank()
    with pytest.raises(ConfigError, match="there is no group 'al'; did you mean 'all'"):
        whole["al"]


def test_a_site_without_events_or_of_one_group_takes_part(hospitals):
    """Its subjects are at risk: they belong in the curves."""
    tables = dict(hospitals)
    tables["censored"] = hospitals["north"].assign(death=0)
    tables["men"] = hospitals["south"][hospitals["south"]["sex"] == "male"]
    data = pd.concat(tables.values())
    found = fedshed.survival(tables, **COLUMNS, by="sex")
    split = {"one": data.iloc[::2].reset_index(drop=True), "two": data.iloc[1::2].reset_index(drop=True)}
    assert fedshed.survival(split, **COLUMNS, by="sex").to_csv() == found.to_csv()


def test_late_entries_and_numbered_groups(hospitals):
    from lifelines import KaplanMeierFitter

    tables = {
        name: table.assign(entry=np.arange(len(table)) % 50 - 0.5).query("time > entry and ecog < 3")
        for name, table in hospitals.items()
    }
    tables["north"].loc[tables["north"].index[0], "ecog"] = np.nan
    found = fedshed.survival(tables, **COLUMNS, entry="entry", by="ecog", missing="drop")
    assert found.groups == ("0", "1", "2")
    assert found.dropped == 1
    assert "1 rows with missing values were left out" in found.summary()
    data = pd.concat(tables.values()).dropna(subset=["ecog"])
    own = data[data["ecog"] == 1]
    km = KaplanMeierFitter().fit(own["time"], own["death"], entry=own["entry"])
    np.testing.assert_allclose(
        found["1"].survival, km.survival_function_at_times(found["1"].times), rtol=1e-10, atol=1e-12
    )


def test_a_study_that_cannot_be_is_refused_with_a_sentence(hospitals):
    def refused(error, words, tables=hospitals, **more):
        with pytest.raises(error, match=words):
            fedshed.survival(tables, **(COLUMNS | more))

    refused(ConfigError, "needs an end", every=30)
    refused(ConfigError, "not both", grid=[30, 60], until=90)
    refused(ConfigError, "every must be a finite time above 0", every=-1, until=3)
    refused(ConfigError, "none of them negative", grid=[-1.0, 3.0])
    refused(ConfigError, "after time 0", grid=[0.0])
    refused(ConfigError, "least must be a number of rows", least=-1)
    refused(DataError, "tim", time="tim")
    negative = dict(hospitals, north=hospitals["north"].assign(time=-1))
    refused(DataError, "negative", tables=negative)
    refused(DataError, "'north'.*death", tables=dict(hospitals, north=hospitals["north"].assign(death=2)))
    refused(DisclosureError, "fewer than 40", by="sex", every=30, until=900, least=40)


@pytest.fixture
def cox():
    rng = np.random.default_rng(4)
    time, event = rng.integers(1, 100, 60).astype(float), rng.random(60) < 0.7
    return Cox((rng.random((60, 1)) < 0.5).astype(float), records(time, event))


def ask(answering, part):
    codec = codec_of(SurvivalCounts(), 1)
    payload = codec.encode_request(codec.encode_common(b"run", 1, [part]), None)
    (answer,) = codec.decode_reply(answering.handle(payload)).parts
    return answer


def test_behind_a_policy_no_time_and_no_small_count_leaves(cox, tmp_path):
    policy = Policy(min_rows_per_level=4, min_rows_per_class=4)
    guarded = Guarded(Site("a", cox, SurvivalCounts()), Gate(policy, Audit(tmp_path / "audit"), "study"))
    answer = ask(guarded, AskCounts(np.arange(5.0, 90.0, 5.0), (0,)))
    counts = np.concatenate([answer.events, answer.censored, answer.entered, answer.beyond])
    assert (answer.events == -1).any()
    assert ((counts <= 0) | (counts >= 4)).all()
    with pytest.raises(DisclosureError, match="times of rows stay at the site"):
        ask(guarded, AskTimes())
    strict = Policy(min_rows_per_level=12, min_rows_per_class=5)
    guarded = Guarded(Site("a", cox, SurvivalCounts()), Gate(strict, Audit(tmp_path / "strict"), "study"))
    with pytest.raises(DisclosureError, match="at least 12 rows, or none, in each count"):
        ask(guarded, AskCounts(np.array([50.0]), (0,)))


def test_designs_with_other_columns_and_other_responses_have_no_curves(cox):
    numbers = Cox(np.linspace(0.0, 1.0, 60)[:, None], cox.y)
    with pytest.raises(ProtocolError, match="levels of one category"):
        ask(Site("a", numbers, SurvivalCounts()), AskCounts(np.array([50.0]), (0,)))
    weighted = Cox(cox.X, cox.y, np.ones(60))
    with pytest.raises(ProtocolError, match="has weights"):
        ask(Site("a", weighted, SurvivalCounts()), AskTimes())


def test_impossible_grids_and_counts_are_not_read(cox):
    site = Site("a", cox, SurvivalCounts())
    asked = AskCounts(np.array([1.0, 2.0]))
    backwards = asked.times[::-1].copy()
    codec = codec_of(SurvivalCounts(), 1)
    good = codec.encode_request(codec.encode_common(b"run", 1, [asked]), None)
    bad = good.replace(asked.times.tobytes(), backwards.tobytes())
    assert bad != good
    with pytest.raises(CodecError, match="times of a grid increase"):
        site.handle(bad)
    with pytest.raises(ValueError, match="whole numbers"):
        LifeCounts(np.array([0.5]), np.zeros(1), np.zeros(1), np.zeros(1))


HONEST = SurvivalCounts.respond


def lie(self, agent, cache, part, own_part):
    """As an honest site, but for many more events at the hospital north."""
    _, answer = HONEST(self, agent, cache, part, own_part)
    if isinstance(part, AskCounts) and agent.name == "north":
        return None, LifeCounts(answer.events + 50, answer.censored, answer.entered, answer.beyond)
    return None, answer


def test_a_site_with_more_events_than_rows_is_not_believed(hospitals, monkeypatch):
    monkeypatch.setattr(SurvivalCounts, "respond", lie)
    with pytest.raises(ProtocolError, match=r"site 'north' sent more events than it has rows"):
        fedshed.survival(hospitals, **COLUMNS, by="sex")


def test_the_command_writes_what_it_says(tmp_path, monkeypatch, hospitals, found):
    monkeypatch.chdir(tmp_path)
    assert call("example", "survival", ".").exit_code == 0
    files = ["north.csv", "south.csv", "west.csv"]
    columns = ["--time", "time", "--event", "death", "--by", "sex"]
    done = call("survival", *files, *columns, "--per-site", "--out", "here")
    assert done.exit_code == 0, done.stderr
    assert found.summary() in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        "curves.csv", "report.html", "sites.csv", "summary.txt", "survival.pdf", "survival.svg"
    }  # fmt: skip
    assert (tmp_path / "here/curves.csv").read_text() == found.to_csv()
    sites = pd.read_csv(tmp_path / "here/sites.csv")
    assert set(sites["site"]) == {"north", "south", "west"}
    page = (tmp_path / "here/report.html").read_text()
    assert "chi2(1) = 10.33" in page
    assert "<script" not in page
    first = (tmp_path / "here/survival.pdf").read_bytes()
    again = call("survival", *files, *columns, "--json", "--no-report", "--out", "here")
    assert strict_json(again.stdout)["groups"]["male"]["median"] == [270.0, 210.0, 306.0]
    assert (tmp_path / "here/survival.pdf").read_bytes() == first
    for words, wrong in ((["--time", "time"], "--event"), ([*columns, "--grid", "a,b"], "--grid a,b")):
        refused = call("survival", *files, *words)
        assert refused.exit_code == 2
        assert wrong in refused.stderr


def test_the_figure_shows_each_group_and_who_is_at_risk(found):
    figure = found.plot()
    curves, below = figure.axes
    texts = [text.get_text() for text in below.texts]
    assert {"female", "male", "90", "138"} <= set(texts)
    assert "log-rank p = 0.0013" in curves.get_legend().get_title().get_text()
    steps = {line.get_label(): line.get_ydata() for line in curves.lines if line.get_label() in found.groups}
    np.testing.assert_array_equal(steps["male"][1:], found["male"].survival[: len(steps["male"]) - 1])


def test_the_figure_counts_at_risk_whose_time_is_not_over(hospitals, found):
    """Also where rows were censored between the last event and the tick."""
    data, below = pd.concat(hospitals.values()), found.plot().axes[1]
    ticks = below.get_xticks()
    shown = [int(text.get_text()) for text in below.texts if text.get_text().isdigit()]
    wanted = [(data.loc[data["sex"] == sex, "time"] >= t).sum() for sex in found.groups for t in ticks]
    assert shown == wanted
    assert 0 in wanted
