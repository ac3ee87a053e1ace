"""The report of a fit: gaps as they are called, standard deviations of all rows, bytes per site."""

from __future__ import annotations

import json
import re
import stat

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

import fedshed
from fedshed.deployment.config import SiteFile, Source
from fedshed.deployment.master import serve
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.privacy.policy import Policy
from fedshed.report import Recorder, Rerun
from fedshed.report.fitted import estimated_gaps, of_model
from fedshed.solve.certificate import Certificate
from reports import rows

SITES = ("a", "b", "c")
STUDY = fedshed.Study(family="logistic", target="y", l2=1e-2)
OPEN = Policy(
    min_rows=1, min_rows_per_class=1, min_rows_per_level=1, max_parameters_per_row=10.0, max_curvature=1e9,
    max_numbers=1e9, max_refusals=1_000_000, effective_rows=1, max_deviance=1e300,
)  # fmt: skip


@pytest.fixture(scope="module")
def tables():
    """Three sites of unequal size: two columns of numbers in other units, one of two values, a category."""
    rng, found = np.random.default_rng(0), {}
    for site, count in zip(SITES, (30, 60, 120), strict=True):
        age, dose = rng.normal(60 + count / 30, 11, count), rng.normal(0.004, 0.001, count)
        smoker, stage = rng.integers(0, 2, count), rng.choice(["I", "II", "III"], count)
        z = 0.05 * (age - 62) + 300 * (dose - 0.004) + smoker - 0.5 + (stage == "III")
        found[site] = pd.DataFrame(
            {
                "age": age,
                "dose": dose,
                "smoker": smoker,
                "stage": stage,
                "y": (z + rng.logistic(size=count) > 0) * 1,
            }
        )
    return found


def made(tables, study=STUDY, **settings):
    recorder = Recorder()
    model = fedshed.fit(tables, study, watch=recorder, **settings)
    return model, of_model(model, recorder, Rerun("", 0), model.summary())


# Gaps


@pytest.mark.parametrize("algorithm", ["fib-shed", "newton", "lbfgs"])
def test_the_estimated_gap_is_the_gap_to_rounding(tables, algorithm):
    """Against the f of a fit with a far smaller tolerance."""
    model, report = made(tables, algorithm=algorithm, tol=1e-5)
    best = min(row.f for row in fedshed.fit(tables, STUDY, algorithm="newton", tol=1e-14).trace)
    (problem,) = report.problems
    assert problem.gap.name == "estimated gap"
    for row in problem.runs[0].rows:
        assert row.gap == pytest.approx(row.f - best, rel=0.2, abs=1e-15)
    assert problem.runs[0].rows[-1].gap == model.certificate.estimate > 0


def test_an_upper_bound_lies_above_and_a_lower_bound_below_and_the_words_say_which():
    trace = [replace(row, gap=None) for row in rows([1.0, 0.1, 0.01])]
    true = [row.f - 0.008 for row in trace]
    upper, above = estimated_gaps(trace, Certificate(1e-2, bound=0.005, estimate=None))
    lower, below = estimated_gaps(trace, None)
    assert all(row.gap >= gap for row, gap in zip(above, true, strict=True))
    assert [row.gap for row in below[:-1]] == [pytest.approx(0.99), pytest.approx(0.09)]
    assert all(row.gap <= gap for row, gap in zip(below[:-1], true, strict=False))
    assert below[-1].gap is None
    assert upper.name == "gap at most"
    assert "upper bound" in upper.note
    assert "lower bound" in lower.note
    assert "optimum is not computed" in lower.note


def test_known_gaps_stay_and_an_empty_trace_has_none():
    trace = rows([1.0, 0.1])
    assert estimated_gaps(trace, Certificate(1.0, 1.0, 1.0))[1] == trace
    assert estimated_gaps((), None)[1] == []


# Standard deviations


@pytest.mark.parametrize("how", ["plain", "standardised", "protected", "formula"])
def test_standard_deviations_are_those_of_all_rows(tables, how):
    pooled = pd.concat(tables.values())
    study = {
        "plain": STUDY,
        "standardised": replace(STUDY, standardize=True),
        "protected": replace(
            STUDY, protected=True, columns=("age", "dose", "smoker", "stage"),
            levels={"stage": ("I", "II", "III")}, classes=(0, 1), categories=("stage",),
        ),
        "formula": fedshed.Study(family="logistic", formula="y ~ age + dose + smoker + log(age)", l2=1e-2),
    }[how]  # fmt: skip
    if how == "protected":
        pytest.importorskip("cryptography")
    model, report = made(tables, study)
    found = {one.name: one.deviation for one in report.fit.coefficients}
    assert found["age"] == pytest.approx(pooled.age.std(ddof=0), rel=1e-6)
    assert found["dose"] == pytest.approx(pooled.dose.std(ddof=0), rel=1e-6)
    if how in ("plain", "formula"):  # two values have no unit, and a transformed column no known one
        assert found["smoker"] is None
        assert found.get("log(age)") is None
    else:
        assert found["smoker"] == pytest.approx(pooled.smoker.std(ddof=0), rel=1e-6)
    assert model.converged


def test_a_column_that_one_site_did_not_measure_has_no_standard_deviation(tables):
    few = {**tables, "a": tables["a"].assign(age=np.where(tables["a"].age > 60, 70.0, 50.0))}
    assert set(made(few)[0].deviations) == {"dose"}


def test_coefficients_are_of_numbers_levels_or_no_column(tables):
    kinds = {one.name: one.kind for one in made(tables)[1].fit.coefficients}
    assert kinds == {
        "age": "number", "dose": "number", "smoker": "number", "stage[II]": "level", "stage[III]": "level",
        "intercept": "constant",
    }  # fmt: skip
    study = fedshed.Study(family="multinomial", target="stage", columns=("age", "dose"), l2=1e-2)
    report = made(tables, study)[1]
    assert {(one.name, one.kind, one.deviation is None) for one in report.fit.coefficients} >= {
        ("age [II]", "number", False), ("dose [III]", "number", False), ("intercept [II]", "constant", True)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("family", "target", "ratio"),
    [("logistic", "y", "odds ratio"), ("poisson", "y", "rate ratio"), ("linear", "age", "")],
)
def test_a_family_has_the_name_of_its_ratio(tables, family, target, ratio):
    study = fedshed.Study(family=family, target=target, l2=1e-2)
    assert made(tables, study)[1].fit.ratio == ratio


# Sites


def test_bytes_of_the_sites_add_up_to_those_of_the_run(tables):
    model, report = made(tables, algorithm="fib-shed")
    (run,) = report.problems[0].runs
    assert [site.name for site in run.traffic] == list(SITES)
    spent = sum(site.uplink_bytes for site in run.traffic)
    assert 0 < spent <= model.trace[-1].uplink_bytes  # the start, from a few sums, is counted in the trace
    assert model.trace[-1].uplink_bytes - spent < 1000


@pytest.fixture(scope="module")
def deployed(tables, tmp_path_factory):
    """The folder of a Master who has conducted a study over nodes."""
    folder = tmp_path_factory.mktemp("master")
    for site in SITES:
        tables[site].to_csv(folder / f"{site}.csv", index=False)
    (folder / "study.toml").write_text(
        'sites = ["a", "b", "c"]\nalgorithm = "fib-shed"\nfamily = "logistic"\ntarget = "y"\nl2 = 0.01\n'
    )
    nodes = {
        site: Node(
            SiteFile(
                site,
                Source(csv=f"{site}.csv"),
                state=f"state-{site}",
                audit=f"audit-{site}.jsonl",
                disclosure=OPEN,
                any_study=True,
            ),
            folder,
        )
        for site in SITES
    }
    serve(folder, lambda _: InProcess(nodes))
    return folder / "results"


def shown(results):
    text = (results / "report.html").read_text()
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))


def test_a_deployed_study_has_a_private_report_with_gap_hessians_and_bytes(deployed):
    assert stat.S_IMODE((deployed / "report.html").stat().st_mode) == 0o600
    trace, data = pd.read_csv(deployed / "trace.csv"), shown(deployed)
    (problem,) = data["problems"]
    (run,) = problem["runs"]
    assert problem["gap"]["name"] == "estimated gap"
    assert run["columns"]["hessians"] == trace.hessians.tolist()
    assert run["columns"]["exchanges"] == trace.exchanges.tolist()
    gaps = np.array(run["columns"]["gap"])
    np.testing.assert_allclose(gaps - gaps[-1], trace.f - trace.f.iloc[-1], atol=1e-15)
    assert [site["name"] for site in run["traffic"]] == list(SITES)
    assert data["fit"]["ratio"] == "odds ratio"
    assert "study that the sites approved" in data["rerun"]["data"]


def test_the_report_of_a_deployed_study_has_no_more_of_a_site_than_the_files_beside_it(deployed):
    """Of single sites: rows (in the summary), bytes and numbers of pairs (in the log); no eigenvalues."""
    data = shown(deployed)
    (problem,) = data["problems"]
    (run,) = problem["runs"]
    assert run["spectra"] == []
    assert {key for agent in problem["agents"] for key in agent} == {"name", "rows", "classes"}
    assert all(agent["classes"] == {} for agent in problem["agents"])
    assert {key for site in run["traffic"] for key in site} == {
        "name", "uplink_bytes", "downlink_bytes", "last", "refused"
    }  # fmt: skip
    log = [json.loads(line) for line in (deployed / "run.jsonl").read_text().splitlines()]
    pairs = {
        (site, line["iteration"] + 1): news["pairs"]
        for line in log if line["kind"] == "round" for site, news in line["sites"].items()
    }  # fmt: skip
    grid = run["pairs"]
    for site, values in zip(grid["agents"], grid["values"], strict=True):
        assert values == [pairs[site, t] for t in grid["iterations"]]
