"""What "auto" runs in a study that sites approve follows from its terms: every steward reads the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedshed
from fedshed import ProtocolError, Study
from fedshed.algorithms.firth import Firth
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.newton_seldom import NewtonSeldom
from fedshed.algorithms.registry import build, with_one_exchange
from fedshed.deployment.config import StudyFile, read_site
from fedshed.deployment.decision import decision
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess

ORACLES = Path(__file__).parents[1] / "oracles"
COXPH = json.loads((ORACLES / "proportional_hazards.json").read_text())["pbc"]
COX = Study(family="cox", time="time", event="status", ties="breslow", columns=tuple(COXPH["names"]))
# a large site, one whose budget allows few Hessians, and one with a slow link
SETTINGS = {
    "north": "[disclosure]\nmax_curvature = 1000\nmax_numbers = 1000\n",
    "south": "[disclosure]\nmax_curvature = 0.2\nmax_numbers = 1000\n",
    "west": "[uplink]\nbytes_per_round = 150\n[disclosure]\nmax_curvature = 1000\nmax_numbers = 1000\n",
}
OPEN = (
    "min_rows = 1\nmin_rows_per_class = 1\nmin_rows_per_level = 1\neffective_rows = 1\nmax_deviance = 1e300\n"
)


def simulated():
    """Rows of a logistic model, few at one site and many at another."""
    rng, tables = np.random.default_rng(7), {}
    for site, rows in zip(SETTINGS, (900, 60, 120), strict=True):
        X = rng.normal(size=(rows, 4))
        y = (X @ [1.0, -1.0, 0.5, 0.0] + rng.logistic(size=rows) > 0).astype(int)
        tables[site] = pd.DataFrame(X, columns=list("uvwx")).assign(y=y)
    return Study(family="logistic", target="y", l2=1e-3), tables


def survival_times():
    """The rows of R's pbc data, whose sites are joined to three."""
    rows = pd.read_csv(ORACLES / "pbc.csv")
    numbers = rows.pop("site").str[1:].astype(int)
    parts = {"north": numbers > 7, "south": numbers <= 4, "west": (numbers > 4) & (numbers <= 7)}
    return COX, {site: rows[chosen] for site, chosen in parts.items()}


@pytest.fixture(params=[simulated, survival_times])
def sites(request, tmp_path):
    study, tables = request.param()
    for site, table in tables.items():
        (tmp_path / site).mkdir()
        table.to_csv(tmp_path / site / "table.csv", index=False)
        text = f'name = "{site}"\nany_study = true\n[table]\ncsv = "table.csv"\n{SETTINGS[site]}{OPEN}'
        (tmp_path / site / "site.toml").write_text(text)
    return StudyFile(study, tuple(tables)), tables, tmp_path


def nodes(folder):
    return {site: Node(read_site(folder / site / "site.toml"), folder / site) for site in SETTINGS}


def test_stewards_of_unlike_sites_read_the_same_sentence_which_is_what_runs(sites):
    file, tables, folder = sites
    decisions = [decision(folder / site / "site.toml", file) for site in tables]
    assert len({one.sha256 for one in decisions}) == 1
    assert {one.algorithm for one in decisions} == {
        "lbfgs: a study that names no algorithm asks its sites for gradients only"
    }
    assert not any("do not take part" in advice for one in decisions for advice in one.advice)
    model, report = conduct_study(file, InProcess(nodes(folder)))
    assert report.algorithm == decisions[0].algorithm
    assert model.converged
    pooled = fedshed.fit(tables, file.study).inference
    np.testing.assert_allclose(model.inference.coef, pooled.coef, atol=1e-6)


def test_a_budget_refuses_a_named_algorithm_and_never_changes_it(sites):
    file, _, folder = sites
    tight = (
        (folder / "south" / "site.toml").read_text().replace("max_curvature = 0.2", "max_curvature = 0.05")
    )
    (folder / "south" / "site.toml").write_text(tight)
    named = StudyFile(file.study, file.sites, algorithm="newton")
    (folder / "west" / "site.toml").write_text(
        (folder / "west" / "site.toml").read_text().replace("[uplink]\nbytes_per_round = 150\n", "")
    )
    found = decision(folder / "south" / "site.toml", named)
    assert found.algorithm == "newton"
    assert any('Ask the Master for algorithm = "lbfgs"' in advice for advice in found.advice)
    with pytest.raises(ProtocolError, match="max_curvature"):
        conduct_study(named, InProcess(nodes(folder)))


def test_a_site_refuses_what_the_terms_do_not_choose(sites, monkeypatch):
    """A Master that runs another of the algorithms among which auto once chose."""
    file, _, folder = sites
    from fedshed.fitting.sites import HostedTables

    for name in ("newton", "qn-shed", "pen"):
        monkeypatch.setattr(
            HostedTables, "approved_algorithm", lambda self, n, name=name: (build(name), name)
        )
        with pytest.raises(ProtocolError, match="refused"):
            conduct_study(file, InProcess(nodes(folder)))


@pytest.mark.parametrize("n", [1, 32, 33, 1000, 1001, 20_000])
def test_the_choice_is_a_function_of_the_terms_and_the_number_of_coefficients(n):
    def chosen(study, algorithm="auto", sites=("a", "b", "c")):
        terms = StudyFile(study, sites, algorithm=algorithm).terms
        picked, why = terms.choose(n)
        assert terms.choose(n) == (picked, why)
        terms.check_algorithm(with_one_exchange(picked), n)  # the line search follows from the algorithm
        return picked

    plain = Study(family="logistic", target="y")
    assert isinstance(chosen(plain), Lbfgs)
    assert chosen(plain) == chosen(plain, sites=tuple("abcdefgh"))
    assert isinstance(chosen(Study(family="logistic", target="y", l1=0.1)), Newton)
    assert isinstance(chosen(Study(family="logistic", target="y", firth=True)), Firth)
    assert chosen(plain, "newton-seldom") == build("newton-seldom")


def test_a_protected_study_chooses_by_the_number_of_coefficients():
    from fedshed.fitting.terms import Terms

    study = Study(family="linear", target="y", protected=True)
    terms = Terms(
        protocol=4, study=study, sites=("a", "b", "c"), algorithm="auto", tolerance=1e-9, max_iterations=9
    )
    kinds = {n: type(terms.choose(n)[0]) for n in (2, 32, 33, 1000, 1001)}
    assert kinds == {2: Newton, 32: Newton, 33: NewtonSeldom, 1000: NewtonSeldom, 1001: Lbfgs}
    with pytest.raises(ProtocolError, match="another algorithm"):
        terms.check_algorithm(Newton(), 33)
