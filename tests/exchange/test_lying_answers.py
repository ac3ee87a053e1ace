"""Sites that lie in evaluations, paths, searches and means that are filled in are refused by name."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import fedshed
from fedshed import Study
from fedshed._utils.errors import Error
from fedshed.exchange import InProcess
from fedshed.preparation.messages import Tallies
from fedshed.solve.evaluating import Evaluated, Recalibrated, Tabulated
from fedshed.solve.folds import FoldSums
from fedshed.solve.life_counts import EventTimes
from fedshed.solve.profile import Profiled


def lying(kind, change, site="b"):
    """A transport on which one site's messages of a kind are changed, also within other messages."""

    class Lies(InProcess):
        def exchange(self, payloads):
            for i, data in super().exchange(payloads):
                yield i, (changed(data) if i == site else data)

    def walk(part):
        if part[:1] == [kind.__name__]:
            fields = dict(zip(kind.__struct_fields__, part[1:], strict=True))
            change(fields)
            part[1:] = fields.values()
        for one in part:
            if isinstance(one, list):
                walk(one)

    def changed(data):
        whole = list(msgspec.msgpack.decode(data))
        walk(whole)
        return msgspec.msgpack.encode(tuple(whole))

    return Lies


def times(name, factor, place=slice(None)):
    """A number, or some of an array, that is multiplied."""

    def change(fields):
        value = fields[name]
        if isinstance(value, bytes):
            array = np.frombuffer(value).copy()
            array[place] *= factor
            fields[name] = array.tobytes()
        elif value is not None:
            fields[name] = type(value)(factor * value)

    return change


def longer(name):
    """An array with one more entry."""
    return lambda fields: fields.__setitem__(name, (fields[name] or b"") + np.ones(1).tobytes())


def tables(family):
    """Three unequal sites with a few gaps in one column."""
    made = {}
    for seed, site in enumerate("abc"):
        rng = np.random.default_rng(seed)
        rows = 60 + 20 * seed
        x, z = rng.normal(1.0, 2.0, rows), rng.normal(size=rows)
        y = {
            "linear": x - z + rng.normal(size=rows),
            "logistic": np.where(rng.random(rows) < 1 / (1 + np.exp(-0.3 * x)), "yes", "no"),
            "multinomial": np.array(list("klm"))[rng.integers(0, 3, rows)],
            "negative-binomial": rng.negative_binomial(2, 0.4, rows).astype(float),
        }[family]
        made[site] = {"x": x, "z": z, "y": y, "gaps": np.where(np.arange(rows) < 6, np.nan, x)}
    return made


EVALUATED = {
    "rows-none": ("logistic", Evaluated, times("rows", 0)),
    "longer-moments": ("logistic", Evaluated, longer("moments")),
    "moments": ("logistic", Evaluated, times("moments", 1000.0)),
    "negative-errors": ("linear", Evaluated, times("sums", -1.0, 1)),
    "large-errors": ("linear", Evaluated, times("sums", 1000.0)),
    "other-squares": ("linear", Evaluated, times("squares", 1.5)),
    "brier": ("multinomial", Evaluated, times("sums", -1.0, 1)),
    "confusion": ("multinomial", Evaluated, times("confusion", 1.5)),
    "confusion-negative": ("multinomial", Evaluated, times("confusion", -1.0, 0)),
    "line": ("logistic", Evaluated, times("line", -1.0, 4)),
    "null-loss": ("logistic", Tabulated, times("loss", -1.0)),
    "pairs": ("logistic", Tabulated, times("pairs", 0.0)),
    "products": ("logistic", Tabulated, times("products", 1.5)),
    "variance": ("logistic", Tabulated, times("variance", 1e6)),
    "groups": ("logistic", Tabulated, times("groups", 1.5)),
    "groups-negative": ("logistic", Tabulated, times("groups", -1.0)),
    "groups-not-asked-for": ("linear", Tabulated, longer("groups")),
    "recalibrated": ("logistic", Recalibrated, times("sums", 1000.0)),
    "recalibrated-negative": ("logistic", Recalibrated, times("sums", -1.0, 2)),
}


@pytest.mark.parametrize(("family", "kind", "change"), EVALUATED.values(), ids=EVALUATED)
def test_a_lie_in_an_evaluation_is_a_note_with_the_name_of_the_site(family, kind, change):
    study = Study(family=family, target="y", columns=("x", "z"), holdout=0.5)
    found = fedshed.fit(tables(family), study, over=lying(kind, change)).evaluation
    assert not found.pooled
    assert "'b'" in " ".join(found.notes)


FOLDS = {
    "weight": times("weight", 1.5),
    "held-weight": times("held_weight", 0.0),
    "hessian": times("hessian", -1.0),
}


@pytest.mark.parametrize("change", FOLDS.values(), ids=FOLDS)
def test_a_lie_in_a_path_is_refused_by_the_name_of_the_site(change):
    study = Study(family="logistic", target="y", columns=("x", "z"))
    with pytest.raises(Error, match="'b'"):
        fedshed.path(tables("logistic"), study, values=3, folds=3, over=lying(FoldSums, change))


def test_a_negative_curvature_in_a_search_for_a_parameter_is_refused():
    study = Study(family="negative-binomial", target="y", columns=("x", "z"))
    with pytest.raises(Error, match="'b'"):
        fedshed.fit(
            tables("negative-binomial"), study, over=lying(Profiled, times("hessian", -1.0))
        )  # fmt: skip


@pytest.mark.parametrize("factor", [-1.0, 1.5, 1000.0])
def test_counts_of_values_that_no_rows_have_are_not_filled_in(factor):
    study = Study(family="linear", target="y", columns=("gaps", "z"), missing="impute")
    with pytest.raises(Error, match="'b'"):
        fedshed.fit(tables("linear"), study, over=lying(Tallies, times("sums", factor, 1)))


def test_events_after_the_largest_time_are_refused():
    made = {
        site: {"t": np.arange(1.0, 21.0) + k, "d": np.arange(20) % 2} for k, site in enumerate("abc")
    }  # fmt: skip
    with pytest.raises(Error, match="'b'"):
        fedshed.survival(made, time="t", event="d", over=lying(EventTimes, times("largest", -1.0)))
