"""Firth's penalty and families of classes at sites that have approved the study, behind their policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedshed._utils.errors import ProtocolError
from fedshed.algorithms.firth import Firth
from fedshed.deployment.approval import approve_study
from fedshed.deployment.config import StudyFile
from fedshed.deployment.decision import decision, leaving
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.fitting.fit import fit
from fedshed.fitting.terms import MOST_FIRTH_POINTS
from fedshed.preparation import Study
from fedshed.privacy.audit import entries
from fedshed.tables import read_table

ROWS = {"a": 60, "b": 120, "c": 90}
POLICY = "[disclosure]\nmax_curvature = 50\nmax_numbers = 500\n"
FIRTH = Study(family="logistic", target="ill", columns=("u", "v", "drug"), firth=True)
STUDIES = [
    FIRTH,
    Study(family="probit", target="well", columns=("u", "v")),
    Study(family="cloglog", target="well", columns=("u", "v")),
    Study(family="ordinal", target="grade", columns=("u", "v"), classes=("low", "mid", "high")),
    Study(family="inverse-gaussian", target="cost", columns=("u", "v")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three sites with a policy each; nobody who took the drug is ill, so the classes are separated by it."""
    path, rng = tmp_path_factory.mktemp("sites"), np.random.default_rng(0)
    for site, rows in ROWS.items():
        (path / site).mkdir()
        u, v = rng.normal(size=(2, rows))
        z = 0.5 * u - 0.3 * v
        drug = (np.arange(rows) % 5 == 0).astype(int)
        well = (z + rng.logistic(size=rows) > 0) * 1
        place = np.digitize(z + rng.logistic(size=rows), [-0.7, 0.7])
        table = pd.DataFrame(
            {
                "u": u, "v": v, "drug": drug, "well": well, "ill": (1 - well) * (1 - drug),
                "grade": np.array(["low", "mid", "high"])[place],
                "cost": rng.wald(np.exp(z), 3.0),
            }
        )  # fmt: skip
        table.to_csv(path / site / "table.csv", index=False)
        (path / site / "site.toml").write_text(f'name = "{site}"\n[table]\ncsv = "table.csv"\n{POLICY}')
    return path


def tables(folder):
    return {site: read_table(folder / site / "table.csv") for site in ROWS}


def nodes(folder, file):
    for site in ROWS:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words())
    return InProcess({site: Node.at(folder / site / "site.toml") for site in ROWS})


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.family)
def test_a_study_over_approved_nodes_is_a_fit_here_bit_for_bit(folder, study):
    file = StudyFile(study, tuple(ROWS))
    model, report = conduct_study(file, nodes(folder, file))
    chosen = "auto" if study.firth else model.run.algorithm.partition(":")[0]
    here = fit(tables(folder), study, algorithm=chosen)
    assert model.converged, model.run.reason
    assert report.converged
    np.testing.assert_allclose(model.inference.coef, here.inference.coef, rtol=1e-9, atol=1e-10)
    if study.firth:
        assert model.inference.coefficients == here.inference.coefficients
        kinds = {entry.what for entry in entries(folder / "a" / "audit.jsonl")}
        assert "AskLeverages -> Leverages" in kinds


def test_the_decision_of_a_site_shows_what_firth_asks_for(folder):
    found = decision(folder / "a" / "site.toml", StudyFile(FIRTH, tuple(ROWS)))
    assert "with Firth's penalty" in found.model
    assert found.ceilings.points == MOST_FIRTH_POINTS
    assert "the contribution of the rows to the slope of Firth's penalty" in " ".join(leaving(found.items))


def test_separated_data_are_found_over_nodes_by_slopes_that_vanish_quickly(folder):
    file = StudyFile(Study(family="probit", target="ill", columns=("u", "v", "drug")), tuple(ROWS))
    model, _ = conduct_study(file, nodes(folder, file))
    assert not model.converged
    assert model.run.reason.startswith("separated: ")
    assert "drug" in model.run.reason
    assert "firth" not in model.run.reason  # which is for a logit link


def test_leverages_are_told_only_in_a_study_that_declares_firth():
    plain = StudyFile(Study(family="logistic", target="ill", columns=("u",)), tuple(ROWS)).terms
    with pytest.raises(ProtocolError, match="another algorithm than the one that was approved"):
        plain.check_algorithm(Firth(), 2)
    declared = StudyFile(FIRTH, tuple(ROWS)).terms
    declared.check_algorithm(Firth(), 2)
    assert declared.most_iterations(Firth()) * 2 <= MOST_FIRTH_POINTS
