"""Recorded runs depend on what an algorithm does, not on its source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from fedshed.algorithms import linesearch, rho
from fedshed.algorithms.rivals.agd import Agd
from fedshed.experiments.behaviour import arithmetic, behaviour

NAMES = ("newton", "fib-shed", "gn-shed", "pen", "qn-shed", "q-shed", "lbfgs", "agd")


def behaviours(loss="logistic"):
    """What these algorithms do now."""
    return {name: behaviour(lambda *_, name=name: fedshed.ALGORITHMS[name].algorithm, loss) for name in NAMES}


def changed(before, loss="logistic"):
    """The algorithms that do something else than before."""
    return {name for name, now in behaviours(loss).items() if not now.agrees(before[name])}


@pytest.fixture(scope="module")
def before():
    return behaviours()


def test_no_source_is_read(before, monkeypatch):
    """A comment, a name or a place in a file cannot matter."""
    for reads in ("read_text", "read_bytes", "open"):
        monkeypatch.setattr(Path, reads, lambda *_: pytest.fail("a file was read"))
    assert changed(before) == set()


def test_the_algorithms_are_told_apart(before):
    for name, one in before.items():
        assert [other for other in NAMES if before[other].agrees(one)] == [name]


def test_another_rho_is_another_behaviour_of_shed_alone(before, monkeypatch):
    call = rho.NextEigenvalue.__call__
    monkeypatch.setattr(rho.NextEigenvalue, "__call__", lambda *a: 1.01 * call(*a))
    assert changed(before) == {"fib-shed", "gn-shed"}  # q-shed has its own


def test_another_constant_of_armijo_changes_those_that_search():
    """alpha decides where steps are large; the default is compared with one just below 1/2."""
    strict = replace(fedshed.ALGORITHMS["lbfgs"].algorithm, line_search=linesearch.TwoExchange(alpha=0.49))
    usual = replace(strict, line_search=linesearch.TwoExchange())
    one, other = (behaviour(lambda *_, each=each: each, "logistic") for each in (usual, strict))
    assert not one.agrees(other)


def test_a_change_of_one_algorithm_changes_no_other(before, monkeypatch):
    step = Agd.step

    def longer(self, *others):
        return (yield from step(replace(self, step_size=1.1 * self.step_size), *others))

    monkeypatch.setattr(Agd, "step", longer)
    assert changed(before) == {"agd"}


def test_another_processor_may_round_the_other_way(before):
    """With another arithmetic a Hessian more or less is rounding; another first iteration is not."""
    pen = before["pen"]
    assert pen.arithmetic == arithmetic()
    late = np.array(pen.rows)
    late[late[:, 0] >= 2, 3:] *= 1.1
    moved = replace(pen, rows=tuple(map(tuple, late.tolist())))
    assert not moved.agrees(pen)
    assert replace(moved, arithmetic="another").agrees(pen)
    early = np.array(pen.rows)
    early[1, 3] += 8
    assert not replace(pen, arithmetic="another", rows=tuple(map(tuple, early.tolist()))).agrees(pen)


def test_every_family_has_a_behaviour():
    for loss in ("least-squares", "poisson", "gamma", "multinomial", "ordinal", "cox", "tweedie(1.5)"):
        assert behaviour(lambda *_: fedshed.ALGORITHMS["newton"].algorithm, loss).rows
