"""Every algorithm, family and way to run gives what it gave: to the bit on the machine that recorded it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.golden import record
from tests.made_rows import FAMILIES

GOLDEN = json.loads(record.FILE.read_text(encoding="utf-8"))
SAME_MACHINE = record.machine() == GOLDEN["machine"]


def compare(name, found):
    """All of it where the machine is the same; elsewhere theta of what converged, to 1e-8."""
    expected = GOLDEN["runs"][name]
    if SAME_MACHINE:
        assert json.loads(json.dumps(found)) == expected
    elif expected["converged"]:
        assert found["converged"]
        np.testing.assert_allclose(_floats(found["theta"]), _floats(expected["theta"]), rtol=0, atol=1e-8)


def _floats(numbers):
    return [float.fromhex(number) for number in numbers]


@pytest.mark.parametrize("one", record.RUNS, ids=" / ".join)
def test_a_run_is_what_it_was(one):
    compare(" / ".join(one), record.run(*one))


@pytest.mark.parametrize("loss", FAMILIES)
def test_a_fit_is_what_it_was(loss):
    compare(f"fit / {loss}", record.fitted(loss))


@pytest.mark.parametrize("loss", FAMILIES)
def test_a_study_over_nodes_is_what_it_was(loss):
    compare(f"study / {loss}", record.deployed(loss))


def test_every_run_is_recorded():
    names = {" / ".join(one) for one in record.RUNS}
    names |= {f"{what} / {loss}" for what in ("fit", "study") for loss in FAMILIES}
    assert set(GOLDEN["runs"]) == names
