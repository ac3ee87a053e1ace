"""Each site's own estimate, and what they make together, against statsmodels on each site's rows."""

from __future__ import annotations

import csv
import io
import re
import warnings

import msgspec
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from typer.testing import CliRunner

import fedshed
from embedded import claims, example, hospitals, marriages
from fedshed import ConfigError, Model, Study
from fedshed._utils.errors import DisclosureError, ProtocolError
from fedshed.exchange import Stateless
from fedshed.exchange.guarded import Guarded
from fedshed.exchange.site import Site
from fedshed.fitting.parts import part_of
from fedshed.fitting.stages import Play
from fedshed.linalg.arrays import unpack
from fedshed.objectives.logistic import Logistic
from fedshed.preparation.plan import DesignPlan
from fedshed.privacy.audit import Audit, entries
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy
from fedshed.protocol.codec import codec_of, raw
from fedshed.solve.site_estimates import AskEstimate, SiteEstimate, SiteEstimates
from fedshed.solve.stages import ESTIMATES, NULL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from statsmodels.stats.meta_analysis import combine_effects

AFFAIRS = Study(family="logistic", target="affair", columns=("age", "yrs_married", "religious"))


def of_site(table, study, family, **more):
    X = sm.add_constant(table[list(study.columns)].astype(float), prepend=False, has_constant="add")
    return sm.GLM(table[study.target].astype(float), X, family=family, **more).fit(tol=1e-14, maxiter=100)


CASES = {
    "logistic": (marriages, AFFAIRS, sm.families.Binomial()),
    "linear": (
        marriages,
        Study(family="linear", target="rate_marriage", columns=("age", "religious"), standardize=True),
        sm.families.Gaussian(),
    ),
    "poisson": (
        claims,
        Study(family="poisson", target="claims", columns=("age", "bonus"), exposure="years"),
        sm.families.Poisson(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_site_estimates_what_statsmodels_does_from_its_rows_alone(case):
    make, study, family = CASES[case]
    tables = make()
    found = fedshed.meta_analysis(tables, study)
    assert set(found.sites) == set(map(str, tables))
    for site, table in tables.items():
        more = {"exposure": table[study.exposure].astype(float)} if study.exposure else {}
        them, us = of_site(table, study, family, **more), found.estimates[str(site)]
        np.testing.assert_allclose(us.estimate, them.params, rtol=1e-7, atol=1e-9)
        V = unpack(np.array(us.covariance), len(us.estimate))
        np.testing.assert_allclose(np.sqrt(np.diag(V)), them.bse, rtol=1e-7)


def test_the_combined_estimates_are_those_of_statsmodels():
    found = fedshed.meta_analysis(marriages(), AFFAIRS)
    for j, name in enumerate(found.coefficients):
        y = np.array([found.estimates[i].estimate[j] for i in found.sites])
        v = np.array([found.estimates[i].variances[j] for i in found.sites])
        with np.errstate(invalid="ignore"):  # its tau^2 may be negative, which only random effects use
            frame = combine_effects(y, v, method_re="dl", use_t=False).summary_frame()
        ours = found.combined(name, "fixed")
        np.testing.assert_allclose(
            [ours.estimate, ours.std_err], frame.loc["fixed effect", ["eff", "sd_eff"]].astype(float)
        )
        lines = found.lines(name)
        assert sum(line.weight for line in lines if line.kind == "site") == pytest.approx(1)
        np.testing.assert_allclose(lines[-1].estimate, found.inference.coefficients[j])


def test_sites_without_an_estimate_are_left_out_by_name_with_the_reason():
    tables = hospitals()
    study = Study(family="logistic", target="malignant", columns=("radius", "texture"))
    name = next(iter(tables))
    few = tables[name].iloc[:2]
    one_class = tables[name].assign(radius=np.where(tables[name]["malignant"] == "yes", 30.0, 10.0))
    same = tables[name].assign(texture=3.0)
    whole = fedshed.meta_analysis(tables, study)
    found = fedshed.meta_analysis({**tables, "few": few, "split": one_class, "same": same}, study)
    assert set(found.left_out) == {"few", "split", "same"}
    assert "few rows" in found.left_out["few"]
    assert "separated" in found.left_out["split"]
    assert "collinear" in found.left_out["same"]
    assert "Site 'split' is left out" in str(found)
    for name in found.coefficients:
        np.testing.assert_allclose(
            found.combined(name).estimate, whole.combined(name).estimate, rtol=1e-7, atol=1e-9
        )


def test_it_costs_one_exchange_of_the_estimate_and_its_covariance():
    tables, n = marriages(), 4
    plain = fedshed.fit(tables, AFFAIRS)
    model = fedshed.fit(tables, msgspec.structs.replace(AFFAIRS, site_estimates=True))
    assert model.coefficients == plain.coefficients
    assert model.run.exchanges == plain.run.exchanges + 1
    more = (model.run.uplink_bytes - plain.run.uplink_bytes) / len(tables)
    numbers = 8 * (n + n * (n + 1) / 2)
    assert numbers <= more <= numbers + 60


def test_sites_that_forget_and_files_keep_the_estimates_bit_for_bit(tmp_path):
    study = msgspec.structs.replace(AFFAIRS, site_estimates=True)
    tables = {str(k): v for k, v in list(marriages().items())[:2]}
    here, there = fedshed.fit(tables, study), fedshed.fit(tables, study, over=Stateless)
    assert here.estimates == there.estimates
    assert Model.load(here.save(tmp_path / "model.json")).meta().to_csv() == here.meta().to_csv()


def test_a_site_refuses_the_part_that_its_study_does_not_declare():
    stage = Play(DesignPlan(AFFAIRS, AFFAIRS.columns, {}), raw(NULL))
    with pytest.raises(ProtocolError, match="site_estimates"):
        part_of(ESTIMATES.number, stage, 4)
    declared = msgspec.structs.replace(AFFAIRS, site_estimates=True)
    assert (
        part_of(ESTIMATES.number, Play(DesignPlan(declared, AFFAIRS.columns, {}), raw(NULL)), 4) is ESTIMATES
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"protected": True}, "hides"),
        ({"l2": 0.1}, "l2"),
        ({"family": "multinomial"}, "several"),
    ],
)
def test_studies_that_cannot_be_combined_are_refused_before_anything_is_sent(fields, words):
    with pytest.raises(ConfigError, match=words):
        Study(**{"family": "logistic", "target": "y", "columns": ("x",), "site_estimates": True, **fields})


def test_a_study_that_does_not_ask_is_encoded_as_before():
    assert b"site_estimates" not in msgspec.json.encode(AFFAIRS)
    with pytest.raises(ConfigError, match="site_estimates"):
        fedshed.fit(hospitals(), Study(family="logistic", target="malignant", columns=("radius",))).meta()


def test_text_csv_and_plot_have_every_site(tmp_path):
    found = fedshed.meta_analysis(marriages(), AFFAIRS)
    for exp in (False, True):
        assert max(map(len, found.to_text(exp=exp).splitlines())) <= 80
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    sites = [row for row in rows if row["coefficient"] == "age" and row["kind"] == "site"]
    assert {row["name"] for row in sites} == set(found.sites)
    reml = next(row for row in rows if row["coefficient"] == "age" and row["kind"] == "reml")
    assert float(reml["estimate"]) == found.combined("age").estimate
    figure = found.plot("age", exp=True, path=tmp_path / "forest.svg")
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[: len(found.sites)] == list(found.sites)
    assert "all rows (one stage)" in labels
    assert (tmp_path / "forest.svg").stat().st_size > 1000
    assert len(found.plot().axes) == 3


@pytest.mark.parametrize("columns", [("radius", "texture"), ("smoothness", "compactness")])
@pytest.mark.parametrize("exp", [False, True])
def test_the_numbers_of_a_panel_have_the_same_decimals_and_stand_below_each_other(columns, exp):
    """`13.9`, `1.4e+02` and `97.10` stood in one column, each as wide as it was."""
    found = fedshed.meta_analysis(hospitals(), Study(family="logistic", target="malignant", columns=columns))
    for axes in found.plot(exp=exp).axes:
        lines = [text.get_text() for text in axes.texts if text.get_family() == ["monospace"]]
        forms = [re.sub(r"\d", "0", line.split("]")[0]) for line in lines]
        assert len(forms) >= 5
        assert len({len(form) for form in forms}) == 1
        assert len({tuple(re.findall(r"\.0+e?", form)) for form in forms}) == 1


def test_the_command_writes_table_and_figure(tmp_path, monkeypatch):
    from fedshed.cli import app

    paths = []
    for site, table in hospitals().items():
        table.to_csv(tmp_path / f"{site}.csv", index=False)
        paths.append(str(tmp_path / f"{site}.csv"))
    said = ["--target", "malignant", "--columns", "radius,texture", "--out", str(tmp_path / "m")]
    done = CliRunner().invoke(app, ["meta", *paths, *said])
    assert done.exit_code == 0, done.output
    assert "Meta-analysis of malignant" in done.output
    assert len(pd.read_csv(tmp_path / "m" / "meta.csv")) == 3 * (3 + 3)
    assert (tmp_path / "m" / "forest.svg").exists()
    one = CliRunner().invoke(app, ["meta", paths[0], *said])
    assert one.exit_code == 2
    assert "at least two sites" in one.output
    study = Study(family="logistic", target="malignant", columns=("radius",), site_estimates=True)
    path = str(fedshed.fit(hospitals(), study).save(tmp_path / "model.json"))
    monkeypatch.setattr("fedshed._utils.canvas.save", lambda *_: [])
    again = CliRunner().invoke(app, ["meta", path, "--method", "dl", "--json", "--out", str(tmp_path / "m")])
    assert again.exit_code == 0, again.output
    assert set(msgspec.json.decode(again.stdout)["combined"]) == {"radius", "intercept"}


def test_a_guarded_site_sends_its_estimate_once_it_is_on_record(tmp_path):
    """What leaves is counted against its budget of curvature, and no point on the way is told."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(300, 2)), np.ones(300)])
    model = Logistic(X, np.where(rng.random(300) < 0.5, 1.0, -1.0))
    conversation = SiteEstimates()
    site = Site("a", model, conversation)
    gate = Gate(Policy(), Audit(tmp_path / "audit"), "study")
    codec = codec_of(conversation, 3)
    request = codec.encode_request(codec.encode_common(b"run", 1, [AskEstimate(np.zeros(3), False)]), None)
    (answer,) = codec.decode_reply(Guarded(site, gate).handle(request)).parts
    (plain,) = codec.decode_reply(Site("a", model, conversation).handle(request)).parts
    np.testing.assert_array_equal(answer.estimate, plain.estimate)
    (entry,) = entries(tmp_path / "audit")
    assert entry.curvature == 6
    assert "AskEstimate -> SiteEstimate" in entry.what
    separated = Logistic(X, np.sign(X[:, 0]))
    (answer,) = codec.decode_reply(Guarded(Site("c", separated, conversation), gate).handle(request)).parts
    assert answer.why in ("withheld", "separated")
    few = Guarded(Site("b", Logistic(X[:8], model.y[:8]), conversation), gate)
    with pytest.raises(DisclosureError, match="min_rows"):
        few.handle(request)


@pytest.mark.parametrize(
    ("estimate", "covariance", "words"),
    [
        (np.zeros(2), np.array([1.0, 2.0, 1.0]), "negative"),
        (np.zeros(2), np.array([0.0, 0.0, 1.0]), "variance"),
        (np.array([np.nan, 0.0]), np.array([1.0, 0.0, 1.0]), "finite"),
        (np.zeros(2), np.ones(2), "entries"),
    ],
)
def test_an_estimate_that_none_can_have_is_refused(estimate, covariance, words):
    with pytest.raises(ValueError, match=words):
        SiteEstimate(estimate, covariance)


@pytest.mark.parametrize(
    "study",
    [
        Study(family="cox", time="time", event="death", columns=("age", "sex")),
        Study(family="ordinal", target="rate_marriage", columns=("age", "religious"), standardize=True),
    ],
    ids=lambda study: study.family,
)
def test_a_site_estimates_what_a_fit_to_its_rows_alone_does(study):
    """Each site is a stratum of Cox's model; the thresholds of ordered classes have covariances too."""
    tables = example("survival") if study.family == "cox" else marriages()
    tables = {site: table for site, table in tables.items() if site not in ("1", "4")}
    found = fedshed.meta_analysis(tables, study)
    assert set(found.sites) == set(tables)
    for site, table in tables.items():
        alone = fedshed.fit({site: table}, study).inference
        np.testing.assert_allclose(found.estimates[site].estimate, alone.coef, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(np.sqrt(found.estimates[site].variances), alone.std_err(), rtol=1e-6)
