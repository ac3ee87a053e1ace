"""Studies with empty cells of an interaction and a scaled design, at sites that approved them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedshed
from fedshed import Study
from fedshed.deployment.approval import approve_study
from fedshed.deployment.config import StudyFile
from fedshed.deployment.decision import decision, leaving
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.tables import read_table

SITES = ("a", "b", "c")
SCALED = {
    "standardised": Study(family="linear", formula="y ~ arm * ward + yr", standardize=True),
    "centred": Study(family="linear", formula="y ~ arm * ward + yr + I(yr^2)"),
    "a constant at each site": Study(family="linear", formula="y ~ arm * ward + yr + I(yr^2) + region"),
    "neither": Study(family="linear", formula="y ~ arm * ward + yr"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sites of 150 rows; no row has arm t in ward w3, and the region is the same within a site."""
    rng = np.random.default_rng(0)
    for site in SITES:
        arm, ward = rng.choice(["c", "t"], 150), rng.choice(["w1", "w2", "w3"], 150)
        ward[(arm == "t") & (ward == "w3")] = "w2"
        yr = rng.integers(1990, 2021, 150)
        y = (arm == "t") + 0.01 * (yr - 2000) ** 2 + rng.normal(size=150)
        frame = pd.DataFrame({"arm": arm, "ward": ward, "yr": yr, "y": y, "region": float(site == "a")})
        (tmp_path / site).mkdir()
        frame.to_csv(tmp_path / site / "table.csv", index=False)
        rules = "[disclosure]\nmax_curvature = 100\nmax_numbers = 100\n"
        text = f'name = "{site}"\n[table]\ncsv = "table.csv"\n{rules}'
        (tmp_path / site / "site.toml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("study", SCALED.values(), ids=SCALED)
def test_an_approved_study_leaves_out_empty_cells_and_scales(folder, study):
    file = StudyFile(study, SITES)
    for site in SITES:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words())
    nodes = {site: Node.at(folder / site / "site.toml") for site in SITES}
    model = conduct_study(file, InProcess(nodes))[0]
    assert model.converged
    assert model.plan.aliased == ("arm[t]:ward[w3]",)
    assert "arm[t]:ward[w3]" not in model.plan.names
    here = fedshed.fit({s: read_table(folder / s / "table.csv") for s in SITES}, study)
    np.testing.assert_allclose(model.inference.coef, here.inference.coef, rtol=1e-5)


def test_a_deployed_fit_names_an_empty_cell_at_a_reference_level(folder):
    """The Master sees no rows, only the information matrix."""
    study = Study(family="linear", formula="y ~ arm * ward", references={"arm": "t"})
    file = StudyFile(study, SITES)
    for site in SITES:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words())
    nodes = {site: Node.at(folder / site / "site.toml") for site in SITES}
    model = conduct_study(file, InProcess(nodes))[0]
    assert not model.converged
    assert "no row of any site has arm = t and ward = w3 (an empty cell at a" in model.run.reason


def test_a_steward_reads_that_a_column_with_its_square_may_be_centred(folder):
    file = StudyFile(Study(family="linear", formula="y ~ yr + I(yr^2)"), SITES)
    said = " ".join(leaving(decision(folder / "a" / "site.toml", file).items))
    assert "sums of columns, deviations and squares, if a column with its powers is far from 0 (6)" in said
    plain = StudyFile(Study(family="linear", formula="y ~ yr"), SITES)
    assert "deviations" not in " ".join(leaving(decision(folder / "a" / "site.toml", plain).items))
