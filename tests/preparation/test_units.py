"""A column in other units at one site is noted; sites that draw from one distribution hardly ever are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedshed import Study
from fedshed.preparation import prepare

STUDY = Study(family="linear", target="y", columns=("weight", "age", "flag", "group"))


def patients(seed: int, rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "weight": rng.normal(75, 12, rows),
            "age": rng.integers(20, 90, rows),
            "flag": (rng.random(rows) < [0.02, 0.5][seed % 2]).astype(float),
            "group": np.resize(["a", "b"], rows),
            "y": rng.normal(size=rows),
        }
    )


def notes(tables: dict[str, pd.DataFrame], study: Study = STUDY) -> tuple[str, ...]:
    return prepare(tables, study).plan.notes


@pytest.mark.parametrize("sites", [2, 3, 6])
def test_another_unit_is_noted_with_its_site_and_column(sites):
    tables = {f"s{k}": patients(k) for k in range(sites)}
    assert notes(tables) == ()
    where = "at site 's0'" if sites == 2 else "at the other sites"
    tables["s1"]["weight"] *= 1000
    (note,) = notes(tables)
    assert note.startswith("column 'weight': the standard deviation at site 's1' is ")
    assert 500 < float(note.split("'s1' is ")[1].split(" times")[0].replace(",", "")) < 2000
    assert where in note
    tables["s1"] = patients(1).assign(age=lambda f: f["age"] + 1900)  # a year instead of an age
    (note,) = notes(tables)
    assert note.startswith("column 'age': the mean at site 's1' is 9")
    assert where in note


def test_half_of_the_sites_in_another_unit():
    tables = {f"s{k}": patients(k) for k in range(6)}
    for k in (1, 3, 5):
        tables[f"s{k}"]["weight"] *= 1000
    (note,) = notes(tables)
    assert "(and 2 more)" in note


def test_what_is_compared_are_weighted_means_and_variances_of_numbers_with_three_values():
    tables = {name: patients(k).assign(w=np.arange(60) % 4) for k, name in enumerate("ab")}
    tables["a"].loc[3, "age"] = np.nan
    study = Study(family="linear", formula="y ~ log(weight) + age + flag + group", weight="w", missing="drop")
    prepared = prepare(tables, study)
    for site, table in tables.items():
        kept, ready = table.dropna(), prepared.sites[site]
        names = [prepared.plan.columns[j] for j in ready.measured]
        assert names == ["weight", "age"]  # no zeros and ones, no category
        for k, name in enumerate(names):
            mean = np.average(kept[name], weights=kept["w"])
            np.testing.assert_allclose(ready.means[k], mean, rtol=1e-13)
            np.testing.assert_allclose(
                ready.variances[k], np.average((kept[name] - mean) ** 2, weights=kept["w"]), rtol=1e-12
            )


DRAWS = {
    "normal": lambda rng, rows: rng.normal(50, 9, rows),
    "centred": lambda rng, rows: rng.normal(size=rows),
    "exponential": lambda rng, rows: rng.exponential(size=rows),
    "lognormal": lambda rng, rows: rng.lognormal(0, 1, rows),
    "counts": lambda rng, rows: rng.poisson(0.3, rows),
    "overdispersed": lambda rng, rows: rng.negative_binomial(0.5, 0.1, rows),
    "t3": lambda rng, rows: rng.standard_t(3, rows),
}


@pytest.mark.parametrize("name", DRAWS)
def test_sites_with_one_unit_are_hardly_ever_noted(name):
    """At most 1 in 40 random federations of 2 to 20 sites with 1 to 400 rows, for any of these draws."""
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng((seed, len(name)))
        sizes = np.exp(rng.uniform(0, np.log(400), rng.integers(2, 21))).astype(int) + 2
        tables = {
            f"s{k}": {"x": np.asarray(DRAWS[name](rng, rows), float), "y": rng.normal(size=rows)}
            for k, rows in enumerate(sizes)
        }
        alarms += bool(notes(tables, Study(family="linear", target="y", l2=1e-3)))
    assert alarms <= 1


@pytest.mark.parametrize(("rows", "noted"), [(12, False), (900, True)])
def test_of_few_rows_more_than_tenfold_is_asked(rows, noted):
    """Twelvefold at both sizes: 10 (1 + 3 / sqrt(12)) is 19, 10 (1 + 3 / sqrt(900)) is 11."""
    x, y = np.resize([-1.0, 0.0, 1.0], rows), np.random.default_rng(0).normal(size=rows)
    tables = {"a": {"x": x, "y": y}, "b": {"x": 12 * x, "y": y}}
    assert bool(notes(tables, Study(family="linear", target="y"))) == noted


def test_sites_of_different_people_are_not_noted():
    """Means two standard deviations apart, and spreads four times as large."""
    tables = {name: patients(k, 200) for k, name in enumerate("abc")}
    tables["b"]["weight"] += 24
    tables["c"]["weight"] = 75 + 4 * (tables["c"]["weight"] - 75)
    assert notes(tables) == ()


def test_too_few_rows_and_columns_that_vary_between_sites_only_say_nothing():
    tables = {name: patients(k) for k, name in enumerate("ab")}
    tables["c"] = patients(2, 8).assign(weight=lambda f: f["weight"] * 1000)
    assert notes(tables) == ()
    tables["a"]["age"], tables["b"]["age"], tables["c"]["age"] = 1, 1000, 3
    assert notes(tables) == ()
