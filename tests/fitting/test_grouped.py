"""A fit of which only sums leave the sites is the plain fit: estimates, errors, tests and measures of fit.

The sums are in the fixed-point numbers of the wire, 128 bits with 64 of fraction, and 64 bits for Hessians.
"""

import warnings
from math import ldexp

import msgspec
import numpy as np
import pytest
from tests.grouped import grouped_fit
from tests.made_rows import response

import fedshed
from fedshed import Study
from fedshed._utils.errors import ProtocolError
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.registry import ENTRIES
from fedshed.exchange import InProcess, group
from fedshed.exchange.sums import Scaling, join, split
from fedshed.exchange.wire import Traffic
from fedshed.fitting.conduct import problem_of
from fedshed.fitting.process_sites import TableHost
from fedshed.fitting.sites import HostedTables
from fedshed.inference import FewSitesWarning
from fedshed.preparation import negotiate
from fedshed.privacy.addends import Totals
from fedshed.protocol.messages import Costs
from fedshed.solve.site_scores import AskScores
from fedshed.solve.stages import site_scores

SITES, ROWS = 7, 420
SLIM_FRACTION = 62 - 11 - 12  # of a total weight up to 2^11
LEVELS = {"ward": ("x", "y", "z")}
SLOW = ("heavy-ball",)  # does not converge in as many iterations as a test has
SUMMABLE = [entry.name for entry in ENTRIES if entry.algorithm.summable and entry.name not in SLOW]


def fixed(parts):
    """Sums in fixed-point numbers, as masked ones are, of 128 sites at most."""
    raised = np.any([part.raised for part in parts], axis=0)
    wide = _fixed([(part.wide, part.wide_slots) for part in parts], 64, 2.0**54, raised)
    slim = [(part.slim, part.slim_slots) for part in parts]
    slim = _fixed(slim, SLIM_FRACTION, 2.0 ** (55 - SLIM_FRACTION), raised)
    return Totals(wide, slim, raised)


def _fixed(parts, fraction, limit, raised):
    totals = [0] * len(parts[0][0])
    for values, slots in parts:
        for j, value in enumerate(values.tolist()):
            if abs(value) < limit:
                totals[j] += round(ldexp(value, fraction))
            else:
                raised[slots[j]] = True
    return np.array([ldexp(float(total), -fraction) for total in totals])


@pytest.fixture(autouse=True)
def fixed_point(monkeypatch):
    monkeypatch.setattr(group, "add", fixed)


def tables(loss, scale=1.0, holes=0):
    """Unequal sites, one of them without one level and one with a constant column."""
    rng = np.random.default_rng(5)
    ward = rng.choice(LEVELS["ward"], ROWS)
    columns = {
        "a": rng.normal(size=ROWS), "tiny": 1e-7 * rng.normal(size=ROWS),
        "huge": 1e7 * (1 + rng.random(ROWS)), "ward": ward,
        "w": rng.integers(1, 4, ROWS).astype(float), "part": rng.random(ROWS) + 0.1,
        "days": rng.gamma(2.0, size=ROWS) + 0.1, "n": rng.integers(1, 6, ROWS).astype(float),
        "person": rng.integers(0, 200, ROWS),
    }  # fmt: skip
    z = 0.4 * columns["a"] + 3e6 * columns["tiny"] - 3e-8 * columns["huge"] + 0.3 * (ward == "y") + 0.4
    columns["y"] = response(loss, z, rng) if loss != "binomial" else rng.binomial(5, 0.5, ROWS) % 2 * 1.0
    if loss in ("least-squares", "gamma"):
        columns["y"] = columns["y"] * scale
    columns["share"] = rng.binomial(5, 1 / (1 + np.exp(-z)), ROWS) / 5
    columns["hits"] = rng.binomial(columns["n"].astype(int), 1 / (1 + np.exp(-z))).astype(float)
    columns["a"][rng.choice(ROWS, holes, replace=False)] = np.nan
    site = np.minimum(rng.geometric(0.2, ROWS), SITES) - 1
    columns["ward"] = np.where((site == 2) & (ward == "z"), "x", ward)
    columns["a"] = np.where(site == 3, 1.5, columns["a"])
    return {f"s{k}": {name: values[site == k] for name, values in columns.items()} for k in range(SITES)}


def study(family, **given):
    fields = {"target": "y", "columns": ("a", "tiny", "huge", "ward"), "levels": LEVELS} | given
    return Study(family=family, **fields)


CASES = {
    "linear in large units, precision weights": (
        study("linear", weight="part", weight_type="precision"), tables("least-squares", 1e7), "HC3",
    ),
    "linear in small units, standardised": (
        study("linear", standardize=True, l2=0.01), tables("least-squares", 1e-7), "HC0",
    ),
    "logistic by formula, rows missing": (
        study("logistic", columns=None, formula="y ~ a * ward + tiny + scale(huge)", classes=("no", "yes"),
              missing="drop"),
        tables("logistic", holes=30), "HC2",
    ),
    "logistic by positive values, offset and clusters": (
        study("logistic", positive=("yes",), offset="part", cluster="person", standardize=True),
        tables("logistic"), "cluster",
    ),
    "binomial with trials": (study("binomial", target="hits", trials="n"), tables("binomial"), "HC1"),
    "quasi-binomial": (
        study("quasi-binomial", target="share", weight="w", weight_type="precision"), tables("binomial"),
        "HC3",
    ),
    "poisson with exposure": (study("poisson", exposure="days"), tables("poisson"), "HC3"),
    "quasi-poisson, standardised": (
        study("quasi-poisson", standardize=True, weight="part"), tables("poisson"), None,
    ),
    "gamma with weights that count": (
        study("gamma", weight="w", weight_type="frequency"), tables("gamma", 1e5), "HC0"
    ),
    "multinomial": (
        study("multinomial", classes=("low", "mid", "high"), l2={"a": 0.1}), tables("multinomial"), None,
    ),
}  # fmt: skip


def both(case, algorithm="newton"):
    plan, data, errors = CASES[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = fedshed.fit(data, plan, algorithm=algorithm, errors=errors)
    sums = grouped_fit(data, msgspec.structs.replace(plan, protected=True), algorithm, errors)
    return plain, sums


def assert_alike(plain, sums):
    a, b = plain.inference, sums.inference
    assert sums.converged
    assert sums.run.exchanges <= plain.run.exchanges + 6  # two more, and rounding where the plain fit stops
    np.testing.assert_allclose((b.coef - a.coef) / a.std_err(), 0.0, atol=1e-10)
    kinds = [False, True] + ([a.row_kind] if a.row_kind else [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSitesWarning)
        for robust in kinds:
            ours, theirs = (np.sqrt(np.diag(each.covariance(robust))) for each in (b, a))
            assert np.isfinite(theirs).all()
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)
            assert b.freedom(robust) == a.freedom(robust)
    for name in ("deviance", "null_deviance", "pearson", "log_likelihood", "dispersion", "parameters"):
        np.testing.assert_allclose(_number(b, name), _number(a, name), rtol=1e-9)
    assert (b.rows, b.weight_type, b.site_count) == (a.rows, a.weight_type, SITES)
    assert b.heterogeneity.df == a.heterogeneity.df
    np.testing.assert_allclose(b.heterogeneity.statistic, a.heterogeneity.statistic, rtol=1e-9)
    np.testing.assert_allclose(b.clusters, a.clusters, rtol=1e-9)


def _number(inference, name):
    value = getattr(inference, name)
    return np.nan if value is None else value


@pytest.mark.parametrize("case", CASES)
def test_sums_give_all_of_the_plain_fit(case):
    assert_alike(*both(case))


def test_slopes_below_the_step_of_wide_numbers_keep_their_sign():
    """Near the optimum the slope of a search is 1e-24 or less, and decides whether a step is taken."""
    steep, small = 1e-10, 1e-26
    answers = [Costs(np.ones(1), np.array([slope])) for slope in (steep + small, -steep)]
    total = float(sum(answer.slopes[0] for answer in answers))
    assert 0 < total < 2.0**-64
    found = [split([answer], Scaling(1.0, 2.0)) for answer in answers]
    (costs,) = join(found[0][0], fixed([addends for _, addends in found]), Scaling(1.0, 2.0), ())
    np.testing.assert_allclose(costs.slopes, total / 2, rtol=1e-6)


@pytest.mark.parametrize("algorithm", [name for name in SUMMABLE if name != "newton"])
def test_sums_give_the_plain_fit_by_every_algorithm_that_needs_no_more(algorithm):
    assert_alike(*both("logistic by positive values, offset and clusters", algorithm))


def test_the_summary_says_what_a_protected_fit_does_not_tell():
    plan, data, _ = CASES["multinomial"]
    model = grouped_fit(data, msgspec.structs.replace(plan, protected=True))
    text = " ".join(str(model.summary()).split())
    assert list(model.inference.sites) == ["all"]
    assert f"No. sites: {SITES}" in text
    assert "no tables of single sites" in text
    assert "score chi2" not in text
    assert "Heterogeneity of the sites (score test)" in text


def test_a_column_that_depends_on_others_is_named_in_sums_too():
    plan, data, _ = CASES["linear in large units, precision weights"]
    doubled = {i: each | {"b": 2 * each["a"]} for i, each in data.items()}
    wider = msgspec.structs.replace(plan, columns=("a", "b", "tiny"), levels={}, protected=True)
    assert "a, b are collinear" in _reason(doubled, wider)


def _reason(data, plan):
    try:
        return grouped_fit(data, plan).run.reason
    except fedshed.Error as error:
        return str(error)


def test_separated_data_are_found_in_sums_too():
    data = tables("logistic")
    for each in data.values():
        each["y"] = np.where(each["a"] > 0.2, "yes", "no")
    plan = study("logistic", columns=("a",), levels={}, classes=("no", "yes"), protected=True)
    assert "separated" in _reason(data, plan)


def test_a_term_can_be_tested_by_leaving_it_out_of_a_study_with_lists():
    plan, data, _ = CASES["poisson with exposure"]
    by_columns = msgspec.structs.replace(plan, columns=("a", "ward"))
    assert [one.name for one in fedshed.drop_one(data, by_columns).tests] == ["a", "ward"]
    by_formula = msgspec.structs.replace(plan, columns=None, formula="y ~ a + C(ward)")
    assert [one.name for one in fedshed.drop_one(data, by_formula).tests] == ["a", "ward"]


def test_sites_of_a_plain_study_do_not_compare_their_scores():
    """The request carries a direction and a matrix of the asker's choice, which only replayed steps bind."""
    plan, data, _ = CASES["poisson with exposure"]
    hosts = InProcess({site: TableHost(site, table) for site, table in data.items()})
    tables = HostedTables(hosts, tuple(data))
    with tables.prepare() as transport:
        agreed, ready, _ = negotiate(plan, transport)
    problem = problem_of(agreed, ready, stateless=False)
    n, zeros = problem.n, np.zeros(problem.n)
    asked = AskScores(zeros, zeros, zeros, np.zeros(n * (n + 1) // 2))
    with pytest.raises(ProtocolError, match="only in a protected study"):
        site_scores(tables.play(agreed, problem, Newton()), problem, asked, Traffic())
