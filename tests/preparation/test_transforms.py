"""Terms that need numbers of all rows (means, knots): over sites they are those of the pooled table."""

from __future__ import annotations

import re

import formulaic
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from fedshed._utils.errors import DataError, DisclosureError, ProtocolError
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.preparation import DesignPlan, Preparer, Study, prepare
from fedshed.preparation.guarded import GuardedPreparer
from fedshed.preparation.messages import CODEC, Tallies, Tally
from fedshed.preparation.quantiles import MOST, blocks, quantiles
from fedshed.privacy.audit import Audit
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy

ROWS = {"large": 700, "small": 60, "tiny": 13, "constant": 20}


def patients(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(50 + 10 * seed, 9, rows)
    return pd.DataFrame(
        {
            "age": age,
            "blood pressure": rng.gamma(4, 30, rows),
            "month": rng.integers(1, 13, rows),
            "ward": np.resize(["A", "B"], rows),
            "stay": 5 + np.sin(age / 12) + rng.normal(0, 0.3, rows),
            "weight": rng.integers(1, 4, rows).astype(float),
        }
    )


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    """Very unequal sites; at one of them the age is the same in every row."""
    made = {site: patients(rows, k) for k, (site, rows) in enumerate(ROWS.items())}
    made["constant"]["age"] = 42.0
    return made


def pooled(frames) -> pd.DataFrame:
    return pd.concat([frames[site] for site in sorted(frames)], ignore_index=True)


def written_out(plan, term: str) -> str:
    """The term with the numbers of the plan, for formulaic on the pooled rows."""
    state, inside = plan.transforms[term], term[term.index("(") + 1 :].split(",")[0].rstrip(")")
    name = term.partition("(")[0]
    numbers = f"knots={list(state.knots)}, lower_bound={state.lower}, upper_bound={state.upper}"
    centred = ", constraints='center'" if state.means else ""
    return f"{name}({inside}, {numbers}{centred})"


def expected(formula: str, frame: pd.DataFrame) -> np.ndarray:
    matrix = formulaic.model_matrix(formula, frame.assign(ward=pd.Categorical(frame["ward"])))
    return matrix.drop(columns="Intercept", errors="ignore").to_numpy(dtype=float)


def assert_same_design(prepared, formula: str, frames) -> None:
    found = prepared.federation.pooled().X
    np.testing.assert_allclose(found, expected(formula, pooled(frames)), rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(prepared.plan.design(pooled(frames)), found)


# --- equal to the pooled table -------------------------------------------------------------------

FROM_SUMS = {  # the term, and how many exchanges its numbers take
    "center(age)": 1,
    "scale(age)": 2,
    "standardize(age)": 2,
    "poly(age, 2)": 3,
    "poly(age, degree=5)": 6,
    "center(log(`blood pressure`))": 1,
    "I(scale(age) ** 2 + center(age) / 10)": 2,
    "poly(age, 2):ward + ward": 3,
    "scale(age / 7 - 2) * ward": 2,
}


@pytest.mark.parametrize("terms", FROM_SUMS)
def test_means_scales_and_polynomials_are_those_of_the_pooled_rows(frames, terms):
    prepared = prepare(frames, Study(family="linear", formula=f"stay ~ {terms}"))
    assert_same_design(prepared, terms, frames)
    assert prepared.traffic.exchanges == 2 + FROM_SUMS[terms]


PLACED = {
    "bs(age, df=4)": 1,
    "bs(age, 6, degree=2)": 1,
    "bs(age, df=5, include_intercept=True)": 1,
    "bs(age, lower_bound=0, upper_bound=130, df=5)": 1,
    "bs(age, knots=[40, 55])": 1,
    "cr(age, df=4)": 2,
    "cr(age, df=4, constraints='center')": 2,
    "cs(`blood pressure`, df=5)": 2,
    "cr(age, df=4, extrapolation='clip', lower_bound=40, upper_bound=60)": 2,
    "cr(age, knots=[45, 60], lower_bound=20, upper_bound=120)": 1,
    "cc(month, df=4, lower_bound=0, upper_bound=12)": 2,
}


@pytest.mark.parametrize("term", PLACED)
def test_a_spline_is_that_of_the_pooled_rows_with_the_knots_of_the_plan(frames, term):
    prepared = prepare(frames, Study(family="linear", formula=f"stay ~ {term}"))
    (key,) = prepared.plan.transforms
    formula = written_out(prepared.plan, key)
    for word in ("degree=2", "include_intercept=True", "extrapolation='clip'"):
        formula = f"{formula[:-1]}, {word})" if word in term else formula
    assert_same_design(prepared, formula, frames)
    assert prepared.traffic.exchanges == 2 + PLACED[term]
    assert all(name.startswith(f"{key}[") for name in prepared.plan.names)
    if df := re.search(r"df=(\d)", term):
        assert len(prepared.plan.names) == int(df[1]) - ("include" in term)  # the intercept is there already


def test_a_centred_spline_has_mean_zero_over_all_rows_and_no_collinear_column(frames):
    prepared = prepare(frames, Study(family="linear", formula="stay ~ cr(age, df=4)"))
    X = prepared.federation.pooled().X
    assert X.shape[1] == 4
    np.testing.assert_allclose(X.mean(axis=0), 0.0, atol=1e-13)
    assert np.linalg.matrix_rank(np.column_stack([X, np.ones(len(X))])) == 5


def test_without_an_intercept_a_cubic_spline_sums_to_one(frames):
    prepared = prepare(frames, Study(family="linear", formula="stay ~ cr(age, df=4) - 1"))
    np.testing.assert_allclose(prepared.federation.pooled().X.sum(axis=1), 1.0, rtol=1e-12)
    assert prepared.traffic.exchanges == 3


def test_rows_count_once_whatever_their_weight(frames):
    study = Study(family="linear", formula="stay ~ scale(age) + cr(age, df=3)", weight="weight")
    weighted = prepare(frames, study).plan.transforms
    assert weighted == prepare(frames, Study(family="linear", formula=study.formula)).plan.transforms


def test_rows_that_miss_a_value_do_not_count(frames):
    spoilt = {site: frame.copy() for site, frame in frames.items()}
    for frame in spoilt.values():
        frame.loc[::4, "blood pressure"] = np.nan
    formula = "stay ~ scale(age) + cr(age, df=3) + `blood pressure`"
    kept = {site: frame.dropna() for site, frame in spoilt.items()}
    found = prepare(spoilt, Study(family="linear", formula=formula, missing="drop"))
    assert found.plan.transforms == prepare(kept, Study(family="linear", formula=formula)).plan.transforms


# --- quantiles ---------------------------------------------------------------------------------

values = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.integers(0, 5).map(float), st.just(0.1)), min_size=1, max_size=300
)


@settings(max_examples=150, deadline=None)
@given(x=values, least=st.integers(1, 12))
def test_a_block_has_enough_rows_and_its_ends_enough_rows_nearby(x, least):
    x = np.sort(np.array(x))
    found = blocks(x, least)
    assert len(found) <= MOST
    assert found[:, 2].sum() == len(x)
    assert (found[:, 2] >= min(least, len(x))).all()
    start = 0
    for low, high, rows in found.tolist():
        block = x[start : start + int(rows)]
        start += int(rows)
        assert low <= block[0]
        assert block[-1] <= high
        for end, nearest in ((low, block[:least][-1] - block[0]), (high, block[-1] - block[-least:][0])):
            assert any(is_multiple(end, unit) for unit in UNITS if unit >= nearest)
    assert start == len(x)


UNITS = [digit * 10.0**power for power in range(-13, 8) for digit in (1, 2, 5)]


def is_multiple(value: float, unit: float) -> bool:
    return abs(value / unit - round(value / unit)) < 1e-9 * max(1.0, abs(value / unit))


@settings(max_examples=100, deadline=None)
@given(sites=st.lists(values, min_size=1, max_size=4), inner=st.integers(1, 8))
def test_the_rank_error_is_never_larger_than_stated(sites, inner):
    found = np.concatenate([blocks(np.array(x), 5) for x in sites])
    x = np.concatenate([np.array(x) for x in sites])
    shares = np.linspace(0, 1, inner + 2)[1:-1]
    q, error = quantiles(found, shares, found[:, 0].min(), found[:, 1].max())
    below, at_most = (x < q[:, None]).mean(axis=1), (x <= q[:, None]).mean(axis=1)
    assert (below <= shares + error + 1e-12).all()
    assert (at_most >= shares - error - 1e-12).all()


def test_the_rank_error_is_small_where_sites_have_rows(frames):
    large = {"one": patients(5000, 0), "two": patients(3000, 1), "three": patients(200, 2)}
    spline = prepare(large, Study(family="linear", formula="stay ~ bs(age, df=6)")).plan.transforms[
        "bs(age, df=6)"
    ]
    assert spline.rank_error < 0.03
    exact = np.quantile(pooled(large)["age"], [0.25, 0.5, 0.75])
    np.testing.assert_allclose(spline.knots, exact, atol=0.5)
    assert spline.lower <= pooled(large)["age"].min()
    assert spline.upper >= pooled(large)["age"].max()


def test_knots_that_would_coincide_are_refused(frames):
    zeros = {
        site: frame.assign(age=np.where(frame["month"] < 11, 0.0, frame["age"]))
        for site, frame in frames.items()
    }
    for term in ("bs(age, df=8)", "cr(age, df=6)"):
        with pytest.raises(DataError, match="not all different"):
            prepare(zeros, Study(family="linear", formula=f"stay ~ {term}"))


@pytest.mark.parametrize(
    ("term", "why"),
    [
        ("scale(same)", "all the same"),
        ("poly(same, 2)", "more than 1 different values"),
        ("poly(two, 2)", "more than 2"),
    ],
)
def test_too_few_values_are_refused(frames, term, why):
    made = {
        site: frame.assign(same=0.1, two=np.resize([0.1, 0.7], len(frame))) for site, frame in frames.items()
    }
    with pytest.raises(DataError, match=why):
        prepare(made, Study(family="linear", formula=f"stay ~ {term}"))


def test_what_is_not_finite_is_the_sites_own_error(frames):
    made = {site: frame.assign(age=frame["age"] - 42.0) for site, frame in frames.items()}
    with pytest.raises(DataError, match=r"site '\w+' and 2 more: term 'center\(log\(age\)\)' is infinite"):
        prepare(made, Study(family="linear", formula="stay ~ center(log(age))"))


# --- what may leave a site -----------------------------------------------------------------------

SPLINE = Study(family="linear", formula="stay ~ bs(age, df=4)")


def ask(site, plan: DesignPlan):
    request = CODEC.encode_request(CODEC.encode_common(b"run", 1, [Tally(plan)]), None)
    return CODEC.decode_reply(site.handle(request)).parts[0]


def gated(tmp_path, frame, **rules):
    gate = Gate(Policy(**rules), Audit(tmp_path / "audit.jsonl"), "study")
    return GuardedPreparer(Preparer("bonn", frame), gate)


def test_an_outlier_cannot_be_found_in_a_histogram(tmp_path):
    """One row far from all others shares its block with others, and the end of the block does not show it."""
    frame = patients(200, 0)
    frame.loc[17, "age"] = 123_456.7
    answer = ask(gated(tmp_path, frame), DesignPlan(SPLINE, ("age",), {}))
    found = answer.blocks.reshape(-1, 3)
    assert found[:, 2].min() >= 5
    assert found[-1, 1] == 200_000  # a round unit no less than what the five largest values span
    assert found[-1, 0] < 100
    assert 123_456.7 not in answer.blocks


@pytest.mark.parametrize("beyond", [1, 4, 12])
def test_bounds_chosen_around_rows_tell_no_more_than_none(tmp_path, beyond):
    """The attack: bounds with few rows beyond them.  The blocks are the same, with their ends cut off."""
    frame = patients(200, 0)
    cut = np.sort(frame["age"])[[-beyond, -beyond - 1]].mean()
    study = Study(family="linear", formula=f"stay ~ bs(age, df=4, lower_bound=0, upper_bound={cut})")
    free = ask(gated(tmp_path, frame), DesignPlan(SPLINE, ("age",), {})).blocks.reshape(-1, 3)
    bounded = ask(gated(tmp_path, frame), DesignPlan(study, ("age",), {})).blocks.reshape(-1, 3)
    np.testing.assert_array_equal(bounded, np.column_stack([free[:, :2].clip(0, cut), free[:, 2]]))


def test_the_policy_sets_the_smallest_block(tmp_path):
    plan = DesignPlan(SPLINE, ("age",), {})
    answer = ask(gated(tmp_path, patients(200, 0), min_rows_per_level=30), plan)
    assert answer.blocks[2::3].min() >= 30


@pytest.mark.parametrize(
    ("rows", "rules", "why"),
    [
        (9, {}, "min_rows"),
        (12, {}, "max_parameters_per_row"),
        (40, {"min_rows_per_level": 50}, "in each block of a histogram"),
        (40, {"max_scalars": 20}, "max_scalars"),
    ],
)
def test_the_gate_holds_for_sums_and_histograms(tmp_path, rows, rules, why):
    with pytest.raises(DisclosureError, match=why):
        ask(gated(tmp_path, patients(rows, 0), **rules), DesignPlan(SPLINE, ("age",), {}))


def test_the_mean_of_a_column_with_a_rare_value_does_not_leave(tmp_path):
    frame = patients(60, 0).assign(rare=[1.0] + [0.0] * 59)
    plan = DesignPlan(Study(family="linear", formula="stay ~ center(rare)"), ("rare",), {})
    with pytest.raises(DisclosureError, match="min_rows_per_level"):
        ask(gated(tmp_path, frame), plan)


def test_a_site_checks_the_numbers_of_a_plan(frames):
    good = prepare(
        frames, Study(family="linear", formula="stay ~ bs(age, df=5) + poly(age, 2) + scale(month)")
    ).plan
    data = good.to_json().decode()
    assert DesignPlan.from_json(data) == good
    knots = str(list(good.transforms["bs(age, df=5)"].knots)).replace(" ", "")
    for old, new in (
        (knots, "[50.0]"), (knots, "[90.0,40.0]"), ('"norms2":[', '"norms2":[1.0,'),
        ('"scale":3.', '"scale":-3.'), ('"type":"Polynomial","alpha"', '"type":"Spline","means"'),
    ):  # fmt: skip
        assert old in data
        try:
            spoilt = DesignPlan.from_json(data.replace(old, new))
        except fedshed.ConfigError:
            continue
        with pytest.raises(DataError, match="not those of such a term"):
            spoilt.design(frames["large"])


def test_an_answer_that_cannot_be_is_refused_by_name(frames):
    class Wrong(Preparer):
        def tally(self, plan):
            told = super().tally(plan)
            return Tallies(told.sums, -told.blocks, told.sizes)

    sites = {site: (Wrong if site == "tiny" else Preparer)(site, frame) for site, frame in frames.items()}
    with pytest.raises(ProtocolError, match="'tiny' sent impossible histograms"):
        prepare(frames, SPLINE, connect=lambda _: InProcess(sites))


# --- over any transport, saved and loaded --------------------------------------------------------


EVERYTHING = Study(
    family="linear", formula="stay ~ cr(age, df=3) + poly(`blood pressure`, 2) + ward + center(month)"
)


def test_lost_late_and_repeated_messages_change_nothing(frames):
    exact = prepare(frames, EVERYTHING)
    faulty = prepare(
        frames, EVERYTHING,
        connect=lambda sites: Faulty(InProcess(sites), lose=0.3, delay=0.3, repeat=0.3, forget=0.5, seed=1),
    )  # fmt: skip
    for found in (faulty, prepare(frames, EVERYTHING, connect=Stateless)):
        assert found.plan == exact.plan
        assert found.federation.fingerprint() == exact.federation.fingerprint()
    assert faulty.traffic.exchanges > exact.traffic.exchanges == 5


def test_a_model_is_fitted_saved_loaded_and_predicts(frames, tmp_path):
    model = fedshed.fit(frames, EVERYTHING)
    assert model.converged
    note = " ".join(str(model.summary()).split())
    assert "cr(age, df=3): knots" in note
    assert "center(month): mean" in note
    loaded = type(model).load(model.save(tmp_path / "model.json"))
    everything = pooled(frames)
    X = np.column_stack([model.plan.design(everything), np.ones(len(everything))])
    theta = np.linalg.lstsq(X, everything["stay"].to_numpy(), rcond=None)[0]
    np.testing.assert_allclose(loaded.predict(everything), X @ theta, rtol=1e-7)
    for row in (0, 7):
        one = everything.iloc[[row]]
        np.testing.assert_allclose(loaded.predict(one), loaded.predict(everything)[[row]], rtol=1e-12)


def test_outside_the_bounds_a_b_spline_refuses_and_a_natural_one_is_straight(frames):
    natural = prepare(frames, Study(family="linear", formula="stay ~ cr(age, df=4)")).plan
    far = pd.DataFrame({"age": natural.transforms["cr(age, df=4)"].upper + np.array([0.0, 10.0, 20.0])})
    np.testing.assert_allclose(np.diff(natural.design(far), n=2, axis=0), 0.0, atol=1e-12)
    with pytest.raises(DataError, match="outside the bounds of a spline"):
        prepare(frames, SPLINE).plan.design(pd.DataFrame({"age": [1e4]}))
