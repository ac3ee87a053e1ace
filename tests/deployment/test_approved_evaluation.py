"""An approved study with rows held out keeps its evaluation, whatever the recalibrations take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedshed.deployment.approval import approve_study
from fedshed.deployment.config import StudyFile
from fedshed.deployment.decision import decision
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess
from fedshed.preparation import Study
from fedshed.preparation.holdout import held_out
from fedshed.privacy import gate
from fedshed.privacy.audit import entries
from fedshed.protocol.limits import MOST_LINES
from fedshed.tables.frames import Frame

SITES = ("a", "b", "c")
MODEL = Study(family="logistic", target="y", columns=("u", "v"), holdout=0.4, l2=1.0)
FILE = StudyFile(MODEL, SITES, algorithm="newton")
POLICY = "[disclosure]\nmax_curvature = 10\nmax_numbers = 50\n"


@pytest.fixture
def frames(tmp_path: Path) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(2)
    made = {}
    for site, rows in zip(SITES, (200, 300, 500), strict=True):
        (tmp_path / site).mkdir()
        X = rng.normal(size=(rows, 2))
        y = (X @ [1.0, -0.7] + rng.logistic(size=rows) > 1.0).astype(int)
        made[site] = pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "y": y})
        made[site].to_csv(tmp_path / site / "table.csv", index=False)
        text = f'name = "{site}"\n[table]\ncsv = "table.csv"\n{POLICY}'
        (tmp_path / site / "site.toml").write_text(text)
    return made


def approved(folder: Path, file: StudyFile) -> dict[str, Node]:
    """Nodes of sites whose stewards have approved the study."""
    for site in SITES:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words())
    return {site: Node.at(folder / site / "site.toml") for site in SITES}


def lines_asked(folder: Path, site: str) -> int:
    said = entries(folder / site / "audit.jsonl")
    return len({entry.request for entry in said if entry.kind == "Recalibrate" and not entry.rule})


def test_an_approved_study_has_its_evaluation_with_both_recalibrations(tmp_path, frames) -> None:
    """A strong penalty shrinks the slope, so that each recalibration takes several steps of Newton's."""
    model, _ = conduct_study(FILE, InProcess(approved(tmp_path, FILE)))
    found = model.evaluation
    assert not any("Refused" in note for note in found.notes)
    held = [frame[held_out(MODEL, Frame(frame), site)] for site, frame in frames.items()]
    y = np.concatenate([frame["y"] for frame in held])
    p = np.concatenate([model.predict_proba(frame)[:, 1] for frame in held])
    s = np.log(p / (1 - p))
    line, level = found.pooled["calibration_slope"].value, found.pooled["calibration_in_the_large"].value
    a = found.pooled["calibration_intercept"].value
    for z, x in ((a + line * s, s), (level + s, 1.0)):  # the scores of both models are 0
        assert abs(np.mean((y - 1 / (1 + np.exp(-z))) * x)) < 1e-7
    assert 8 < lines_asked(tmp_path, "a") <= MOST_LINES


def test_the_line_is_kept_if_the_level_is_refused(tmp_path, frames, monkeypatch) -> None:
    """A limit of 8 requests is enough for the line and stops the level on its way."""
    monkeypatch.setitem(gate.DIFFERENT, "Recalibrate", 8)
    found = conduct_study(FILE, InProcess(approved(tmp_path, FILE)))[0].evaluation
    assert lines_asked(tmp_path, "a") == 8
    assert found.pooled["calibration_in_the_large"].value is None
    assert found.pooled["calibration_slope"].value > 1.5
    assert found.pooled["auc"].value > 0.5


def test_a_steward_is_shown_as_many_sums_as_both_recalibrations_may_take(tmp_path, frames) -> None:
    shown = decision(tmp_path / "a" / "site.toml", FILE)
    (item,) = (item for item in shown.items if item.what == "sums that recalibrate the model")
    assert item.numbers == 5 * (2 * 8 - 1)
