"""Means that are filled in, of a deployed study: no sum over a few observed values leaves a site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedshed import ProtocolError, Study
from fedshed.deployment.config import SiteFile, Source, StudyFile
from fedshed.deployment.decision import decision, leaving
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.privacy.policy import Policy

STUDY = Study(family="linear", target="y", columns=("x", "z"), missing="impute")


def nodes(folder: Path, observed: int) -> dict[str, Node]:
    """Three sites of 60 rows, one of which has few values of x."""
    rng, made = np.random.default_rng(0), {}
    for site in "abc":
        x, z = rng.normal(size=60), rng.normal(size=60)
        frame = pd.DataFrame({"x": x, "z": z, "y": x + z + rng.normal(size=60)})
        frame["g"] = np.where(rng.random(60) < 0.5, "yes", "no")
        if site == "b":
            frame.loc[observed:, "x"] = np.nan
        frame.to_csv(folder / f"{site}.csv", index=False)
        places = {"table": Source(csv=f"{site}.csv"), "state": f"state-{site}", "audit": f"{site}.jsonl"}
        policy = Policy(max_numbers=100.0, max_curvature=100.0)
        made[site] = Node(SiteFile(name=site, disclosure=policy, any_study=True, **places), folder)
    return made


def test_a_mean_of_many_observed_values_is_filled_in(tmp_path):
    model, _ = conduct_study(StudyFile(STUDY, tuple("abc")), InProcess(nodes(tmp_path, 30)))
    assert model.converged


@pytest.mark.parametrize("observed", [1, 4])
def test_a_sum_of_few_observed_values_stays_at_its_site(tmp_path, observed):
    """That of one value would be the value."""
    with pytest.raises(ProtocolError, match=r"site 'b'.*at least 5 values in each column that is filled in"):
        conduct_study(StudyFile(STUDY, tuple("abc")), InProcess(nodes(tmp_path, observed)))


def shown(folder: Path, study: Study) -> dict[str, str]:
    """What a steward is told that leaves, by when it does."""
    nodes(folder, 30)
    (folder / "site.toml").write_text('name = "b"\n[table]\ncsv = "b.csv"\n')
    lines = leaving(decision(folder / "site.toml", StudyFile(study, tuple("abc"))).items)
    return {line.partition(":")[0]: line for line in lines}


def test_a_steward_is_shown_the_sums_that_means_are_made_of(tmp_path):
    said = shown(tmp_path, STUDY)["before the fit"]
    assert "sums of columns, and numbers of their values (4)" in said


def test_a_steward_is_shown_that_hessians_leave_in_each_round_with_firths_penalty(tmp_path):
    study = Study(family="logistic", target="g", columns=("z",), firth=True, classes=("no", "yes"))
    said = shown(tmp_path, study)["in each round"]
    assert "the Hessian (3); the contribution of the rows to the slope of Firth's penalty (2)" in said


def test_a_steward_is_shown_each_sum_of_rows_held_out(tmp_path):
    study = Study(family="logistic", target="g", columns=("z",), holdout=0.5, classes=("no", "yes"))
    said = shown(tmp_path, study)["at the end"]
    assert "the line that recalibrates its scores, and its covariance (5)" in said
    assert "sums of losses, errors and scores of the rows held out (5)" in said
