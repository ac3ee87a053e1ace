"""Parameters that are searched for at sites that have approved the study, behind their policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed.algorithms import build
from fedshed.deployment.approval import approve_study
from fedshed.deployment.config import StudyFile
from fedshed.deployment.decision import decision, leaving
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.fitting.fit import fit
from fedshed.fitting.parts import part_of
from fedshed.fitting.stages import Play
from fedshed.fitting.terms import MOST_NEWTON_POINTS
from fedshed.preparation import Study
from fedshed.preparation.derived import check_plan
from fedshed.preparation.protocol import negotiate, preparers_of
from fedshed.privacy.audit import entries
from fedshed.protocol.codec import raw
from fedshed.solve.stages import PROFILE
from fedshed.tables import read_table
from fedshed.tables.frames import Frame

ROWS, LEVELS = {"a": 60, "b": 120, "c": 90}, {"a": -0.8, "b": 0.9, "c": 0.1}
POLICY = "[disclosure]\nmax_curvature = 50\nmax_numbers = 500\n"
STUDIES = [
    Study(family="negative-binomial", target="count", columns=("u", "v")),
    Study(family="logistic", target="ill", columns=("u", "v"), random_intercept=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three sites with a policy each; counts vary more than Poisson's, and sites differ."""
    path, rng = tmp_path_factory.mktemp("sites"), np.random.default_rng(0)
    for site, rows in ROWS.items():
        (path / site).mkdir()
        u, v = rng.normal(size=(2, rows))
        z = 0.5 + 0.3 * u - 0.2 * v + LEVELS[site]
        count = rng.poisson(np.exp(z) * rng.gamma(2.0, 0.5, rows))
        table = pd.DataFrame({"u": u, "v": v, "count": count, "ill": (z + rng.logistic(size=rows) > 0) * 1})
        table.to_csv(path / site / "table.csv", index=False)
        (path / site / "site.toml").write_text(f'name = "{site}"\n[table]\ncsv = "table.csv"\n{POLICY}')
    return path


def tables(folder):
    return {site: read_table(folder / site / "table.csv") for site in ROWS}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.loss)
def test_a_search_over_approved_nodes_is_a_fit_here_bit_for_bit(folder, study):
    file = StudyFile(study, tuple(ROWS), algorithm="newton")
    for site in ROWS:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words())
    nodes = {site: Node.at(folder / site / "site.toml") for site in ROWS}
    model, report = conduct_study(file, InProcess(nodes))
    here = fit(tables(folder), study, algorithm="newton")
    assert model.converged, model.run.reason
    assert model.inference.coefficients == here.inference.coefficients
    assert model.inference.nuisance == here.inference.nuisance
    assert model.inference.nuisance.value > 0
    assert report.converged
    kinds = {entry.what for entry in entries(folder / "a" / "audit.jsonl")}
    assert any(what.startswith("AskProfile") for what in kinds)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.loss)
def test_the_decision_of_a_site_shows_the_search_and_how_many_points_it_may_take(folder, study):
    found = decision(folder / "a" / "site.toml", StudyFile(study, tuple(ROWS), algorithm="newton"))
    said = " ".join(leaving(found.items))
    assert "for each value of the parameter that is tried: " in said
    assert "the slope of the likelihood in the parameter (1)" in said
    assert found.ceilings.points == 3 * MOST_NEWTON_POINTS
    assert ("random intercept per site" in found.model) == study.random_intercept


def agreed(folder, study):
    sites = preparers_of(tables(folder))
    return negotiate(study, InProcess(sites), tuple(sites), 3)[0]


def test_a_site_accepts_a_parameter_only_of_a_study_that_leaves_it_open_and_within_its_range(folder):
    searched, plain = STUDIES[0], Study(family="poisson", target="count", columns=("u", "v"))
    frame = Frame(tables(folder)["a"])
    plan = agreed(folder, searched)
    check_plan(searched, frame, replace(plan, parameter=0.7, warnings=()))
    for value in (-1.0, 1e9, float("nan")):
        with pytest.raises(ProtocolError, match="other parameter than the study"):
            check_plan(searched, frame, replace(plan, parameter=value, warnings=()))
    with pytest.raises(ProtocolError, match="other parameter than the study"):
        check_plan(plain, frame, replace(agreed(folder, plain), parameter=0.7, warnings=()))
    assert replace(plan, parameter=0.7).digest == replace(plan, parameter=UNSET).digest


def test_a_site_does_not_answer_about_a_parameter_that_the_study_does_not_search_for(folder):
    plain = Study(family="poisson", target="count", columns=("u", "v"))
    play = Play(agreed(folder, plain), raw(build("newton")))
    with pytest.raises(ProtocolError, match="no parameter that must be estimated"):
        part_of(PROFILE.number, play, 3, ())
