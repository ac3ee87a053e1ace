"""Curves and tests from counts: those of all rows on an exact grid, within their bounds on others."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed.inference.life_curves import curves
from fedshed.inference.logrank import logrank
from fedshed.objectives.life_table import (
    KINDS,
    LifeTable,
    exact_grid,
    life_table,
    small_count,
    spread,
    told_by,
)

NEVER = -np.inf


def rows(entry, time, event, group):
    return (
        np.asarray(entry, dtype=float), np.asarray(time, dtype=float),
        np.asarray(event, dtype=bool), np.asarray(group, dtype=np.intp),
    )  # fmt: skip


def kaplan_meier(entry, time, event, at):
    """The product over distinct event times, from the rows, as Kaplan and Meier wrote it."""
    S, H = 1.0, 0.0
    for t in np.unique(time[event & (time <= at)]):
        Y, d = ((entry < t) & (t <= time)).sum(), (event & (time == t)).sum()
        S, H = S * (1 - d / Y), H + d / Y
    return S, H


@pytest.fixture(scope="module")
def lung():
    from lifelines.datasets import load_lung

    data = load_lung()
    time, event = data["time"].to_numpy(float), data["status"].to_numpy() > 0
    site = np.digitize(data["inst"].fillna(0).to_numpy(), [2, 20])  # very unequal
    return rows(np.full(len(time), NEVER), time, event, data["sex"].to_numpy() - 1), site


def pooled(subjects, site, grid, groups=2):
    parts = [life_table(grid, *(each[site == i] for each in subjects), groups) for i in np.unique(site)]
    return reduce(add, parts), parts


def test_the_curves_of_an_exact_grid_are_those_of_all_rows(lung):
    from lifelines import KaplanMeierFitter, NelsonAalenFitter
    from lifelines.utils import median_survival_times, restricted_mean_survival_time
    from statsmodels.duration.survfunc import SurvfuncRight

    (_, time, event, group), site = lung
    table, _ = pooled(lung[0], site, exact_grid(np.unique(np.append(time[event], time.max()))))
    for g, curve in enumerate(curves(table)):
        own_time, own_event = time[group == g], event[group == g]
        km = KaplanMeierFitter().fit(own_time, own_event)
        np.testing.assert_allclose(
            curve.survival, km.survival_function_at_times(curve.times), rtol=1e-10, atol=1e-12
        )
        band = np.column_stack(curve.band())
        at_events = np.isin(curve.times, own_time[own_event]) & (curve.survival > 0)
        wanted = km.confidence_interval_.loc[curve.times[at_events]].to_numpy()
        np.testing.assert_allclose(band[at_events], wanted, rtol=1e-10)
        na = NelsonAalenFitter(nelson_aalen_smoothing=False).fit(own_time, own_event)
        np.testing.assert_allclose(curve.hazard, na.cumulative_hazard_at_times(curve.times), rtol=1e-10)
        right = SurvfuncRight(own_time, own_event)
        at = np.isin(curve.times, right.surv_times)
        np.testing.assert_allclose(curve.std_err[at], right.surv_prob_se, rtol=1e-10)
        np.testing.assert_allclose(curve.median()[0], km.median_survival_time_)
        np.testing.assert_allclose(
            curve.median()[1:], median_survival_times(km.confidence_interval_).to_numpy().ravel()
        )
        mean, error, low, high = curve.restricted_mean(500.0)
        assert mean == pytest.approx(restricted_mean_survival_time(km, 500.0), rel=1e-10)
        assert low == pytest.approx(mean, rel=1e-10) == high
        assert error > 0
        assert curve.error_bound <= 1e-12


def test_the_log_rank_tests_are_those_of_all_rows(lung):
    from lifelines.statistics import multivariate_logrank_test
    from statsmodels.duration.survfunc import survdiff

    (_, time, event, group), site = lung
    grid = exact_grid(np.unique(time[event]))
    table, parts = pooled(lung[0], site, grid)
    found = logrank([table])
    oracle = multivariate_logrank_test(time, group, event)
    assert found.statistic == pytest.approx(oracle.test_statistic, rel=1e-10)
    assert found.p == pytest.approx(oracle.p_value, rel=1e-10)
    stratified = logrank(parts)
    statistic, p = survdiff(time, event, group, strata=site)
    assert (stratified.statistic, stratified.p) == pytest.approx((statistic, p), rel=1e-10)
    several = np.digitize(np.arange(len(time)) % 11, [2, 7])  # three groups
    subjects = (*lung[0][:3], several.astype(np.intp))
    three, _ = pooled(subjects, site, grid, groups=3)
    oracle = multivariate_logrank_test(time, several, event)
    assert (logrank([three]).statistic, logrank([three]).df) == (
        pytest.approx(oracle.test_statistic, rel=1e-10), 2
    )  # fmt: skip


def test_late_entries_are_at_risk_from_their_entry_on():
    from lifelines import KaplanMeierFitter

    rng = np.random.default_rng(3)
    entry = rng.integers(0, 10, 200).astype(float)
    time = entry + 1 + rng.integers(0, 20, 200)
    event = rng.random(200) < 0.6
    grid = exact_grid(np.unique(np.append(time[event], time.max())))
    (curve,) = curves(life_table(grid, *rows(entry, time, event, np.zeros(200)), 1))
    km = KaplanMeierFitter().fit(time, event, entry=entry)
    np.testing.assert_allclose(
        curve.survival, km.survival_function_at_times(curve.times), rtol=1e-10, atol=1e-12
    )


def test_the_error_of_a_restricted_mean_is_that_of_a_mean_where_nobody_is_censored():
    time = np.random.default_rng(1).integers(1, 60, 80).astype(float)
    grid = exact_grid(np.unique(time))
    (curve,) = curves(life_table(grid, *rows(np.full(80, NEVER), time, np.ones(80), np.zeros(80)), 1))
    lived = np.minimum(time, 40.0)
    mean, error, *_ = curve.restricted_mean(40.0)
    assert (mean, error) == pytest.approx((lived.mean(), lived.std() / np.sqrt(80)), rel=1e-10)


def heard(told):
    """A table as the Master has it: counts told together are spread over their cells."""
    groups, counts, blocks = range(len(told.beyond)), [], ()
    for kind in KINDS:
        found = [spread(kind, g, getattr(told, kind)[g]) for g in groups]
        counts.append(np.array([each for each, _ in found]))
        blocks += tuple(block for _, more in found for block in more)
    return LifeTable(told.times, *counts, told.beyond, blocks)


SUBJECTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 12), st.booleans(), st.integers(0, 1), st.integers(0, 2)),
    min_size=1, max_size=40,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(SUBJECTS, st.sets(st.integers(1, 22), max_size=6), st.booleans(), st.integers(0, 4))
def test_the_curve_of_all_rows_lies_between_the_bounds(drawn, steps, truncated, least):
    """Ties, single events, empty risk sets, sites with one event or none, whatever the grid is."""
    entry, length, event, group, site = (np.array(each) for each in zip(*drawn, strict=True))
    time = (entry + length + 1 if truncated else length).astype(float)
    entry = entry.astype(float) if truncated else np.full(len(drawn), NEVER)
    subjects = rows(entry, time, event, group)
    grid = np.array(sorted({*steps, 25}), dtype=float)
    _, parts = pooled(subjects, site, grid)
    table = reduce(add, (heard(told_by(part, least)) for part in parts))
    assert table.events.sum() == pytest.approx(subjects[2].sum())
    for g, curve in enumerate(curves(table)):
        own = subjects[3] == g
        for k, t in enumerate(curve.times):
            S, H = kaplan_meier(*(each[own] for each in subjects[:3]), t)
            assert curve.lowest[k] - 1e-12 <= S <= curve.highest[k] + 1e-12
            assert curve.lowest[k] - 1e-12 <= curve.survival[k] <= curve.highest[k] + 1e-12
            assert curve.lowest_hazard[k] <= H + 1e-12
            assert curve.highest_hazard[k] >= H - 1e-12
        assert own.sum() == table.subjects[g]
        check_median_and_mean(curve, subjects, own)


def check_median_and_mean(curve, subjects, own):
    """Those of all rows lie within what is told of them, too."""
    inner = np.unique(np.concatenate([[0.0], subjects[1][own], [25.0]]))
    S = np.array([kaplan_meier(*(each[own] for each in subjects[:3]), t)[0] for t in inner])
    below = inner[S <= 0.5 + 1e-12]
    after, until = curve.median_bounds()
    assert after <= (below[0] if len(below) else np.inf) <= until
    _, _, low, high = curve.restricted_mean(25.0)
    assert low - 1e-9 <= np.diff(inner) @ S[:-1] <= high + 1e-9


@settings(max_examples=100, deadline=None)
@given(SUBJECTS, st.booleans())
def test_an_exact_grid_leaves_nothing_open(drawn, truncated):
    entry, length, event, group, site = (np.array(each) for each in zip(*drawn, strict=True))
    time = (entry + length + 1 if truncated else length).astype(float)
    subjects = rows(entry if truncated else np.full(len(drawn), NEVER), time, event, group)
    table, parts = pooled(subjects, site, exact_grid(np.unique(time)))
    for g, curve in enumerate(curves(table)):
        own = subjects[3] == g
        truth = [kaplan_meier(*(each[own] for each in subjects[:3]), t) for t in curve.times]
        np.testing.assert_allclose(np.column_stack([curve.survival, curve.hazard]), truth, atol=1e-12)
        np.testing.assert_array_equal(curve.lowest, curve.highest)
    for found in (logrank([table]), logrank(parts)):
        assert found.observed.sum() == pytest.approx(found.expected.sum())
        assert found.df <= 1


@settings(max_examples=100, deadline=None)
@given(SUBJECTS, st.integers(1, 6))
def test_no_count_below_the_least_is_told_and_none_is_lost(drawn, least):
    _, time, event, group, _ = (np.array(each) for each in zip(*drawn, strict=True))
    subjects = rows(np.full(len(drawn), NEVER), time, event, group)
    table = life_table(np.arange(1.0, 11.0), *subjects, 2)
    told = told_by(table, least)
    for counts in (told.events, told.censored):
        whole = np.maximum(counts, 0).sum(axis=1, keepdims=True)  # fewer in all are for the site to refuse
        assert ((counts <= 0) | (counts >= np.minimum(least, whole))).all()
    assert (told.events[:, -1] >= 0).all()
    again = heard(told)
    np.testing.assert_allclose(again.events.sum(axis=1), table.events.sum(axis=1))
    np.testing.assert_array_equal(again.subjects, table.subjects)
    few = small_count(told, least)
    assert few is None or 0 < few < least
