"""Sites agree on a plan before any gradient moves, and the tables they build are those of pooled training."""

from __future__ import annotations

import formulaic
import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.preprocessing import StandardScaler

import fedshed
from fedshed._utils.errors import ConfigError, DataError
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.preparation import (
    DesignPlan,
    Preparer,
    Study,
    prepare,
    read_study,
    study_of,
)
from fedshed.preparation.formulas import parse
from fedshed.preparation.messages import CODEC
from fedshed.tables import CsvFormat, read_sites, split
from fedshed.tables.frames import Frame, in_order

LEVELS = {"aachen": ("B1", "B2"), "bonn": ("B2", "B10"), "celle": ("B1", "B2", "B10", "north")}


def people(rows: int, levels: tuple[str, ...], seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 9, rows).round(1)
    return pd.DataFrame(
        {
            "age": age,
            "region": np.resize(levels, rows),
            "smoker": rng.random(rows) < 0.4,
            "visits": rng.integers(0, 9, rows),
            "events": rng.poisson(np.exp(0.02 * age)),
            "ill": np.where(rng.random(rows) < 0.5, "yes", "no"),
            "years": rng.uniform(0.1, 2, rows),
            "weight": rng.integers(1, 4, rows).astype(float),
        }
    )


@pytest.fixture
def frames() -> dict[str, pd.DataFrame]:
    return {site: people(30 + 17 * k, levels, k) for k, (site, levels) in enumerate(LEVELS.items())}


COUNTS = Study(
    family="poisson", target="events", columns=("age", "region", "smoker", "visits"), exposure="years",
    weight="weight",
)  # fmt: skip


def pooled(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frames[site] for site in sorted(frames)], ignore_index=True)


class Recorder(InProcess):
    """Keeps the kind of everything that crosses the wire."""

    def exchange(self, payloads):
        self.sent = getattr(self, "sent", [])
        replies = list(super().exchange(payloads))
        asked = [part for payload in payloads.values() for part in CODEC.decode_request(payload).parts]
        answered = [part for _, reply in replies for part in CODEC.decode_reply(reply).parts]
        self.sent += [type(part).__name__ for part in asked + answered]
        return replies


def refusal(frames, study) -> tuple[str, set[str]]:
    """The sentence with which a preparation fails, and the messages that were sent until then."""
    made: list[Recorder] = []
    with pytest.raises(DataError) as caught:
        prepare(frames, study, connect=lambda sites: made.append(Recorder(sites)) or made[0])
    return str(caught.value), set(made[0].sent)


# --- tables --------------------------------------------------------------------------------------


def test_the_design_is_that_of_the_pooled_table(frames):
    """Union of levels in natural order, first level the reference, one column for each of the others."""
    prepared = prepare(frames, COUNTS)
    everything = pooled(frames)
    dummies = {f"region[{level}]": everything["region"] == level for level in ("B2", "B10", "north")}
    expected = pd.DataFrame(
        {
            "age": everything["age"],
            **dummies,
            "smoker[True]": everything["smoker"],
            "visits": everything["visits"],
        }
    )
    table = prepared.federation.pooled()
    assert prepared.plan.names == prepared.federation.columns == tuple(expected.columns)
    np.testing.assert_array_equal(table.X, expected.to_numpy(dtype=float))
    np.testing.assert_array_equal(table.y, everything["events"])
    np.testing.assert_array_equal(table.weights, everything["weight"])
    np.testing.assert_array_equal(table.offset, np.log(everything["years"]))


@pytest.mark.parametrize("family", ["logistic", "multinomial"])
@pytest.mark.parametrize("target", ["ill", "smoker", "visits"])
def test_classes_are_those_of_the_pooled_table(frames, family, target):
    for frame in frames.values():
        frame["visits"] = frame["visits"] % 2
    frames["bonn"] = frames["bonn"][frames["bonn"][target] == frames["bonn"][target].max()]  # one class there
    prepared = prepare(frames, Study(family=family, target=target, columns=("age",)))
    assert prepared.plan.classes == tuple(np.unique(pooled(frames)[target]).tolist())
    np.testing.assert_array_equal(prepared.federation.pooled().y, pooled(frames)[target])
    assert fedshed.optimize(prepared.federation, loss=family, intercept=True, l2=1e-3, tol=1e-8).converged


def test_positive_values_of_a_target(frames):
    """As pooled training on whether the target is one of them; a missing one stays missing."""
    frames["bonn"]["visits"] = frames["bonn"]["visits"].astype(float).where(frames["bonn"]["age"] > 40)
    study = Study(
        family="logistic", target="visits", columns=("age",), positive=(1, 2.0, "7"), missing="drop"
    )
    prepared = prepare(frames, study)
    assert prepared.plan.classes == (False, True)
    expected = pooled(frames)["visits"].dropna().isin([1, 2, 7])
    np.testing.assert_array_equal(prepared.federation.pooled().y, expected)


def native(kind: str, frame: pd.DataFrame):
    if kind == "dict":
        return {name: frame[name].tolist() for name in frame.columns}
    if kind == "categorical":
        return frame.assign(
            region=frame["region"].astype("category"), smoker=frame["smoker"].astype("boolean")
        )
    return {"polars": pl.from_pandas, "arrow": pa.Table.from_pandas, "objects": lambda f: f.astype(object)}[
        kind
    ](frame)


@pytest.mark.parametrize("kind", ["polars", "arrow", "dict", "categorical", "objects"])
@pytest.mark.parametrize(
    "study", [COUNTS, Study(family="linear", formula="age ~ region*smoker + log(years)")]
)
def test_any_frame_gives_the_same_tables(frames, kind, study):
    expected = prepare(frames, study)
    found = prepare({site: native(kind, frame) for site, frame in frames.items()}, study)
    assert found.plan == expected.plan
    assert found.federation.fingerprint() == expected.federation.fingerprint()
    assert found.traffic == expected.traffic


def test_order_of_columns_and_sites_does_not_matter(frames):
    study = Study(family="linear", target="age", standardize=True, columns=("smoker", "region", "visits"))
    turned = {site: frame[frame.columns[::-1]] for site, frame in reversed(frames.items())}
    one, other = prepare(frames, study), prepare(turned, study)
    assert one.plan == other.plan
    assert one.federation.fingerprint() == other.federation.fingerprint()


def test_without_a_list_every_other_column_is_used(frames):
    study = Study(family="poisson", target="events", exposure="years", weight="weight", site="ill")
    assert prepare(frames, study).plan.columns == ("age", "region", "smoker", "visits")


def test_integers_at_one_site_are_the_same_numbers_and_levels(frames):
    frames["bonn"]["visits"] = frames["bonn"]["visits"].astype(float)
    study = Study(family="linear", target="age", columns=("visits",), categories=("visits",))
    assert prepare(frames, study).plan.levels["visits"] == tuple(map(str, range(9)))


@pytest.mark.parametrize(
    "study", [{"columns": ()}, {"formula": "age ~ 1"}, {"formula": "age ~ 1", "standardize": True}]
)
def test_a_model_of_an_intercept_alone_is_the_mean(frames, study):
    prepared = prepare(frames, Study(family="linear", target="age", **study))
    result = fedshed.optimize(
        prepared.federation, loss="least-squares", l2=prepared.plan.l2(), intercept=prepared.plan.intercept
    )
    np.testing.assert_allclose(result.theta, [pooled(frames)["age"].mean()])
    with pytest.raises(ConfigError, match="no column is left"):
        prepare(frames, Study(family="linear", formula="age ~ 0"))


def test_masked_entries_are_missing_and_declared_categories_are_categories():
    x = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])
    assert Frame({"x": x}).column("x").missing.tolist() == [False, True, False]
    assert Frame(pd.DataFrame({"x": pd.Categorical([3, 1, 3])})).column("x").kind == "category"


def test_levels_sort_as_a_reader_expects():
    assert in_order(["B10", "B2", "A", "B1"]) == ("A", "B1", "B2", "B10")
    assert in_order(["10", "9", "-1", "2.5"]) == ("-1", "2.5", "9", "10")


def test_a_chosen_reference_has_no_column(frames):
    study = msgspec.structs.replace(COUNTS, references={"region": "B10", "smoker": True})
    assert prepare(frames, study).plan.names == (
        "age", "region[B1]", "region[B2]", "region[north]", "smoker[False]", "visits",
    )  # fmt: skip


# --- missing values ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dict"])
def test_dropping_equals_pooled_dropna(frames, kind):
    """Levels and classes that occur only in rows left out do not count."""
    frames["aachen"].loc[3:5, "age"] = np.nan
    frames["celle"].loc[frames["celle"]["region"] == "north", "events"] = np.nan
    frames["celle"].loc[[0, 2], "region"] = None
    given = {site: frame if kind == "pandas" else native(kind, frame) for site, frame in frames.items()}
    prepared = prepare(given, msgspec.structs.replace(COUNTS, missing="drop"))
    kept = {site: frame.dropna() for site, frame in frames.items()}
    expected = prepare(kept, COUNTS)
    assert expected.federation.fingerprint() == prepared.federation.fingerprint()
    assert prepared.plan.levels["region"] == ("B1", "B2", "B10")
    assert {s: r.dropped for s, r in prepared.sites.items()} == {
        s: len(frames[s]) - len(kept[s]) for s in frames
    }


def test_missing_values_are_refused_unless_asked_otherwise(frames):
    frames["bonn"].loc[[1, 4], "age"] = np.nan
    sentence, sent = refusal(frames, COUNTS)
    assert "site 'bonn'" in sentence
    assert "'age' is missing in 2 of 47 rows" in sentence
    assert "drop" in sentence
    assert sent == {"Describe", "Schema"}


# --- mismatches: site, column, remedy; and nothing sent but schemas ------------------------------


MISMATCHES = [
    (lambda f: f.assign(age="about " + f["age"].astype(str)), "column 'age': text where 2 sites", "convert"),
    (lambda f: f.assign(visits=f["visits"] > 3), "column 'visits': booleans where 2 sites", "convert"),
    (lambda f: f.drop(columns="age"), "no column 'age'", "correct its name"),
    (lambda f: f.rename(columns={"age": "Age"}), "no column 'age'", "only in case or blanks: 'Age'"),
    (lambda f: f.assign(age=pd.Timestamp("2020-01-01")), "holds values of type", "leave it out"),
    (lambda f: f.head(0), "has no rows", "leave it out"),
    (
        lambda f: f.assign(region=[f"id{k}" for k in range(len(f))]),
        "has 47 different values in 47 rows",
        "leave it out",
    ),
    (lambda f: f.assign(years=f["years"].astype(str)), "column 'years': text where 2 sites", "convert"),
    (lambda f: f.assign(region="x" * 300), "more than 200 characters", "shorten"),
]


@pytest.mark.parametrize(("spoil", "what", "remedy"), MISMATCHES)
def test_a_mismatch_names_site_column_and_remedy_and_only_the_schema_was_sent(frames, spoil, what, remedy):
    frames["bonn"] = spoil(frames["bonn"])
    sentence, sent = refusal(frames, msgspec.structs.replace(COUNTS, max_levels=20))
    assert "site 'bonn'" in sentence
    assert what in sentence
    assert remedy in sentence
    assert sent <= {"Describe", "Schema", "Refused"}


def test_a_column_that_another_site_lacks(frames):
    frames["bonn"]["extra"] = 1.0
    sentence, sent = refusal(frames, Study(family="linear", target="age"))
    assert "site 'aachen' lacks column 'extra', which site 'bonn' has" in sentence
    assert sent == {"Describe", "Schema"}


def test_a_mark_for_missing_values_is_found_out_and_its_column_not_sent(frames):
    frames["bonn"]["visits"] = [str(v) if k else "?" for k, v in enumerate(frames["bonn"]["visits"])]
    sentence, _ = refusal(frames, COUNTS)
    assert "site 'bonn': column 'visits' is text" in sentence
    assert "'?'" in sentence
    assert "na_values" in sentence


BAD_ROWS = [
    ("events", -1, "'events' is negative in 1 of 47 rows"),
    ("years", 0, "'years' is 0 or negative in 1 of 47 rows"),
    ("weight", -2, "'weight' is negative in 1 of 47 rows"),
    ("age", np.inf, "'age' is infinite or not defined in 1 of 47 rows"),
    ("events", np.inf, "'events' is infinite in 1 of 47 rows"),
]


@pytest.mark.parametrize(("column", "value", "what"), BAD_ROWS)
def test_each_site_checks_its_own_rows_and_tells_counts_only(frames, column, value, what):
    frames["bonn"][column] = frames["bonn"][column].astype(float)
    frames["bonn"].loc[7, column] = value
    sentence, sent = refusal(frames, COUNTS)
    assert sentence.startswith("site 'bonn'")
    assert what in sentence
    assert str(value) not in sentence.replace(what, "")
    assert sent == {"Describe", "Schema", "Build", "Ready", "Refused"}


def test_what_cannot_be_fitted_is_refused(frames):
    for study, what in (
        (Study(family="logistic", target="visits"), "exactly two classes"),
        (Study(family="poisson", target="ill"), "must be numbers"),
        (Study(family="linear", target="age", references={"region": "B3"}), "does not occur at any site"),
        (
            Study(family="multinomial", target="age", columns=("visits",), max_levels=20),
            "too many for classes",
        ),
    ):
        with pytest.raises(DataError, match=what):
            prepare(frames, study)
    with pytest.raises(ConfigError, match="no category"):
        prepare(frames, Study(family="linear", target="age", references={"visits": 3}))
    with pytest.raises(ConfigError, match="did you mean 'visits'"):
        prepare(frames, Study(family="linear", target="age", columns=("visits",), l2={"visit": 1.0}))


def test_a_column_constant_everywhere_is_refused_unless_penalised(frames):
    frames["aachen"]["visits"] = 3  # at one site only: nothing is wrong
    study = Study(family="linear", target="age", columns=("visits", "years"))
    assert prepare(frames, study).traffic.exchanges == 2
    for site in frames:
        frames[site]["visits"] = 3 + (site == "bonn")  # varies between the sites only
    assert prepare(frames, study).traffic.exchanges == 3
    frames["bonn"]["visits"] = 3
    sentence, _ = refusal(frames, study)
    assert "'visits'" in sentence
    assert "collinear with the intercept" in sentence
    plan = prepare(frames, msgspec.structs.replace(study, l2=0.1, standardize=True)).plan
    assert plan.scales is not None
    assert plan.scales[0] == 1.0
    assert prepare(frames, msgspec.structs.replace(study, intercept=False)).plan.intercept is False


# --- standardisation -----------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 1e9])
def test_standardisation_is_that_of_the_pooled_rows(frames, shift):
    """To rounding, also where the squares of the numbers would swallow their spread."""
    for frame in frames.values():
        frame["age"] += shift
    raw = prepare(frames, COUNTS).federation.pooled()
    prepared = prepare(frames, msgspec.structs.replace(COUNTS, standardize=True))
    scaler = StandardScaler().fit(raw.X, sample_weight=raw.weights)
    np.testing.assert_allclose(prepared.plan.centres, scaler.mean_, rtol=1e-13)
    np.testing.assert_allclose(prepared.plan.scales, scaler.scale_, rtol=1e-12 if not shift else 1e-6)
    found = prepared.federation.pooled()
    share = raw.weights / raw.weights.sum()
    np.testing.assert_allclose(share @ found.X, 0.0, atol=1e-13 if not shift else 1e-7)
    np.testing.assert_allclose(share @ found.X**2, 1.0, rtol=1e-12 if not shift else 1e-7)
    np.testing.assert_array_equal(prepared.plan.design(pooled(frames)), found.X)


@pytest.mark.parametrize("intercept", [True, False])
def test_coefficients_come_back_on_the_original_scale(frames, intercept):
    study = msgspec.structs.replace(COUNTS, intercept=intercept)
    plain, scaled = prepare(frames, study), prepare(frames, msgspec.structs.replace(study, standardize=True))
    theta = {}
    for name, prepared in (("plain", plain), ("scaled", scaled)):
        result = fedshed.optimize(
            prepared.federation,
            loss="poisson",
            l2=prepared.plan.l2(),
            intercept=intercept,
            algorithm="newton",
        )
        A, names = prepared.plan.to_original()
        assert names == result.columns
        theta[name] = A @ result.theta
    np.testing.assert_allclose(theta["scaled"], theta["plain"], rtol=1e-7, atol=1e-9)


def test_l2_by_term_and_by_coefficient(frames):
    study = msgspec.structs.replace(COUNTS, l2={"region": 0.5, "region[B10]": 2.0, "intercept": 0.1})
    plan = prepare(frames, study).plan
    expected = {"region[B2]": 0.5, "region[B10]": 2.0, "region[north]": 0.5, "intercept": 0.1}
    assert dict(zip(plan.coefficients, plan.l2(), strict=True)) == {
        **dict.fromkeys(plan.coefficients, 0.0),
        **expected,
    }
    assert prepare(frames, msgspec.structs.replace(COUNTS, l2=0.3)).plan.l2().tolist() == [0.3] * 6 + [0.0]


# --- formulas ------------------------------------------------------------------------------------

FORMULAS = [
    "events ~ age + C(region) + smoker",
    "events ~ log(age) + region:smoker + C(visits) * age",
    "events ~ {age + 1} + I(age ** 2) + sqrt(years) + log1p(visits)",
    "events ~ (age + region + smoker) ** 2 - 1",
    "events ~ 0 + C(region) + bs(age, knots=[40, 50], lower_bound=0, upper_bound=120, degree=2)",
    "events ~ cs(age, knots=(40, 60), lower_bound=0, upper_bound=120) - 1 + `my visits`",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_that_of_formulaic_on_the_pooled_table(frames, formula):
    for frame in frames.values():
        frame["my visits"] = frame["visits"] / 3
    prepared = prepare(frames, Study(family="poisson", formula=formula))
    everything = pooled(frames)
    everything["region"] = pd.Categorical(everything["region"], ["B1", "B2", "B10", "north"])
    everything["smoker"] = pd.Categorical(everything["smoker"].astype(str), ["False", "True"])
    context = {"sqrt": np.sqrt, "log1p": np.log1p}
    matrix = formulaic.model_matrix(formula, everything, context=context).rhs
    names = [
        name.replace("[T.", "[").replace("C(region)", "region").replace("C(visits)", "visits")
        for name in matrix
    ]
    expected = dict(zip(names, matrix.to_numpy(dtype=float).T, strict=True))
    assert prepared.plan.intercept == (expected.pop("Intercept", None) is not None)
    assert list(prepared.plan.names) == list(expected)
    np.testing.assert_allclose(prepared.federation.pooled().X.T, list(expected.values()), rtol=1e-14)


def test_the_same_names_with_a_formula_and_without(frames):
    study = Study(family="poisson", formula="events ~ age + C(region) + smoker", references={"region": "B2"})
    listed = Study(
        family="poisson", target="events", columns=("age", "region", "smoker"), references={"region": "B2"}
    )
    one, other = prepare(frames, study), prepare(frames, listed)
    order = [one.plan.names.index(name) for name in other.plan.names]
    assert one.plan.terms == tuple(name.partition("[")[0] for name in one.plan.names)
    np.testing.assert_array_equal(one.federation.pooled().X[:, order], other.federation.pooled().X)


REFUSED = {
    "y ~ __import__('os')": "unknown function",
    "y ~ __import__('os').system('true')": "formula",
    "y ~ {x.__class__}": "not allowed",
    "y ~ {().__class__.__bases__}": "not allowed",
    "y ~ np.exp(x)": "no attributes",
    "y ~ {[x for x in (1, 2)]}": "not allowed",
    "y ~ {(lambda: x)()}": "no attributes",
    "y ~ {x if x else 1}": "not allowed",
    "y ~ {'text'}": "not allowed",
    "y ~ {x[0]}": "not allowed",
    "y ~ log(x, 2)": "one argument",
    "y ~ log(*x)": "one argument",
    "y ~ lag(x)": "order",
    "y ~ hashed(x)": "order",
    "y ~ center(x, 2)": "one column or expression",
    "y ~ scale(x, ddof=0)": "does not take 'ddof'",
    "y ~ center(scale(x))": "another term that needs numbers of all rows",
    "y ~ bs(center(x), df=4)": "another term that needs numbers of all rows",
    "y ~ center(3)": "needs a column",
    "y ~ log(poly(x, 2))": "must be a separate term",
    "y ~ poly(x, 11)": "up to 10",
    "y ~ poly(x, 0)": "at least 1",
    "y ~ poly(x, degree=n)": "up to 10",
    "y ~ poly(x, 2, degree=2)": "does not take 'degree' here",
    "y ~ poly(x, 2, 3)": "one column or expression",
    "y ~ poly(x, 2, raw=True)": "does not take 'raw'",
    "y ~ bs(x, df=101)": "up to 100",
    "y ~ bs(x, df=True)": "up to 100",
    "y ~ bs(x, df=2)": "at least 3",
    "y ~ bs(x, degree=11)": "up to 10",
    "y ~ bs(x, df=4, knots=[1])": "not both",
    "y ~ bs(x, knots=[2, 1])": "increasing",
    "y ~ bs(x, knots=[1e999])": "plain numbers",
    "y ~ bs(x, knots=[3], lower_bound=5)": "between the bounds",
    "y ~ bs(x, lower_bound=5, upper_bound=5)": "less than upper_bound",
    "y ~ bs(x, extrapolation='evil')": "extrapolation must be",
    "y ~ bs(*x)": "not allowed",
    "y ~ bs(x, **z)": "does not take",
    "y ~ cs(x, knots=[z], lower_bound=0, upper_bound=1)": "plain numbers",
    "y ~ cr(x)": "needs df",
    "y ~ cr(x, df=1)": "at least 2",
    "y ~ cr(x, df=2) - 1": "at least 3",
    "y ~ cr(x, df=4, constraints=[1])": "only be 'center'",
    "y ~ cr(x, df=4, degree=2)": "does not take 'degree'",
    "y ~ cc(x, df=4)": "ends of a period",
    "y ~ cc(x, knots=[1], lower_bound=0, upper_bound=12)": "at least 2 knots",
    "y ~ center(`a b`) + center(`a-b`)": "differ in punctuation",
    "y ~ center(`a b`) + a_b": "differ in punctuation",
    "y ~ C(region, contr.sum)": "references",
    "y ~ log(C(region))": "must be a separate term",
    "y ~ {9 ** 9 ** 9 ** 9}": "power",
    "y ~ {x ** 99}": "power",
    "y ~ (a + b + c) ** 99": "from 1 to 9",
    "y ~ " + "*".join(f"x{k}" for k in range(40)): "terms",
    "y ~ " + "I(" + "+".join(["x"] * 2000) + ")": "recursion",
    "y ~ a ~ b": "one target",
    "y ~ a | b": "one target",
    "y ~ C(x) + log(x)": "both as a category and as a number",
    "y ~ " + "x" * 6000: "characters",
    "log(y) ~ x": "transform it beforehand",
    "y ~ .": "formula",
    "y ~ x +": "cannot be read",
}


@pytest.mark.parametrize("formula", REFUSED)
def test_a_formula_that_could_do_harm_or_differ_between_sites_is_refused(formula):
    with pytest.raises(ConfigError, match=REFUSED[formula]):
        parse(formula)


def test_a_formula_may_not_use_the_target(frames):
    with pytest.raises(ConfigError, match="'age', which is the study's target"):
        prepare(frames, Study(family="linear", formula="age ~ visits:age"))


def test_a_site_checks_a_formula_itself(frames):
    """Whoever plays the Master: the site refuses, and evaluates nothing."""
    from fedshed.preparation.messages import Build, Describe

    site = Preparer("bonn", frames["bonn"])
    study = Study(family="linear", target="age", formula="age ~ __import__('os')")
    for part in (Describe(study), Build(DesignPlan(study, ("visits",), {}))):
        request = CODEC.encode_request(CODEC.encode_common(b"run", 1, [part]), None)
        (answer,) = CODEC.decode_reply(site.handle(request)).parts
        assert type(answer).__name__ == "Refused"
        assert "unknown function" in answer.reason


def test_a_spline_out_of_its_bounds_is_the_sites_own_error(frames):
    formula = "age ~ bs(visits, knots=[4], lower_bound=0, upper_bound=8)"
    frames["bonn"].loc[0, "visits"] = 50
    sentence, _ = refusal(frames, Study(family="linear", formula=formula))
    assert sentence.startswith("site 'bonn'")
    assert "outside the bounds of a spline" in sentence


# --- protocol ------------------------------------------------------------------------------------


def test_lost_late_and_repeated_messages_change_nothing(frames):
    study = msgspec.structs.replace(COUNTS, standardize=True)
    expected = prepare(frames, study)
    faulty = prepare(
        frames, study,
        connect=lambda sites: Faulty(InProcess(sites), lose=0.3, delay=0.3, repeat=0.3, forget=0.5, seed=1),
    )  # fmt: skip
    for found in (faulty, prepare(frames, study, connect=Stateless)):
        assert found.plan == expected.plan
        assert found.federation.fingerprint() == expected.federation.fingerprint()
    assert faulty.traffic.exchanges > expected.traffic.exchanges == 4


def test_a_site_answers_no_study_but_its_own(frames):
    sites = {site: Preparer(site, frame, COUNTS) for site, frame in frames.items()}
    assert prepare(frames, COUNTS, connect=lambda _: InProcess(sites)).plan.study == COUNTS
    with pytest.raises(DataError, match="another study"):
        prepare(frames, msgspec.structs.replace(COUNTS, l2=1.0), connect=lambda _: InProcess(sites))


def test_nothing_but_counts_levels_and_sums_is_sent(frames):
    """No message grows with the rows of a site, and none but those of a standardisation carries sums."""
    twice = {site: pd.concat([frame] * 50, ignore_index=True) for site, frame in frames.items()}
    for study in (COUNTS, msgspec.structs.replace(COUNTS, standardize=True)):
        few, many = prepare(frames, study).traffic, prepare(twice, study).traffic
        assert many.uplink_bytes <= few.uplink_bytes + 40 * len(frames)
    assert all(each.sums is None for each in prepare(frames, COUNTS).sites.values())


# --- predictions, plans and studies --------------------------------------------------------------


def test_a_plan_survives_json_and_predicts_row_by_row(frames):
    for study in (COUNTS, Study(family="poisson", formula=FORMULAS[1], exposure="years", standardize=True)):
        prepared = prepare(frames, study)
        plan = DesignPlan.from_json(prepared.plan.to_json())
        assert plan == prepared.plan
        for site, frame in frames.items():
            np.testing.assert_array_equal(plan.design(frame), prepared.federation.tables[site].X)
            np.testing.assert_array_equal(
                plan.design(frame.iloc[[3]]), prepared.federation.tables[site].X[[3]]
            )
            np.testing.assert_array_equal(plan.offset(frame), prepared.federation.tables[site].offset)


def test_an_unknown_level_in_a_prediction_is_named(frames):
    plan = prepare(frames, COUNTS).plan
    new = frames["bonn"].head(2).drop(columns="events").assign(region=["B2", "B99"])
    with pytest.raises(DataError, match="'region': the level 'B99'"):
        plan.design(new)
    with pytest.raises(DataError, match="'age' is missing in 1 of 2 rows"):
        plan.design(new.assign(age=[1.0, None]))


def test_a_study_is_read_from_toml(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text('family = "poisson"\ntarget = "y"\ncolumns = ["a"]\n[references]\na = 6\n[l2]\na = 0.5\n')
    study = Study(family="poisson", target="y", columns=("a",), references={"a": 6}, l2={"a": 0.5})
    assert read_study(path) == study == study_of({**msgspec.to_builtins(study)})
    for text, what in (
        ('family = "poison"\ntarget = "y"', "did you mean 'poisson'"),
        ('family = "gamma"\ntarget = "y"\nfamly = 1', "unknown field 'famly'; did you mean 'family'"),
        ('family = "gamma"', "names no target"),
        ('family = "gamma"\nformula = "~ x"', "no target"),
        ('family = "gamma"\ntarget = "y"\ncolumns = ["x"]\nformula = "y ~ x"', "not both"),
        ('family = "gamma"\ntarget = "y"\ncolumns = ["y"]', "two roles"),
        ('family = "multinomial"\ntarget = "y"\noffset = "o"', "no offset"),
        ('family = "gamma"\ntarget = "y"\nl2 = -1.0', "at least 0"),
        ("family =", "study.toml"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=what):
            read_study(path)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.xz", "parquet"])
def test_one_file_with_a_site_column_equals_a_file_for_each_site(frames, tmp_path, ending):
    whole = pooled({site: frame.assign(hospital=site) for site, frame in frames.items()})
    for name, frame in {"all": whole, **frames}.items():
        path = tmp_path / f"{name}.{ending}"
        frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
    one = read_sites([tmp_path / f"all.{ending}"], site="hospital")
    each = read_sites([tmp_path / f"{site}.{ending}" for site in frames])
    expected = prepare(frames, COUNTS).federation.fingerprint()
    assert prepare(one, COUNTS).federation.fingerprint() == expected
    assert prepare(each, COUNTS).federation.fingerprint() == expected


def test_marks_for_missing_values_are_those_that_were_named(tmp_path):
    path = tmp_path / "heart.data"
    path.write_text("1,?\n2.5,4\n,5\n")
    table = read_sites([path], csv=CsvFormat(na_values=("?", ""), header=("a", "b")))["heart"]
    assert table.to_pydict() == {"a": [1.0, 2.5, None], "b": [None, 4, 5]}
    assert Frame(read_sites([path], csv=CsvFormat(header=("a", "b")))["heart"]).column("b").kind == "category"


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_splitting_keeps_every_row_once(make):
    parts = split(make({"site": [2, 1, 2], "x": [1.0, 2.0, 3.0]}), "site")
    assert {site: Frame(part).column("x").values.tolist() for site, part in parts.items()} == {
        "1": [2],
        "2": [1, 3],
    }
    with pytest.raises(DataError, match="names no site in 1 rows"):
        split(make({"site": [1.5, None], "x": [1.0, 2.0]}), "site")


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n1\n")
    (tmp_path / "b.parquet").write_text("no")
    for paths, what in (
        (["a.csv"], "a.csv: a row has 1 fields where the first has 2"),
        (["b.parquet"], "b.parquet"),
        (["c.csv"], "no such file"),
    ):
        with pytest.raises(DataError, match=what):
            read_sites([tmp_path / path for path in paths])
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match="in another file too"):
        read_sites([tmp_path / "a.csv"] * 2)


def test_a_family_that_there_is_not_is_refused_in_python_too():
    with pytest.raises(ConfigError, match="family cannot be 'logitic'; did you mean 'logistic'"):
        Study(family="logitic", target="y")


@pytest.mark.parametrize(("positive", "y"), [(1, [True, False, True]), (True, [1, 0, 1]), ("1", [1, 0, 1])])
def test_one_and_true_are_the_same_class(positive, y):
    tables = {"a": {"x": [1.0, 2.0, 3.0], "y": y}, "b": {"x": [0.0, 1.0, 5.0], "y": y}}
    prepared = prepare(tables, Study(family="logistic", target="y", positive=(positive,)))
    assert prepared.federation.tables["a"].y.tolist() == [True, False, True]


@pytest.mark.parametrize(("site", "lacks", "has"), [("bonn", "age", "Age"), ("aachen", "Age", "age")])
def test_a_column_whose_name_differs_in_case_is_shown(frames, site, lacks, has):
    frames[site] = frames[site].rename(columns={"age": "Age"})
    sentence, _ = refusal(frames, Study(family="linear", target="visits"))
    assert f"site 'bonn' lacks column {lacks!r}" in sentence
    assert f"(its column {has!r} differs in case only)" in sentence
