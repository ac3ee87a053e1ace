"""Problems shared by the tests: very unequal sites, an agent of few rows, one class at one site."""

from __future__ import annotations

import os

import hypothesis
import numpy as np
import pytest

import fedshed
from fedshed import Federation
from fedshed.datasets.files import find
from fedshed.datasets.loaders import DATASETS

os.environ.setdefault("FEDSHED_OFFLINE", "1")  # no test reaches the network
os.environ.pop("COLUMNS", None)  # messages are whole, unless a test says how wide a terminal is
# The same examples in every run: a gate must not depend on chance. FEDSHED_EXPLORE=1 draws new ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", derandomize=False, deadline=None)
hypothesis.settings.load_profile("explore" if os.environ.get("FEDSHED_EXPLORE") else "same")
DATA = os.environ.get("FEDSHED_DATA")  # only tests marked `data` see it: the others need no file
SIZES = {"small": 3, "middle": 40, "large": 300}


def make_federation(loss: str, n: int = 6, sizes: dict[str, int] = SIZES, seed: int = 0) -> Federation:
    """Sites of different size and distribution; their spectra decay, so that eigenpairs matter."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    tables = {}
    for shift, (site, rows) in enumerate(sizes.items()):
        X = rng.normal(loc=0.4 * shift, size=(rows, n)) * np.geomspace(2, 0.1, n)
        z = X @ truth + rng.normal(size=rows)
        tables[site] = (X, z if loss == "least-squares" else np.where(z > 0, "yes", "no"))
    return Federation.from_sites(tables)


VARIANTS = ("q-shed-equal",)  # q-shed but for one pure function: one loss is enough for them
CASES = [
    (name, loss)
    for name, entry in fedshed.ALGORITHMS.items()
    for loss in (entry.algorithm.losses or ("least-squares", "logistic"))
    if not (name in VARIANTS and loss == "least-squares")
]


# Harmonic means and first-order methods crawl where local Hessians are nearly singular, and say so.
INEXACT = ("giant", "giant-det", "done", "agd", "heavy-ball", "dane", "scaffold", "fedavg", "fedprox")

# FedAvg and FedProx have a limit of their own on unequal sites (tests/algorithms/test_local_steps.py computes
# it), so they owe every promise but those about the pooled optimum.
POOLED = [case for case in CASES if fedshed.ALGORITHMS[case[0]].algorithm.pooled]


def well_conditioned(loss: str) -> Federation:
    """Unequal sites, each with more rows than columns, all columns on one scale."""
    rng = np.random.default_rng(1)
    truth = rng.normal(size=5)
    tables = {}
    for site, rows in {"small": 30, "middle": 60, "large": 400}.items():
        X = rng.normal(size=(rows, 5))
        z = X @ truth + rng.normal(size=rows)
        tables[site] = (X, z if loss == "least-squares" else np.where(z > 0, "yes", "no"))
    return Federation.from_sites(tables)


def federation_for(case: tuple[str, str]) -> Federation:
    """The problem an algorithm owes the promises on."""
    return well_conditioned(case[1]) if case[0] in INEXACT else make_federation(case[1])


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Every registered algorithm on every loss it allows."""
    return request.param  # type: ignore[no-any-return]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `data` finds FEDSHED_DATA, or skips with what it needs; no other test sees it."""
    os.environ.pop("FEDSHED_DATA", None)
    marks = list(item.iter_markers("data"))
    if marks and DATA is not None:
        os.environ["FEDSHED_DATA"] = DATA
    for name in (name for mark in marks for name in mark.args):
        try:
            DATASETS[name].find_files() if name in DATASETS else find(name)
        except fedshed.DataError as sentence:
            pytest.skip(str(sentence))


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Where all that tests need has been installed (FEDSHED_NO_SKIP), none may skip."""
    if (
        os.environ.get("FEDSHED_NO_SKIP")
        and call.excinfo
        and call.excinfo.errisinstance(pytest.skip.Exception)
    ):
        raise AssertionError(f"{item.nodeid} was skipped where nothing may be: {call.excinfo.value}")


@pytest.fixture
def simulation():
    """A run of the live page that is stopped afterwards."""
    from fedshed.ui.live import Simulation

    made = Simulation()
    yield made
    made.command("stop")
    made.join(30)
