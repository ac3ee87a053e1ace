"""`fedshed.fit`, from the tables of the sites to their summary, against other software on the pooled rows."""

from __future__ import annotations

import io
import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from msgspec.structs import replace
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import embedded
import fedshed
from fedshed import DataError, SingularError, Study
from fedshed.datasets.files import content, find
from fedshed.exchange import InProcess, Stateless
from fedshed.fitting.conduct import conduct
from fedshed.fitting.process_sites import TableHost
from fedshed.fitting.sites import HostedTables
from fedshed.inference import per_class
from fedshed.solve.goal import Goal
from fedshed.tables import CsvFormat, read_sites, split

FAMILIES = {
    "linear": sm.families.Gaussian(),
    "logistic": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}
TIGHT = {"tol": 1e-11}
log = np.log  # statsmodels' formulas look functions up here


def raw(relative):
    return pd.read_csv(io.BytesIO(content(relative)))


def pooled(tables):
    return pd.concat(tables.values(), ignore_index=True)


def theirs(study, tables):
    """statsmodels' GLM of the same formula, weights and offset."""
    data = pooled(tables)
    offset = np.log(data[study.exposure]) if study.exposure else data[study.offset] if study.offset else None
    data["target"] = (
        (data[study.target] == data[study.target].max()) if study.classified else data[study.target]
    )
    data["target"] = data["target"].astype(float)
    right = study.formula.partition("~")[2]
    model = smf.glm(
        f"target ~ {right}", data, family=FAMILIES[study.family], offset=offset,
        freq_weights=data[study.weight] if study.weight else None,
    )  # fmt: skip
    return model.fit(tol=1e-14, maxiter=100)


def agree(model, fitted):
    """Coefficients, errors and deviance, by name."""
    names = {_short(name): value for name, value in fitted.params.items()}
    errors = {_short(name): value for name, value in fitted.bse.items()}
    ours = dict(zip(map(_short, model.inference.names), model.inference.std_err(), strict=True))
    assert set(ours) == set(names)
    for name, value in zip(ours, model.inference.coef, strict=True):
        np.testing.assert_allclose(value, names[name], rtol=1e-6, atol=1e-9 * errors[name], err_msg=name)
        np.testing.assert_allclose(ours[name], errors[name], rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(model.inference.deviance, fitted.deviance, rtol=1e-8)


def _short(name):
    """`C(cp)[T.2.0]` is `cp[2]` in ours."""
    for wrapped in (
        "C(cp)",
        "C(restecg)",
        "C(type)",
        "C(livch)",
        "C(VehPower)",
        "C(level)",
        "C(site)",
        "C(fuel)",
        "C(brand)",
        "C(educ)",
        "C(physlm)",
    ):
        name = name.replace(wrapped, wrapped[2:-1])
    return name.replace("[T.", "[").replace(".0]", "]").replace(" ", "").replace("Intercept", "intercept")


# --- real data, unequal sites ------------------------------------------------------------------------


def heart():
    header = (
        *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
        *("slope", "ca", "thal", "num"),
    )
    paths = [find(f"heart/processed.{name}.data") for name in ("cleveland", "hungarian", "switzerland", "va")]
    used = ["age", "sex", "cp", "trestbps", "restecg", "thalach", "exang", "oldpeak", "num"]
    tables = {
        site: table.select(used).to_pandas().dropna()
        for site, table in read_sites(paths, csv=CsvFormat(na_values=("?",), header=header)).items()
    }
    return {
        site: table.assign(disease=np.where(table["num"] > 0, "yes", "no")) for site, table in tables.items()
    }


def motor_claims(rows=30_000):
    data = raw("fremtpl2/freMTPL2freq.csv.xz")
    return split(data.sample(rows, random_state=0), "Region")


def severities():
    amounts = raw("fremtpl2/freMTPL2sev.csv.xz")
    return split(amounts.merge(raw("fremtpl2/freMTPL2freq.csv.xz"), on="IDpol"), "Region")


EMBEDDED = {
    "hospitals": (embedded.hospitals, "logistic", "malignant ~ radius + texture + I(texture**2) + symmetry"),
    "marriages": (
        embedded.marriages,
        "logistic",
        "affair ~ age + I(age**2) + C(educ) + rate_marriage * religious",
    ),
    "claims": (embedded.claims, "poisson", "claims ~ age + log(bonus) + C(fuel) + C(brand)"),
    "visits": (embedded.doctor_visits, "poisson", "mdvis ~ lncoins + idp + lpi + hlthg + hlthf + hlthp"),
    "amounts": (embedded.positive_visits, "gamma", "mdvis ~ lncoins + idp + log(1 + physlm)"),
    "firms": (embedded.firms, "linear", "invest ~ value * capital + log(value)"),
}
LARGER = {
    "heart": (
        heart, "logistic", "disease ~ age + sex + C(cp) + trestbps + C(restecg) + thalach + exang + oldpeak",
    ),
    "medpar": (
        lambda: split(raw("silos/medpar.csv.xz"), "provnum"), "poisson", "los ~ hmo + white + C(type)",
    ),
    "contraception": (
        lambda: split(raw("silos/Contraception.csv.xz"), "district"), "logistic",
        "use ~ age + I(age**2) + urban + C(livch)",
    ),
    "exam": (
        lambda: split(raw("silos/Exam.csv.xz"), "school"), "linear",
        "normexam ~ standLRT * sex + schavg + schgend + vr + intake",
    ),
    "fremtpl2": (
        motor_claims, "poisson", "ClaimNb ~ BonusMalus + log(Density) + Area + C(VehPower) + VehGas",
    ),
    "severities": (severities, "gamma", "ClaimAmount ~ BonusMalus + log(Density) + Area + VehGas"),
}  # fmt: skip


FILES = {
    "heart": [f"heart/processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")],
    "medpar": ["silos/medpar.csv.xz"],
    "contraception": ["silos/Contraception.csv.xz"],
    "exam": ["silos/Exam.csv.xz"],
    "fremtpl2": ["fremtpl2/freMTPL2freq.csv.xz"],
    "severities": ["fremtpl2/freMTPL2freq.csv.xz", "fremtpl2/freMTPL2sev.csv.xz"],
}
REAL = [*EMBEDDED, *(pytest.param(name, marks=pytest.mark.data(*FILES[name])) for name in LARGER)]


@cache
def real(name):
    """The tables of the sites with a column of weights and one of offsets, and the study."""
    load, family, formula = {**EMBEDDED, **LARGER}[name]
    rng = np.random.default_rng(0)
    tables = {
        site: table.assign(
            w=rng.integers(1, 4, len(table)).astype(float), o=0.3 * rng.normal(size=len(table))
        )
        for site, table in load().items()
    }
    assert len({len(table) for table in tables.values()}) > 1
    exposure = {"fremtpl2": "Exposure", "claims": "years"}.get(name)
    return tables, Study(family=family, formula=formula, exposure=exposure)


@pytest.mark.parametrize("name", REAL)
def test_real_tables_give_the_pooled_model(name):
    tables, study = real(name)
    model = fedshed.fit(tables, study, **TIGHT)
    assert model.converged
    agree(model, theirs(study, tables))


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("name", REAL)
def test_weights_and_offsets_whatever_the_scale_of_the_fit(name, standardize):
    tables, study = real(name)
    study = replace(
        study, weight="w", weight_type="frequency", offset=None if study.exposure else "o",
        standardize=standardize,
    )  # fmt: skip
    model = fedshed.fit(tables, study, **TIGHT)
    assert model.converged
    agree(model, theirs(study, tables))


@pytest.mark.data(*FILES["medpar"])
def test_some_hospitals_of_medpar_have_one_row():
    tables, _ = real("medpar")
    assert len(tables) == 54
    assert min(len(table) for table in tables.values()) == 1


def digits(columns):
    """Digits at three unequal sites; `columns` of the 8 x 8 pixels are summed."""
    X, y = load_digits(return_X_y=True)
    X = np.add.reduceat(X.reshape(-1, 8, 8), range(0, 8, 8 // columns), axis=2).sum(axis=1)
    frame = pd.DataFrame(X / 16, columns=[f"x{j}" for j in range(columns)]).assign(digit=y)
    return {"a": frame[:60], "b": frame[60:400], "c": frame[400:]}


def test_digits_give_the_pooled_multinomial_model():
    tables = digits(4)
    model = fedshed.fit(tables, Study(family="multinomial", target="digit"), **TIGHT)
    data = pooled(tables)
    X = sm.add_constant(data.drop(columns="digit"))
    fitted = sm.MNLogit(data["digit"], X).fit(method="newton", disp=0, maxiter=100, tol=1e-13)
    order = ["x0", "x1", "x2", "x3", "const"]
    ours = model.inference
    np.testing.assert_allclose(ours.coef, fitted.params.loc[order].to_numpy().T.ravel(), rtol=1e-6)
    np.testing.assert_allclose(ours.std_err(), fitted.bse.loc[order].to_numpy().T.ravel(), rtol=1e-6)
    np.testing.assert_allclose(model.inference.deviance, -2 * fitted.llf, rtol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_digits_with_a_ridge_are_scikit_learns(weighted):
    tables = {site: frame.assign(w=1.0 + frame.index % 3) for site, frame in digits(8).items()}
    study = Study(family="multinomial", target="digit", l2=1e-3, columns=tuple(f"x{j}" for j in range(8)))
    model = fedshed.fit(
        tables, replace(study, weight="w", weight_type="frequency") if weighted else study, **TIGHT
    )
    data = pooled(tables)
    weights = data["w"] if weighted else np.ones(len(data))
    rival = LogisticRegression(C=1 / (1e-3 * weights.sum()), solver="newton-cg", tol=1e-13, max_iter=1000)
    rival.fit(data[list(study.columns)], data["digit"], sample_weight=weights)
    ours = per_class(model.inference).coef.reshape(10, 9)
    np.testing.assert_allclose(ours[:, :8], rival.coef_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(ours[:, 8], rival.intercept_ - rival.intercept_.mean(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(
        model.predict_proba(data), rival.predict_proba(data[list(study.columns)]), atol=1e-8
    )


# --- awkward sites: as pooled, or a sentence that says what to do ------------------------------------

SITES = {"one row": 1, "one class": 25, "constant": 60, "own level": 120}


def awkward(family, seed=0):
    """Sites of one row, of one class (or one count), with a constant column, and with a level of its own."""
    rng = np.random.default_rng(seed)
    tables = {}
    for site, rows in SITES.items():
        x = np.full(rows, 2.0) if site == "constant" else rng.normal(size=rows)
        level = rng.choice(["a", "b", "c"] if site == "own level" else ["a", "b"], rows)
        z = 0.5 * x + 0.4 * (level == "b") - 0.6 * (level == "c") + 0.2
        y = {
            "linear": z + rng.normal(size=rows),
            "logistic": np.where(rng.random(rows) < 1 / (1 + np.exp(-z)), "yes", "no"),
            "poisson": rng.poisson(np.exp(z)) + 0.0,
            "gamma": rng.gamma(2.0, np.exp(z) / 2),
        }[family]
        tables[site] = pd.DataFrame(
            {"x": x, "level": level, "y": y[:1].repeat(rows) if site == "one class" else y}
        )
    return tables


def of(family, **more):
    return Study(family=family, formula="y ~ x + level", **more)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("standardize", [False, True])
def test_awkward_sites_are_as_pooled(family, standardize):
    tables = awkward(family)
    model = fedshed.fit(tables, of(family, standardize=standardize), **TIGHT)
    assert model.converged
    assert "level[c]" in model.coefficients
    agree(model, theirs(of(family), tables))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_intercept_for_each_site_is_that_of_pooled_dummies(family):
    tables = {site: table.assign(site=site) for site, table in awkward(family).items() if len(table) > 50}
    study = Study(family=family, formula="y ~ x + level + C(site)")
    agree(fedshed.fit(tables, study, **TIGHT), theirs(study, tables))


def test_fractional_counts_are_rates_as_in_pooled_training():
    tables = {site: table.assign(y=table["y"] / 3) for site, table in awkward("poisson").items()}
    agree(fedshed.fit(tables, of("poisson"), **TIGHT), theirs(of("poisson"), tables))


def test_negative_counts_are_refused_with_site_column_and_remedy():
    tables = awkward("poisson")
    tables["constant"].loc[3, "y"] = -1.0
    with pytest.raises(DataError, match=r"'constant'.*'y' is negative in 1 of 60 rows.*correct or drop"):
        fedshed.fit(tables, of("poisson"))


@pytest.mark.parametrize("family", FAMILIES)
def test_collinear_columns_are_named_and_a_ridge_is_a_way_out(family):
    tables = {site: table.assign(twice=2 * table["x"]) for site, table in awkward(family).items()}
    study = Study(family=family, formula="y ~ x + twice + level")
    with pytest.raises(SingularError, match=r"x.*twice.*(drop|leave out|l2 > 0)"):
        fedshed.fit(tables, study)
    assert fedshed.fit(tables, replace(study, l2=1e-3)).converged


@pytest.mark.parametrize("quasi", [False, True])
@pytest.mark.parametrize("family", ["logistic", "multinomial", "poisson"])
def test_perfect_separation_is_reported_as_such_and_a_ridge_is_a_way_out(family, quasi):
    """Complete, or only along a level whose rows are all of one class (all 0 for counts)."""
    tables = awkward("poisson" if family == "poisson" else "logistic")
    for table in tables.values():
        if quasi:
            table.loc[table["level"] == "c", "y"] = 0.0 if family == "poisson" else "no"
        elif family == "poisson":
            table["y"] = 0.0
        else:
            table["x"] = np.where(table["y"] == "yes", 1.0, -1.0) * (1 + table["x"].abs())
    model = fedshed.fit(tables, of(family))
    assert not model.converged
    assert "separated" in model.run.reason
    assert ("level[c]" if quasi else "intercept" if family == "poisson" else "x") in model.run.reason
    assert f"NOT CONVERGED: {model.run.reason}" in " ".join(str(model.summary()).split())
    ridge = fedshed.fit(tables, of(family, l2=1e-2))
    assert ridge.converged == (quasi or family != "poisson")  # no ridge holds the intercept of no events
    assert ridge.converged == ("l2 > 0" in model.run.reason)  # and none is advised where it is no help


@pytest.mark.parametrize(
    ("family", "y", "sentence"),
    [
        ("logistic", "yes", "1 class over all sites .yes.; check the target"),
        ("gamma", 0.0, "the gamma family needs an amount > 0; correct or drop"),
        ("poisson", "many", "must be numbers; convert it or choose another"),
    ],
)
def test_targets_no_model_can_have_are_refused(family, y, sentence):
    tables = {site: table.assign(y=y) for site, table in awkward("linear").items()}
    with pytest.raises(DataError, match=sentence):
        fedshed.fit(tables, of(family))


SMALL = [(family, column) for family in FAMILIES for column in "xy" if (family, column) != ("logistic", "y")]


@pytest.mark.parametrize(("family", "column"), SMALL)
def test_small_units_are_no_convergence_unless_they_are_allowed_for(family, column):
    """In units of 1e-11 the first gradient is below tol; the tol that the sentence advises is enough.

    The gamma family's gradient has no units of y, and a linear model is solved by one exact Newton step.
    """
    tables, study = awkward(family), Study(family=family, formula="y ~ x")
    small = {site: table.assign(**{column: table[column] * 1e-11}) for site, table in tables.items()}
    expected, model = fedshed.fit(tables, study), fedshed.fit(small, study)
    assert model.converged == (family == "linear" or (family, column) == ("gamma", "y"))
    if advice := re.search(r"(?:standardise|larger), or set tol = (\S+)", model.run.reason):
        model = fedshed.fit(small, study, tol=float(advice[1]))
    times = 1e11 if column == "x" else 1e-11 if family == "linear" else 1.0
    assert model.converged, model.run.reason
    assert model.coefficients["x"] == pytest.approx(expected.coefficients["x"] * times, rel=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("far", [0.0, 1e4, 3e5])
def test_columns_far_from_zero_cost_no_more_digits_than_the_summary_says(family, far):
    """Against the standardised fit, whose curvature is well conditioned; small losses need no note."""
    tables = {site: table.assign(x=table["x"] + far) for site, table in awkward(family).items()}
    model = fedshed.fit(tables, of(family))
    exact = fedshed.fit(tables, of(family, standardize=True))
    note = re.search(
        r"x, intercept are nearly collinear, .* good to (\S+) only", " ".join(model.inference.notes)
    )
    lost = np.max(np.abs(model.inference.std_err() / exact.inference.std_err() - 1))
    assert lost < 10 * (float(note[1]) if note else 1e-6)
    assert (note is None) == (far < 1e5)
    assert not exact.inference.notes


def test_separated_levels_are_named_also_where_pen_can_no_longer_code_its_hessian():
    """Its sites decline in the end, as their innovations grow without bound: not because they are silent."""
    rng = np.random.default_rng(0)
    tables = {}
    for site in "abc":
        level = rng.integers(0, 40, 200)
        happened = np.where(level < 8, level % 2, rng.integers(0, 2, 200))
        tables[site] = pd.DataFrame({"level": [f"l{k}" for k in level], "y": np.where(happened, "yes", "no")})
    model = fedshed.fit(tables, Study(family="logistic", target="y", l2=0.0), algorithm="pen")
    assert not model.converged
    assert model.run.reason.startswith("separated: ")


def test_auto_counts_seconds_in_one_process_and_bytes_over_links():
    rng = np.random.default_rng(0)
    tables = {
        site: pd.DataFrame(rng.normal(size=(60, 41))).rename(columns=lambda k: f"x{k}") for site in "ab"
    }
    study = Study(family="linear", target="x0")
    here = fedshed.fit(tables, study)
    assert here.run.algorithm.startswith("newton: all sites are in this process")
    forgetful = fedshed.fit(tables, study, over=Stateless)
    assert "over a network of 50 ms per exchange and 10 Mbit/s" in forgetful.run.algorithm
    slow = fedshed.Network(latency=0.0, rate=1000.0)
    apart = fedshed.fit(tables, study, over=fedshed.ProcessSites(), network=slow)
    assert apart.run.algorithm.startswith("pen: over a network of 0 ms per exchange and 1 kbit/s")
    np.testing.assert_allclose(here.inference.coef, apart.inference.coef, atol=1e-7)


def far_from_zero(mean, seed=0, rows=200):
    """y rises by 1 for each unit of t, whose spread is 1."""
    rng = np.random.default_rng(seed)
    made = {}
    for site in "ab":
        x = rng.normal(size=rows)
        made[site] = pd.DataFrame({"t": mean + x, "y": x + 0.3 * rng.normal(size=rows)})
    return made


def test_a_column_far_from_zero_is_told_from_a_collinear_one():
    """Beside an intercept both are singular to rounding; less their means only one of them still is."""
    tables, study = far_from_zero(1e8), Study(family="linear", target="y")
    with pytest.raises(SingularError, match=r"mean of t is so much larger .*standardize=True, --standardize"):
        fedshed.fit(tables, study)
    model = fedshed.fit(tables, replace(study, standardize=True))
    data = pooled(tables)
    slope = np.polyfit(data["t"] - data["t"].mean(), data["y"], 1)[0]
    assert model.converged
    np.testing.assert_allclose(model.coefficients["t"], slope, rtol=1e-6)
    both = {site: table.assign(near=table["t"] - 1e8) for site, table in tables.items()}
    with pytest.raises(SingularError, match="collinear over all sites and not penalised: t, near; drop one"):
        fedshed.fit(both, study)
    X, y = data[["t"]].to_numpy(), data["y"].to_numpy()
    with pytest.raises(SingularError, match="mean of x0 is so much larger"):
        fedshed.FederatedLinearRegression(l2=0.0).fit(X, y)
    with pytest.raises(SingularError, match="collinear over all sites and not penalised: x0, intercept"):
        fedshed.FederatedLinearRegression(l2=0.0).fit(np.full_like(X, 1e8), y)


@pytest.mark.parametrize("algorithm", ["newton", "fib-shed"])
@pytest.mark.parametrize(("mean", "seed"), [(1e7, 0), (1e8, 0), (1e8, 1), (1e9, 1)])
def test_over_links_a_column_far_from_zero_is_right_or_said_to_be_the_cause(algorithm, mean, seed):
    """The Master has no rows: rounding may look like an optimum there."""
    tables = far_from_zero(mean, seed)
    study = Study(family="linear", target="y")
    hosts = InProcess({site: TableHost(site, table) for site, table in tables.items()})
    sites = HostedTables(hosts, tuple(tables))
    try:
        run = conduct(study, sites, Goal(1e-9, 100), algorithm=algorithm).model.run
        converged, said = run.converged, run.reason
    except SingularError as error:
        converged, said = False, str(error)
    assert not converged
    assert "mean of t is so much larger" in said


def test_a_target_of_tiny_numbers_is_not_told_to_standardise_its_columns():
    """One exact Newton step finds it, whatever tol is; where none is taken, the sentence names the target."""
    tables = far_from_zero(0.0)
    tiny = {site: table.assign(y=1e-12 * table["y"]) for site, table in tables.items()}
    study = Study(family="linear", target="y", standardize=True)
    expected, model = fedshed.fit(tables, study), fedshed.fit(tiny, study)
    assert model.converged
    assert model.coefficients["t"] == pytest.approx(1e-12 * expected.coefficients["t"], rel=1e-8)
    certificate = replace(model.inference.certificate, estimate=1e-25, grad_norm=1e-12)
    off = replace(model.inference, certificate=certificate)
    assert "give the target in units in which its numbers are larger" in off.shortfall
    assert "standardise" not in off.shortfall


def test_tiny_rates_are_not_told_to_standardise_their_columns_and_tiny_columns_are():
    """The curvature of rates is as small as they are, whatever the columns; that of classes is not."""
    tables = far_from_zero(0.0)
    rates = {
        site: table.assign(y=1e-11 * np.exp(table["t"]) * (1 + 0.1 * np.sin(9 * table["t"])))
        for site, table in tables.items()
    }
    reason = fedshed.fit(rates, Study(family="poisson", target="y", standardize=True)).run.reason
    assert "give the target in units in which its numbers are larger, or set tol = " in reason
    assert "standardise" not in reason
    small = {site: table.assign(y=table["y"] > 0, t=1e-9 * table["t"]) for site, table in tables.items()}
    reason = fedshed.fit(small, Study(family="logistic", target="y")).run.reason
    assert "standardise, or set tol = " in reason
