"""Survival curves of a deployed study: on the grid that it declares, and on no other."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from embedded import example
from fedshed import ConfigError, ProtocolError, Study
from fedshed.deployment.approval import approve_study
from fedshed.deployment.config import StudyFile
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.deployment.review import review
from fedshed.exchange import InProcess
from fedshed.fitting.protected_study import fit_protected
from fedshed.privacy.audit import entries
from fedshed.solve import stages
from fedshed.solve.goal import Goal

SITES = ("north", "south", "west")
POLICY = "[disclosure]\nmax_curvature = 10\nmax_numbers = 50\n"
GRID = tuple(range(150, 901, 150))
STUDY = Study(
    family="cox", time="time", event="death", columns=("age", "sex"), grid=GRID, by="sex"
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for site, table in example("survival").items():
        (tmp_path / site).mkdir()
        table.to_csv(tmp_path / site / "table.csv", index=False)
        text = f'name = "{site}"\n[table]\ncsv = "table.csv"\n{POLICY}'
        (tmp_path / site / "site.toml").write_text(text)
    return tmp_path


def nodes(folder, file):
    """Nodes of sites that have approved a study, under the usual policy but for its ceilings."""
    for site in SITES:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words())
    return {site: Node.at(folder / site / "site.toml") for site in SITES}


def test_a_deployed_study_has_the_curves_that_it_declares(folder):
    file, found = StudyFile(STUDY, SITES), []
    model, _ = conduct_study(file, InProcess(nodes(folder, file)), save_curves=found.append)
    assert model.converged
    (curves,) = found
    here = fedshed.survival(example("survival"), time="time", event="death", by="sex", grid=GRID, least=5)
    assert curves.to_csv() == here.to_csv()
    assert curves.logrank().p == here.logrank().p
    exact = fedshed.survival(example("survival"), time="time", event="death", by="sex")
    for sex, curve in curves.curves.items():
        place = np.searchsorted(exact[sex].times, curve.times, side="right") - 1
        true = exact[sex].survival[place]
        assert (curve.lowest <= true + 1e-12).all()
        assert (true <= curve.highest + 1e-12).all()
    told = [one for one in entries(folder / "north/audit.jsonl") if "AskCounts" in one.what]
    assert [one.what for one in told] == ["AskCounts -> LifeCounts"]


def test_a_site_counts_at_no_other_times_than_it_approved(folder, monkeypatch, caplog):
    file = StudyFile(STUDY, SITES)
    plain = stages.survival_counts

    def other(sites, problem, times, *rest):
        return plain(sites, problem, times + 1.0, *rest)

    monkeypatch.setattr("fedshed.fitting.curves.survival_counts", other)
    with pytest.raises(ProtocolError, match="not one of the approved study"):
        conduct_study(file, InProcess(nodes(folder, file)))
    assert "counts at other times" in caplog.text
    assert not any("LifeCounts" in one.what for one in entries(folder / "north/audit.jsonl"))


@pytest.mark.parametrize("by", [None, "sex"])
def test_a_site_counts_no_other_groups_than_it_approved(folder, monkeypatch, caplog, by):
    file = StudyFile(replace(STUDY, by=by), SITES)
    plain = stages.survival_counts

    def other(sites, problem, times, columns, *rest):
        return plain(sites, problem, times, () if columns else (1,), *rest)

    monkeypatch.setattr("fedshed.fitting.curves.survival_counts", other)
    with pytest.raises(ProtocolError, match="not one of the approved study"):
        conduct_study(file, InProcess(nodes(folder, file)))
    assert "counts other groups of rows" in caplog.text
    assert not any("LifeCounts" in one.what for one in entries(folder / "north/audit.jsonl"))


def test_a_study_that_declares_no_curves_gets_none(folder, monkeypatch, caplog):
    file = StudyFile(Study(family="cox", time="time", event="death", columns=("age", "sex")), SITES)
    plain = stages.survival_counts

    def asked(plan, problem, sites, ready, *rest):
        return plain(sites, problem, np.array([300.0]), (), None, 0)

    monkeypatch.setattr("fedshed.fitting.conduct.study_curves", asked)
    with pytest.raises(ProtocolError, match="not one of the approved study"):
        conduct_study(file, InProcess(nodes(folder, file)))
    assert "does not ask for survival curves" in caplog.text


def test_a_protected_study_has_the_same_curves_from_sums_alone():
    study = replace(STUDY, protected=True, levels={"sex": ("female", "male")})
    curves = fit_protected(example("survival"), study, Goal(1e-6, 50)).curves
    here = fedshed.survival(example("survival"), time="time", event="death", by="sex", grid=GRID)
    assert curves.to_csv() == here.to_csv()
    assert len(curves.sites) == 1
    assert "at 3 sites (sums only)" in curves.summary()


def test_the_review_of_a_study_shows_the_counts(folder):
    shown = review(folder / "north/site.toml", StudyFile(STUDY, SITES))
    assert {"events (LifeCounts)": 2 * len(GRID), "beyond (LifeCounts)": 2}.items() <= {
        item.what: item.numbers for item in shown.items
    }.items()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": ()}, "by is the category of survival curves"),
        ({"grid": (2.0, 1.0)}, "must increase"),
        ({"grid": (-1.0, 1.0)}, "none of them negative"),
        ({"standardize": True}, "cannot have standardize"),
        ({"family": "logistic", "target": "death", "time": None, "event": None}, "grid is for survival"),
    ],
)
def test_a_study_with_impossible_curves_is_refused(changes, words):
    usual = {"family": "cox", "time": "time", "event": "death", "grid": GRID, "by": "sex"}
    with pytest.raises(ConfigError, match=words):
        Study(**(usual | changes))


def test_curves_by_what_is_no_category_are_refused(folder):
    file = StudyFile(
        Study(family="cox", time="time", event="death", columns=("age",), grid=GRID, by="age"), SITES
    )
    with pytest.raises(ConfigError, match="a category of the model"):
        conduct_study(file, InProcess(nodes(folder, file)))
    with pytest.raises(ConfigError, match="grid applies to deployed studies only"):
        fedshed.fit(example("survival"), STUDY)
