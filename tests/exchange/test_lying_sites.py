"""Sites that lie about their rows, weights, sums or information are refused by name; honest ones never."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from fedshed._utils.errors import Error
from fedshed.exchange import InProcess
from fedshed.objectives.families import FAMILIES
from fedshed.preparation.messages import Deviations, Ready, Schema, Tallies, Values
from fedshed.protocol.conversation import Agent, Problem, Size
from fedshed.solve.inspection import Inspect, Inspected, Inspection
from fedshed.solve.inspection_checks import contradiction, disagreement, semidefinite
from fedshed.solve.null_start import Moments
from fedshed.solve.scatter import Scattered


def lying(kind, change, site="b"):
    """A transport on which one site's messages of a kind are changed, as msgpack and unchecked."""

    class Lies(InProcess):
        def exchange(self, payloads):
            for i, data in super().exchange(payloads):
                yield i, (changed(data) if i == site else data)

    def changed(data):
        run, number, hessians, parts = msgspec.msgpack.decode(data)
        for part in parts:
            if part[0] == kind.__name__:
                fields = dict(zip(kind.__struct_fields__, part[1:], strict=True))
                change(fields)
                part[1:] = fields.values()
        return msgspec.msgpack.encode((run, number, hessians, parts))

    return Lies


def times(name, factor):
    """A field, a number or an array, that is multiplied."""

    def change(fields):
        value = fields[name]
        fields[name] = (
            (factor * np.frombuffer(value)).tobytes()
            if isinstance(value, bytes)
            else type(value)(factor * value)
        )

    return change


def of_length(name, length):
    """An array of another length."""
    return lambda fields: fields.__setitem__(name, np.ones(length).tobytes())


def said(name, value):
    """A field with another value."""
    return lambda fields: fields.__setitem__(name, value)


def tables(family, rows=60):
    """Three sites with two columns of numbers, a category, and a response that suits the family."""
    made = {}
    for seed, site in enumerate("abc"):
        rng = np.random.default_rng(seed)
        x, z = rng.normal(1.0, 2.0, rows), rng.normal(size=rows)
        y = {
            "linear": x - z + rng.normal(size=rows),
            "logistic": np.where(rng.random(rows) < 1 / (1 + np.exp(-0.3 * x)), "yes", "no"),
            "poisson": rng.poisson(np.exp(0.2 * z)).astype(float),
            "gamma": rng.gamma(2.0, np.exp(0.2 * z)),
        }[family]
        made[site] = {"x": x, "z": z, "ward": np.where(x > z, "north", "south"), "y": y}
    return made


def fitted(family, over, *, errors=None, **study):
    """A fit of those tables."""
    return fedshed.fit(
        tables(family), fedshed.Study(family=family, target="y", **study), over=over, errors=errors
    )


FORMULA = {"formula": "y ~ bs(x, df=4) + scale(z)"}
COLUMNS = {"columns": ("x", "z", "ward")}
LIES = {
    "weight": ("logistic", {}, Ready, times("weight", 1000.0)),
    "weight-infinite": ("logistic", {}, Ready, said("weight", float("inf"))),
    "rows": ("logistic", {}, Ready, times("rows", 2)),
    "rows-huge": ("logistic", {}, Ready, said("rows", 2**62)),
    "terms": ("linear", {}, Ready, said("terms", ["x"])),
    "constants": ("linear", {"standardize": True}, Ready, said("constant", [7])),
    "sums": ("linear", {"standardize": True}, Ready, of_length("sums", 2)),
    "measured": ("linear", {}, Ready, said("measured", [9, 9])),
    "variances": ("linear", {}, Ready, times("variances", -1.0)),
    "means": ("linear", {}, Ready, of_length("means", 1)),
    "digest": ("linear", {}, Ready, said("digest", "\x1b[31m")),
    "negative-rows": ("linear", {}, Schema, said("rows", -5)),
    "complete-above-rows": ("linear", {}, Schema, times("complete", 3)),
    "no-fields": ("linear", {}, Schema, said("fields", [])),
    "labels": ("logistic", {}, Schema, said("labels", ["yes", 2**60])),
    "labels-nan": ("logistic", {}, Schema, said("labels", [float("nan"), 1.0])),
    "positive": ("logistic", {}, Schema, said("positive", [3])),
    "deviations": ("linear", {"standardize": True}, Deviations, of_length("squares", 1)),
    "deviations-small": ("linear", {"standardize": True}, Deviations, times("squares", 1e-9)),
    "deviations-negative": ("linear", {"standardize": True}, Deviations, times("squares", -1.0)),
    "tallies": ("linear", FORMULA, Tallies, of_length("sums", 7)),
    "tallies-sizes": ("linear", FORMULA, Tallies, said("sizes", [2**40])),
    "histograms": ("linear", FORMULA, Tallies, of_length("blocks", 7)),
    "histogram-rows": ("linear", FORMULA, Tallies, times("blocks", 2.0)),
    "moments": ("logistic", {}, Moments, of_length("sums", 7)),
    "moments-none": ("logistic", {}, Moments, of_length("sums", 0)),
    "moments-weight": ("logistic", {}, Moments, times("sums", 5.0)),
    "moments-negative": ("poisson", {}, Moments, times("sums", -1.0)),
    "moments-gamma": ("gamma", {}, Moments, of_length("sums", 3)),
    "inspected-weight": ("linear", {}, Inspected, times("weight", 1000.0)),
    "inspected-rows": ("linear", {}, Inspected, times("rows", 2)),
    "inspected-moments": ("linear", {}, Inspected, of_length("moments", 1)),
    "inspected-loss": ("poisson", {}, Inspected, times("loss", 1.01)),
    "inspected-gradient": ("poisson", {}, Inspected, times("gradient", 2.0)),
    "inspected-deviance": ("linear", {}, Inspected, times("deviance", 1.5)),
    "deviance-below-0": ("gamma", {}, Inspected, times("deviance", -1.0)),
    "observed": ("gamma", {}, Inspected, times("observed", -1.0)),
    "observed-x100": ("gamma", {}, Inspected, times("observed", 100.0)),
}  # fmt: skip
for each in ("linear", "logistic", "poisson", "gamma"):
    LIES[f"information-negative-{each}"] = each, {}, Inspected, times("information", -1.0)
    LIES[f"information-x100-{each}"] = each, {}, Inspected, times("information", 100.0)


@pytest.mark.parametrize(("family", "study", "kind", "change"), LIES.values(), ids=LIES)
def test_a_lie_is_refused_by_the_name_of_the_site(family, study, kind, change):
    """Never an IndexError, a TypeError or a model."""
    with pytest.raises(Error, match=r"(site|agent) 'b'"):
        fitted(family, lying(kind, change), **(study if "formula" in study else COLUMNS | study))


@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_information_on_one_column_cannot_be_overstated_where_its_squares_are_known(family):
    """Only the entries of x grow, so the intercept shows nothing, and the matrix stays semidefinite."""

    def change(fields):
        packed = np.frombuffer(fields["information"]).copy()
        packed[0] *= 100  # the first of the upper triangle is x itself
        fields["information"] = packed.tobytes()

    for standardize in (False, True):
        with pytest.raises(Error, match=r"site 'b'.*'x'"):
            fitted(family, lying(Inspected, change), columns=("x", "z"), standardize=standardize)


def test_a_second_table_of_other_rows_is_refused():
    """The design is built twice where a study standardises: what is said then must be the same."""
    seen = []

    def change(fields):
        seen.append(1)
        fields["names"] = fields["names"] if len(seen) == 1 else ["x", "other"]

    with pytest.raises(Error, match="site 'b' has another table"):
        fitted("linear", lying(Ready, change), columns=("x", "z"), standardize=True)


@pytest.mark.parametrize("change", [said("clusters", 10**6), said("shares", np.ones(3).tobytes())])
def test_clusters_that_were_not_asked_for_are_refused(change):
    with pytest.raises(Error, match="site 'b'"):
        fitted("linear", lying(Scattered, change), columns=("x", "z"), errors="HC3")


def test_another_kind_of_answer_is_refused_by_name():
    class Wrong(InProcess):
        def exchange(self, payloads):
            for i, data in super().exchange(payloads):
                yield i, (data.replace(b"Moments", b"AskMoments") if i == "b" else data)

    with pytest.raises(Error, match="'b'"):
        fitted("linear", Wrong, columns=("x",))


def test_values_of_another_length_are_refused():
    same = {
        site: {**table, "x": np.full(60, float(k))}
        for k, (site, table) in enumerate(tables("linear").items())
    }
    study = fedshed.Study(family="linear", target="y", columns=("x", "z"))
    with pytest.raises(Error, match="site 'b' sent 3"):
        fedshed.fit(same, study, over=lying(Values, of_length("values", 3)))


KINDS = {
    loss: FAMILIES[loss].objective
    for loss in ("least-squares", "logistic", "poisson", "gamma", "binomial", "multinomial")
}


@st.composite
def honest(draw):
    """A model of any family with any rows, weights and offsets; with an intercept or without; and a point."""
    loss = draw(st.sampled_from(sorted(KINDS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, width = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    X = rng.normal(size=(rows, width)) * 10.0 ** rng.uniform(-6, 6, width) * (rng.random((rows, width)) < 0.8)
    intercept = draw(st.booleans())
    X = np.column_stack([X, np.ones(rows)]) if intercept else X
    weights = draw(
        st.sampled_from([None, rng.integers(1, 9, rows).astype(float), rng.gamma(0.3, 5, rows) + 1e-9])
    )
    offset = None if loss == "multinomial" or draw(st.booleans()) else rng.normal(size=rows)
    y = {
        "least-squares": rng.normal(size=rows) * 10.0 ** rng.uniform(-5, 5),
        "logistic": np.where(rng.random(rows) < rng.random(), -1.0, 1.0),
        "poisson": rng.poisson(rng.gamma(0.5, 20, rows)).astype(float),
        "gamma": rng.gamma(0.5, 2.0, rows) + 1e-12,
        "binomial": rng.random(rows) if weights is None else rng.binomial(5, 0.3, rows) / 5,
        "multinomial": rng.integers(0, 3, rows),
    }[loss]  # fmt: skip
    more = {"classes": 3} if loss == "multinomial" else {}
    model = KINDS[loss](X, y, weights, offset, **more)
    spread = np.tile(np.abs(X).max(axis=0) + 1e-9, model.dim // X.shape[1])
    theta = rng.normal(size=model.dim) * draw(st.sampled_from([0.0, 0.1, 3.0, 30.0])) / spread
    return loss, model, theta, intercept


def inspected(model, theta):
    """The answer of an honest site."""
    with np.errstate(all="ignore"):
        return Inspection().respond(Agent("a", model), None, Inspect(theta), None)[1]


def problem_of(loss, model, intercept):
    """The problem as the Master sees it, with what the preparation told."""
    names = [f"x{j}" for j in range(model.X.shape[1] - intercept)]
    columns = tuple([*names, "intercept"] if intercept else names) * (model.dim // model.X.shape[1])
    w = np.ones(len(model.y)) if model.weights is None else model.weights
    squares = (w @ np.square(model.X[:, : len(names)])) / w.sum()
    return Problem(
        np.zeros(model.dim), {"a": model.weight}, loss, columns, sizes={"a": Size(len(model.y), squares)}
    )


@settings(max_examples=200, deadline=None)
@given(honest())
def test_no_honest_site_of_any_family_is_refused(case):
    loss, model, theta, intercept = case
    try:
        answer = inspected(model, theta)
    except ValueError:  # a point where the cost overflows, which the site itself declines
        return
    arrays = [answer.gradient, answer.information, answer.observed]
    if not all(x is None or np.isfinite(np.vdot(x, x)) for x in arrays):  # the wire refuses these
        return
    assert disagreement(problem_of(loss, model, intercept), "a", answer) is None
    assert contradiction(theta, answer.loss, answer.gradient, answer) is None
    assert model.possible_moments(answer.moments, model.weight)


@settings(max_examples=100, deadline=None)
@given(honest())
def test_information_times_a_hundred_is_refused_wherever_the_intercept_or_the_squares_bound_it(case):
    """Linear and gamma models always; the others wherever the bound is not slack by a factor of 100."""
    loss, model, theta, intercept = case
    if loss not in ("least-squares", "gamma") or np.square(model.X).mean() < 1e-6:
        return
    try:
        answer = inspected(model, theta)
    except ValueError:
        return
    if not np.isfinite(np.vdot(answer.information, answer.information)):
        return
    problem = problem_of(loss, model, intercept)
    for factor in (100.0, -1.0):
        assert disagreement(
            problem, "a", msgspec.structs.replace(answer, information=factor * answer.information)
        )


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12))
def test_every_sum_of_squares_is_semidefinite_in_whatever_units(seed, rows, n):
    """And with a direction of clearly negative curvature it no longer is."""
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(rows, n)) * 10.0 ** rng.uniform(-120, 120, n)
    A = F.T @ F
    assert semidefinite((A + A.T) / 2)
    v = rng.normal(size=n) * np.sqrt(np.diag(A))
    assert not semidefinite(A - 3 * n * np.outer(v, v) / (v @ (v / np.diag(A))))
