"""Models evaluated together give what each gives alone, bit for bit."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

import fedshed
from fedshed import Federation
from fedshed.exchange import InProcess
from fedshed.objectives import local_objectives, stack, stacked
from fedshed.objectives.stacked_rows import DenseRows
from made_rows import FAMILIES, response

shapes = st.tuples(st.integers(2, 9), st.sampled_from([1, 2, 33, 128, 351]), st.integers(1, 60))


def alone(objectives):
    """The same models, each on arrays of its own."""
    return {i: type(m)(m.X.copy(), m.y, m.weights, m.offset) for i, m in objectives.items()}


def made(loss, count, N, n, seed, sparse=False, beside=False):
    rng = np.random.default_rng(seed)
    sites = {}
    for i in range(count):
        X = rng.normal(size=(N, n)) * (rng.random((N, n)) < (0.3 if sparse else 1.0))
        y = response(loss, X.sum(axis=1) / n, rng)
        y[0] = ("yes", "no")[i % 2] if loss == "logistic" else y[0]
        extra = {"weights": rng.random(N) + 0.5, "offset": rng.normal(size=N)} if beside else {}
        sites[f"s{i}"] = fedshed.datasets.Table(csr_array(X) if sparse else X, y, **extra)
    return Federation.from_sites(sites)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("loss", [loss for loss in FAMILIES if loss != "multinomial"])
@given(shapes, st.booleans(), st.integers(0, 10**6))
@settings(deadline=None, max_examples=20)
def test_together_is_alone_bit_for_bit(loss, sparse, shape, beside, seed):
    federation = made(loss, *shape, seed, sparse, beside and loss != "gamma")
    objectives = local_objectives(federation, loss)
    together = stacked(objectives)
    assert all(model.slot is not None for model in together.values())
    rng = np.random.default_rng(seed)
    theta, direction, etas = rng.normal(size=shape[2]) / 9, rng.normal(size=shape[2]), 0.5 ** np.arange(8)
    for i, model in alone(objectives).items():
        one, other = model.at(theta), together[i].at(theta)
        assert one.value == other.value
        np.testing.assert_array_equal(one.gradient, other.gradient)
        np.testing.assert_array_equal(
            model.along(theta, direction, etas), together[i].along(theta, direction, etas)
        )
        np.testing.assert_array_equal(
            model.slopes_along(theta, direction, etas), together[i].slopes_along(theta, direction, etas)
        )
        np.testing.assert_array_equal(one.narrow.rows.sum(axis=0), other.narrow.rows.sum(axis=0))
        np.testing.assert_array_equal(one.factor.sum(axis=0), other.factor.sum(axis=0))


@pytest.mark.parametrize("name", ["fib-shed", "qn-shed", "pen", "done"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_is_the_same_with_models_together_and_alone(name, workers, monkeypatch):
    federation = made("logistic", 12, 40, 6, 0)

    def run():
        transport = lambda sites: InProcess(sites, workers=workers)  # noqa: E731
        return fedshed.optimize(federation, algorithm=name, l2=1e-3, transport=transport)

    one = run()
    monkeypatch.setattr(stack, "LIGHT", 0)
    other = run()
    assert np.array_equal(one.theta, other.theta)
    assert one.trace[-1].uplink_bytes == other.trace[-1].uplink_bytes


def test_the_first_who_asks_computes_alone_and_the_second_for_all(monkeypatch):
    asked = []
    monkeypatch.setattr(DenseRows, "times", lambda self, theta: asked.append(theta) or self.X @ theta)
    models = list(stacked(local_objectives(made("least-squares", 5, 20, 3, 1), "least-squares")).values())
    points = np.random.default_rng(0).normal(size=(6, 3))
    for theta in points:  # one agent that walks about on its own
        assert models[0].at(theta).value == models[0].at(theta).value
    assert not asked
    values = [model.at(points[0].copy()).value for model in models]
    assert len(asked) == 1
    assert len(set(values)) == 5
    theta = points[1]
    before = [model.at(theta).value for model in models]
    theta += 1.0  # whoever changes a vector is not given what belonged to the old one
    assert all(model.at(theta).value != value for model, value in zip(models, before, strict=True))


def test_large_tables_and_odd_ones_stay_alone(monkeypatch):
    monkeypatch.setattr(stack, "LIGHT", 100)
    rng = np.random.default_rng(0)
    sites = {
        "a": (rng.normal(size=(20, 3)), np.arange(20.0)),
        "b": (rng.normal(size=(20, 3)), np.arange(20.0)),
        "large": (rng.normal(size=(40, 3)), np.arange(40.0)),
        "short": (rng.normal(size=(9, 3)), np.arange(9.0)),
    }
    together = stacked(local_objectives(Federation.from_sites(sites), "least-squares"))
    assert [i for i, model in sorted(together.items()) if model.slot] == ["a", "b"]


def test_what_is_shared_cannot_be_changed_and_views_are_no_promise():
    models = list(stacked(local_objectives(made("least-squares", 4, 20, 3, 1), "least-squares")).values())
    theta, direction, etas = np.ones(3), np.ones(3), np.ones(2)
    for model in models:
        first = model.at(theta).value, model.along(theta, direction, etas)
    assert first[0] == models[-1].at(theta).value
    for shared in (models[-1].at(theta).gradient, models[-1].along(theta, direction, etas)):
        with pytest.raises(ValueError, match="read-only"):
            shared *= 0
    base = np.zeros(3)
    view = base.view()
    view.flags.writeable = False
    before = [model.at(view).value for model in models]
    base += 1.0
    assert all(model.at(view).value != value for model, value in zip(models, before, strict=True))


def test_a_copy_of_a_model_is_evaluated_alone():
    model = next(iter(stacked(local_objectives(made("logistic", 4, 20, 3, 1), "logistic")).values()))
    other = deepcopy(model)
    assert model.slot is not None
    assert other.slot is None
    assert other.at(np.ones(3)).value == model.at(np.ones(3)).value
