"""Whatever is changed in any request of a whole study, a site that knows the honest one refuses it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from msgspec import Struct
from msgspec.structs import replace

pytest.importorskip("cryptography")

import fedshed
from fedshed import Study
from fedshed._utils.errors import ProtocolError
from fedshed.fitting.protected_study import MaskedTables
from fedshed.protected.comparing import check_request
from fedshed.protocol.codec import encode
from fedshed.protocol.messages import Search, Update, with_trial_points

SUMMABLE = ("newton", "newton-seldom", "lbfgs", "agd")
MODEL = Study(
    family="logistic", formula="y ~ u + center(v) + C(w)", classes=(0, 1), l2=1e-2, protected=True,
    levels={"w": ("high", "low")}, standardize=True,
)  # fmt: skip


def tables():
    rng = np.random.default_rng(3)
    made = {}
    for site, rows in (("a", 20), ("b", 30), ("c", 40)):
        X = rng.normal(size=(rows, 2))
        y = (X.sum(axis=1) + rng.logistic(size=rows) > 0).astype(int)
        w = np.where(rng.random(rows) > 0.5, "high", "low")
        made[site] = pd.DataFrame({"u": X[:, 0], "v": 5 + X[:, 1], "w": w, "y": y})
    return made


@pytest.fixture(scope="module")
def asked():
    """The requests of whole studies, with the conversation and the units in which points are compared."""
    found, summed = [], MaskedTables._summed

    def listening(self, label, payload):
        found.append((label, self.codec(label).decode_request(payload), self.units(label)))
        return summed(self, label, payload)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MaskedTables, "_summed", listening)
        for algorithm in SUMMABLE:
            assert fedshed.fit(tables(), MODEL, algorithm=algorithm, errors="HC3").converged
    return found


def others(value):
    """Values of the same kind that are not this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value + 1e-3, -value - 1.0, float("nan"), float("inf")]
    if isinstance(value, str):
        return [value + " + rare", ""] if value else ["rare"]
    if isinstance(value, np.ndarray):
        bumped = [value + shift for shift in (1e-3, 1e9, np.nan)] if value.size else []
        return [*bumped, np.append(value, 1.0)]
    if isinstance(value, Struct):
        return changed(value)
    if isinstance(value, tuple):
        each = [(*value[:k], new, *value[k + 1 :]) for k, old in enumerate(value) for new in others(old)]
        return [*each, (*value, *value[:1])] if value else [("rare",)]
    if isinstance(value, dict):
        return [*({**value, key: new} for key in value for new in others(value[key])), {**value, "rare": ()}]
    return [0.0, np.zeros(3)] if value is None else []


def changed(struct):
    """A struct with one of its fields changed, wherever it can be made."""
    found = []
    for name in struct.__struct_fields__:
        for new in others(getattr(struct, name)):
            try:
                found.append(replace(struct, **{name: new}))
            except (fedshed.Error, ValueError, TypeError, AttributeError):
                continue
    return found


def test_a_request_is_the_request_itself(asked):
    assert len({type(part) for _, request, _ in asked for part in request.parts}) >= 7
    for _, request, units in asked:
        check_request(request, request, units)


def test_a_request_with_any_field_changed_is_refused(asked):
    tried, seen = 0, set()
    for label, request, units in asked:
        kinds = (label, *map(type, request.parts))
        if kinds in seen:
            continue
        seen.add(kinds)
        for k, part in enumerate(request.parts):
            for new in (new for new in changed(part) if encode(new) != encode(part)):
                parts = [*request.parts[:k], new, *request.parts[k + 1 :]]
                with pytest.raises(ProtocolError):
                    check_request(request, replace(request, parts=parts), units)
                tried += 1
    assert tried > 200


def answered_at(parts):
    """All points at which a site computes anything for these parts."""
    points = []
    for part in with_trial_points(parts):
        if isinstance(part, Search):
            points += [part.theta, *(part.theta + eta * part.direction for eta in part.etas)]
        elif isinstance(part, Update):
            points.append(part.theta)
    return points


@pytest.mark.parametrize("power", [-100, -9, -1, 1, 9, 40])
def test_a_search_that_is_scaled_leads_nowhere_else(asked, power):
    """With its direction times c and its steps by 1 / c a search is the same; the trial point is not."""
    searches = [(r, units) for _, r, units in asked if any(isinstance(part, Search) for part in r.parts)]
    assert any(len(request.parts) > 1 for request, _ in searches)
    for request, units in searches:
        parts = [
            replace(part, direction=part.direction * 10.0**power, etas=part.etas / 10.0**power)
            if isinstance(part, Search) else part
            for part in request.parts
        ]  # fmt: skip
        with pytest.raises(ProtocolError):
            check_request(request, replace(request, parts=parts), units)


def test_requests_that_pass_are_about_the_same_points(asked):
    """Noise of any size on every array of a request: what passes is answered where the honest one is."""
    rng, passed = np.random.default_rng(0), 0
    for _, request, units in asked:
        for size in 10.0 ** rng.uniform(-13, 2, 6):
            parts = [_noisy(part, size, rng) for part in request.parts]
            try:
                check_request(request, replace(request, parts=parts), units)
            except ProtocolError:
                continue
            passed += 1
            for own, other in zip(answered_at(request.parts), answered_at(parts), strict=True):
                scale = units if np.shape(units) == own.shape else 1.0
                assert np.abs(scale * (own - other)).max() <= 1e-9 * max(1.0, np.abs(scale * own).max())
    assert passed > 50


def _noisy(part, size, rng):
    arrays = {
        name: value * (1 + size * rng.normal(size=value.shape))
        for name in part.__struct_fields__
        if isinstance(value := getattr(part, name), np.ndarray)
    }
    return replace(part, **arrays)
