"""Held-out rows in a deployed study: declared, approved, merged to the policy's cells, and audited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from sklearn import metrics

import fedshed
from fedshed.algorithms.newton import Newton
from fedshed.deployment.config import SiteFile, Source, StudyFile
from fedshed.deployment.decision import decision
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.fitting.conduct import problem_of
from fedshed.fitting.sites import HostedTables
from fedshed.preparation import Study, negotiate
from fedshed.preparation.holdout import held_out
from fedshed.privacy.audit import entries
from fedshed.privacy.policy import Policy
from fedshed.solve.stages import evaluate
from fedshed.tables.frames import Frame

SITES = ("a", "b", "c")
KINDS = ("Evaluate", "Tabulate", "Recalibrate")
MODEL = Study(family="logistic", target="y", columns=("u", "v"), holdout=0.4)
STUDY = StudyFile(MODEL, SITES, algorithm="newton")


@pytest.fixture
def frames(tmp_path: Path) -> dict[str, pd.DataFrame]:
    """Tables of 80, 200 and 500 rows, also as CSV files."""
    rng = np.random.default_rng(2)
    made = {}
    for site, rows in zip(SITES, (80, 200, 500), strict=True):
        X = rng.normal(size=(rows, 2))
        y = (X @ [1.0, -0.7] + rng.logistic(size=rows) > 0.3).astype(int)
        made[site] = pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "y": y})
        made[site].to_csv(tmp_path / f"{site}.csv", index=False)
    return made


def nodes(folder: Path, **rules: Any) -> dict[str, Node]:
    """The sites with the usual policy, but for a larger budget and some rules."""
    policy = Policy(max_numbers=20.0, max_curvature=10.0, **rules)

    def node(site: str) -> Node:
        places = {"table": Source(csv=f"{site}.csv"), "state": f"state-{site}", "audit": f"{site}.jsonl"}
        return Node(SiteFile(name=site, disclosure=policy, any_study=True, **places), folder)

    return {site: node(site) for site in SITES}


def test_a_deployed_study_evaluates_within_its_bound_and_puts_it_on_record(tmp_path, frames) -> None:
    model, _ = conduct_study(STUDY, InProcess(nodes(tmp_path)))
    held = {site: frame[held_out(MODEL, Frame(frame), site)] for site, frame in frames.items()}
    y = np.concatenate([frame["y"] for frame in held.values()])
    p = np.concatenate([model.predict_proba(frame)[:, 1] for frame in held.values()])
    found = model.evaluation
    assert found.rows == len(y)
    area = found.pooled["auc"]
    assert 0 < area.bound < 0.1
    assert abs(area.value - metrics.roc_auc_score(y, p)) <= area.bound
    assert found.pooled["brier"].value == pytest.approx(metrics.brier_score_loss(y, p), rel=1e-9)
    own = model.predict_proba(held["a"])[:, 1]
    assert found.sites["a"].measures["auc"].value == pytest.approx(metrics.roc_auc_score(held["a"]["y"], own))
    recorded = [entry for entry in entries(tmp_path / "a.jsonl") if entry.kind in KINDS]
    assert len(recorded) == found.exchanges
    assert len({point for entry in recorded for point in entry.points}) == found.exchanges  # each is a point
    assert sum(entry.scalars for entry in recorded) > 10


def test_few_rows_held_out_are_refused_by_name_before_the_fit(tmp_path, frames) -> None:
    few = replace(STUDY, study=replace(MODEL, holdout=0.08))  # 6 rows of site a
    with pytest.raises(fedshed.Error, match=r"site 'a'.*of the rows held out, at least 10 rows \(min_rows\)"):
        conduct_study(few, InProcess(nodes(tmp_path)))


def test_a_host_refuses_an_evaluation_that_its_study_does_not_declare(tmp_path, frames, caplog) -> None:
    tables = HostedTables(InProcess(nodes(tmp_path)), SITES)
    plain = replace(MODEL, holdout=None)
    with tables.prepare() as transport:
        plan, ready, _ = negotiate(plain, transport, SITES, 20)
    problem = problem_of(plan, ready, False)
    sites = tables.play(plan, problem, Newton())
    with pytest.raises(fedshed.Error, match="site 'a' refused"):
        evaluate(sites, problem, np.zeros(problem.n), patience=1)
    assert "the study does not hold out rows" in caplog.text


def test_a_steward_is_shown_that_rows_are_held_out_and_what_leaves_of_them(tmp_path, frames) -> None:
    (tmp_path / "site.toml").write_text('name = "b"\n[table]\ncsv = "b.csv"\n')
    shown = decision(tmp_path / "site.toml", STUDY)
    assert "40% of the rows held out, and the model evaluated on them" in shown.model
    assert any("counts of rows held out" in item.what for item in shown.items)
    assert "Of the 80 rows held out" in shown.exposure.sentence


def test_a_cell_of_a_confusion_matrix_with_few_rows_is_withheld(tmp_path) -> None:
    rng = np.random.default_rng(4)
    for site, rows in zip(SITES, (120, 300, 500), strict=True):
        u = rng.normal(size=rows)
        scores = rng.gumbel(size=(rows, 3)) + np.column_stack([2 * u, -2 * u, np.full(rows, 1.0)])
        frame = pd.DataFrame(
            {"u": u, "v": rng.normal(size=rows), "y": np.array(list("klm"))[scores.argmax(axis=1)]}
        )
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    study = replace(MODEL, family="multinomial")
    found = conduct_study(replace(STUDY, study=study), InProcess(nodes(tmp_path)))[0].evaluation
    assert found.confusion is None
    assert "withholds its confusion matrix" in found.notes[0]
    here = fedshed.fit({site: pd.read_csv(tmp_path / f"{site}.csv") for site in SITES}, study).evaluation
    assert here.confusion is not None
    assert found.pooled["log_loss"].value == pytest.approx(here.pooled["log_loss"].value, rel=1e-6)
