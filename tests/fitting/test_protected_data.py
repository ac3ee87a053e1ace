"""Protected fits of real tables: the plain fit by the same algorithm, whatever the family."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.fitting.test_fit import FILES, digits, real

import fedshed
from fedshed import Study
from fedshed.preparation.approved import listed

pytest.importorskip("cryptography")
MOST = 8  # sites, the largest ones
SUMMABLE = ("newton", "newton-seldom", "lbfgs", "agd")
LOGISTIC = [(name, algorithm) for name in ("heart", "contraception") for algorithm in SUMMABLE]
OTHERS = [("medpar", "newton-seldom"), ("fremtpl2", "newton"), ("severities", "lbfgs"), ("exam", "lbfgs")]
CASES = [
    *(pytest.param(*case, marks=pytest.mark.data(*FILES[case[0]])) for case in (*LOGISTIC, *OTHERS)),
    ("claims", "newton"),
]


def furthest(tables, study, algorithm):
    """The largest distance of a coefficient from the plain fit, in standard errors; both have converged."""
    plain = fedshed.fit(tables, study, algorithm=algorithm)
    masked = fedshed.fit(tables, listed(study, plain.plan), algorithm=algorithm)
    assert plain.converged
    assert masked.converged
    assert masked.inference.names == plain.inference.names
    errors = plain.inference.std_err()
    assert np.abs(masked.inference.std_err() / errors - 1).max() < 1e-10
    apart = np.subtract(masked.inference.coefficients, plain.inference.coefficients)
    return np.abs(apart / errors).max()


@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_a_protected_fit_of_real_tables_is_the_plain_fit(name, algorithm):
    tables, study = real(name)
    largest = sorted(tables, key=lambda site: len(tables[site]))[-MOST:]
    few = {site: tables[site] for site in largest}
    if name in ("fremtpl2", "severities"):  # one site alone has this level, which a protected study refuses
        few = {site: table[table["Area"] != "F"] for site, table in few.items()}
    assert furthest(few, replace(study, standardize=algorithm != "newton"), algorithm) < 1e-10


def test_a_protected_multinomial_fit_is_the_plain_fit():
    tables = {site: frame[frame["digit"] < 3] for site, frame in digits(4).items()}
    assert furthest(tables, Study(family="multinomial", target="digit", l2=1e-3), "newton") < 1e-10
