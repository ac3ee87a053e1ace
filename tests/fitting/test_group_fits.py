"""A study whose sites are seen in groups has the estimates and errors of the study without groups."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from fedshed import ConfigError, Group, Study

COLUMNS = ("a", "b", "ward")
GROUPS = (
    Group("north", [Group("coast", ["s0", "s4"]), Group("hills", [Group("far", ["s2", "s7"]), "s1"])]),
    Group("south", ["s3", "s5"]),
)  # and s6 is an agent of its own


def tables(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    site, a, b = rng.integers(0, 8, rows), rng.normal(size=rows), 1e3 * rng.normal(size=rows)
    ward = rng.choice(["x", "y", "z"], rows)
    z = 0.5 * a + 2e-4 * b + 0.3 * (ward == "y")
    columns = {
        "a": a, "b": b, "ward": ward, "number": z + rng.normal(size=rows),
        "event": rng.random(rows) < 0.7, "time": rng.exponential(np.exp(-z)),
        "class": np.where(rng.random(rows) < 1 / (1 + np.exp(-z)), "yes", "no"),
        "count": rng.poisson(np.exp(z)).astype(float), "w": rng.integers(1, 4, rows).astype(float),
        "person": rng.integers(0, 60, rows), "grade": np.digitize(z + rng.logistic(size=rows), [-1, 1]),
    }  # fmt: skip
    return {f"s{k}": {name: values[site == k] for name, values in columns.items()} for k in range(8)}


TABLES = tables()
CASES = {
    "linear": (Study(family="linear", target="number", columns=COLUMNS), "HC3"),
    "standardised": (Study(family="linear", target="number", columns=COLUMNS, standardize=True), "HC2"),
    "weights and clusters": (
        Study(
            family="logistic", target="class", columns=COLUMNS, weight="w", weight_type="frequency",
            cluster="person",
        ), "cluster",
    ),
    "counts, searched": (Study(family="negative-binomial", target="count", columns=COLUMNS), "HC0"),
    "ordered classes": (Study(family="ordinal", target="grade", columns=COLUMNS), None),
    "survival": (Study(family="cox", target="time", event="event", columns=COLUMNS), "HC0"),
    "firth": (Study(family="logistic", target="class", columns=COLUMNS, firth=True), None),
}  # fmt: skip


def fitted(study, errors=None, groups=(), **given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fedshed.fit(TABLES, study, algorithm="newton", errors=errors, groups=groups, **given)


@pytest.mark.parametrize("case", CASES)
def test_a_tree_of_groups_gives_the_estimates_and_errors_of_the_flat_study(case):
    study, errors = CASES[case]
    flat, grouped = (fitted(study, errors, groups) for groups in ((), GROUPS))
    assert grouped.converged
    a, b = flat.inference, grouped.inference
    np.testing.assert_allclose((b.coef - a.coef) / a.std_err(), 0.0, atol=1e-12)
    near = 1e-12 if case != "survival" else 1e-10  # sums over risk sets lose some digits at each site
    for robust in [False] + [errors] * bool(errors):
        np.testing.assert_allclose(b.std_err(robust=robust), a.std_err(robust=robust), rtol=near)
    for name in ("deviance", "null_deviance", "log_likelihood", "rows", "weight"):
        known, found = (getattr(each, name) for each in (a, b))
        assert (found is None) == (known is None)
        np.testing.assert_allclose(found or 0.0, known or 0.0, rtol=1e-11)


def test_groups_stand_in_the_place_of_sites_and_the_summary_says_so():
    model = fitted(*CASES["linear"], GROUPS)
    assert sorted(model.inference.sites) == ["north", "s6", "south"]
    assert model.inference.sites["south"].rows == sum(len(TABLES[i]["a"]) for i in ("s3", "s5"))
    text = " ".join(str(model.summary()).split())
    assert "Groups take the place of their sites: north (5 sites), south (2 sites)." in text
    assert sorted(model.rows) == sorted(TABLES)  # the preparation asks every site


def test_the_bytes_within_groups_are_kept_with_the_model(tmp_path):
    model = fitted(*CASES["linear"], GROUPS)
    north, south = model.run.hops
    assert [hop.name for hop in north.groups] == ["coast", "hills"]
    assert all(hop.uplink_bytes and hop.downlink_bytes for hop in (north, south, *north.groups))
    model.save(tmp_path / "model.json")
    assert fedshed.Model.load(tmp_path / "model.json").run == model.run
    fitted(*CASES["linear"]).save(tmp_path / "flat.json")
    assert "hops" not in (tmp_path / "flat.json").read_text()


def test_an_automatic_choice_adds_up():
    model = fedshed.fit(TABLES, CASES["firth"][0], groups=GROUPS)
    assert model.converged
    linear = fedshed.fit(TABLES, CASES["linear"][0], groups=GROUPS)
    assert fedshed.ALGORITHMS[linear.run.algorithm.partition(":")[0]].algorithm.summable


LINEAR = CASES["linear"][0]
REFUSED = {
    "already sums over all sites; leave out groups": replace(
        LINEAR, protected=True, levels={"ward": ("x", "y", "z")}
    ),
    "leave out groups or holdout": replace(LINEAR, holdout=0.2),
    "leave out groups or site_estimates": replace(LINEAR, site_estimates=True),
    "leave out groups or random_intercept": replace(LINEAR, random_intercept=True),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_needs_single_sites_is_refused(words):
    with pytest.raises(ConfigError, match=words):
        fitted(REFUSED[words], groups=GROUPS)


def test_processes_and_algorithms_that_do_not_add_up_are_refused():
    with pytest.raises(ConfigError, match="this process"):
        fitted(LINEAR, groups=GROUPS, over=fedshed.ProcessSites())
    with pytest.raises(ConfigError, match="qn-shed needs the answer of each site"):
        fedshed.fit(TABLES, LINEAR, algorithm="qn-shed", groups=GROUPS)
    with pytest.raises(ConfigError, match="for a run with groups leave budget out"):
        fedshed.fit(TABLES, LINEAR, groups=GROUPS, budget=2)
    with pytest.raises(ConfigError, match="names 's9', which is not a site"):
        fedshed.fit(TABLES, LINEAR, groups=[Group("north", ["s9"])])
