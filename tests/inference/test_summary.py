"""The summary as text and as a DataFrame."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from embedded import embedded
from fedshed import Federation
from fedshed.inference import FewSitesWarning, Summary
from fedshed.preparation.counts import RowCount
from fedshed.solve.certificate import Certificate
from inference_problems import SITES, fitted, made


@pytest.fixture(scope="module")
def cancer():
    return fitted(embedded("hospitals"), "logistic", 1e-3)[2]


@pytest.fixture(scope="module")
def visits():
    """Counts of 31 sites that vary more than a Poisson's."""
    return fitted(embedded("visits"), "poisson")[2]


def between(text, start, end):
    lines = text.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith(start))
    last = next(k for k in range(first + 1, len(lines)) if lines[k].startswith(end))
    return lines[first + 1 : last]


def test_the_frame_holds_the_coefficients_by_name(cancer):
    frame = Summary(cancer).to_frame()
    assert list(frame.columns) == ["coef", "std err", "z", "P>|z|", "[0.025", "0.975]"]
    assert tuple(frame.index) == cancer.names
    np.testing.assert_array_equal(frame["std err"], cancer.std_err())
    np.testing.assert_allclose(frame["z"] * frame["std err"], frame["coef"])
    assert list(Summary(cancer, level=0.9).to_frame().columns[4:]) == ["[0.05", "0.95]"]


def test_the_text_shows_the_same_table(cancer):
    rows = between(str(Summary(cancer)), "---", "===")
    shown = np.array([line[-66:].split() for line in rows], dtype=float)
    np.testing.assert_allclose(shown, cancer.table(), atol=6e-4, rtol=1e-3)
    assert [line[:-66].strip() for line in rows] == list(cancer.names)


def test_the_text_shows_fit_run_sites_test_and_certificate(cancer):
    summary = Summary(cancer, converged=False, exchanges=17, uplink_bytes=12345, downlink_bytes=678)
    text = " ".join(str(summary).split())
    for expected in (
        "Family: Binomial", "Link: logit", "No. sites: 3", "No. rows: 569",
        f"Deviance: {cancer.deviance:.8g}",
        f"AIC: {cancer.aic:.8g}", "l2: 0.001 (1 free)", "Converged: NO", "Exchanges: 17", "12,345, 678",
        f"Pseudo R2 (McFadden): {cancer.mcfadden:.5g}", "Covariance: model", "south 190 ",
        f"chi2({cancer.heterogeneity.df}) = {cancer.heterogeneity.statistic:.3f}",
        "Certificate: gradient norm",
        "[1] The ridge shrinks",
    ):  # fmt: skip
        assert expected in text
    assert max(map(len, str(summary).splitlines())) <= 80


def test_robust_errors_are_named_and_warned_about(cancer):
    with pytest.warns(FewSitesWarning, match="3 sites are few"):
        text = str(Summary(cancer, robust=True))
    assert "robust, by site" in text
    assert "No robust error is given: the effective number of sites" in " ".join(text.split())
    with pytest.warns(FewSitesWarning):
        frame = Summary(cancer, robust=True).to_frame()
    assert frame["std err"].isna().all()


def test_many_sites_are_cut_to_those_that_differ_most(visits):
    text = str(Summary(visits))
    shown = {line.split()[0] for line in between(text, "site ", "(")}
    assert "(11 more sites; shown are those that differ most)" in text
    ranked = sorted(visits.sites, key=lambda i: visits.sites[i].score.p_value)
    assert shown == set(ranked[:20])


def test_notes_tell_what_to_doubt(visits):
    """Counts that vary more than a Poisson's, sites too small for the score test; and not else."""
    text = " ".join(str(Summary(visits, notes=("first of all",))).split())
    assert (
        f"[1] first of all [2] Pearson chi2 / Df residuals is {visits.pearson / visits.df_resid:.3g}" in text
    )
    small = sum(site.rows < 5 * site.score.df for site in visits.sites.values())
    assert f"[3] The score test is asymptotic: {small} sites have under 5 rows" in text
    X, y, *_ = made("poisson")
    calm = str(Summary(fitted(Federation.from_arrays(X, y, np.arange(300) % 3), "poisson")[2]))
    assert "[1]" not in calm
    assert "ridge" not in calm


@pytest.mark.parametrize(
    ("loss", "named"),
    [("least-squares", "R-squared"), ("gamma", "Pseudo R2 (deviance)"), ("poisson", "Pseudo R2 (McFadden)")],
)
def test_each_family_names_its_r_squared_and_dispersion(loss, named):
    X, y, *_ = made(loss)
    ours = fitted(Federation.from_arrays(X, y, SITES), loss)[2]
    value = ours.mcfadden if loss == "poisson" else ours.deviance_explained
    text = " ".join(str(Summary(ours)).split())
    assert f" {named}: {value:.5g}" in text
    assert f"Dispersion: {ours.dispersion:.5g}" in text


def test_long_names_and_missing_errors_are_shown(cancer):
    long = cancer.transformed(np.eye(6)[:2], ["x" * 40, "y"])
    lines = str(Summary(long)).splitlines()
    assert max(map(len, lines)) <= 80
    assert "x" * 40 in lines
    bare = replace(cancer, model_covariance=None, notes=("no standard errors: singular",), null_deviance=None)
    text = str(Summary(bare))
    assert "nan" not in text
    assert "n/a" in text
    assert "[1] no standard errors: singular" in text


LONG = "time since the first diagnosis in months[more than a year and a half]"


@pytest.mark.parametrize("length", [*range(1, 40), len(LONG)])
def test_no_line_is_wider_than_a_terminal_and_no_name_is_lost(cancer, length):
    """A name of 15 letters made every line 81 wide, so that all of them wrapped."""
    name = LONG[:length].strip()
    names, values = (name, *cancer.names[1:]), (-144.6742, *cancer.coefficients[1:])
    lines = str(Summary(replace(cancer, names=names, coefficients=values))).splitlines()
    assert max(map(len, lines)) <= 80
    at = next(k for k, line in enumerate(lines) if line.startswith(name))
    assert "-144.6742" in f"{lines[at]} {lines[at + 1]}"


def test_sites_with_weights_dropped_rows_and_long_names_fit_a_terminal(cancer):
    """With weights and dropped rows the table of sites was 90 wide."""
    sites = {f"university hospital {name}": site for name, site in cancer.sites.items()}
    counts = {name: RowCount(site.rows, 7) for name, site in sites.items()}
    text = str(Summary(replace(cancer, sites=sites, weight_type="frequency"), counts=counts))
    assert max(map(len, text.splitlines())) <= 80
    assert "dropped" in text
    for name in sites:
        assert name in text


def test_a_certificate_with_bound_and_estimate_fits_a_terminal(cancer):
    text = str(Summary(replace(cancer, certificate=Certificate(8.91e-13, 4.62e-20, 4.62e-24))))
    assert max(map(len, text.splitlines())) <= 80
    assert "(estimate)" in text


def test_a_title_that_is_broken_has_lines_of_similar_length(cancer):
    """`Modelled: the probability that malignant is yes, not any other` had `value` below it."""
    words = "Modelled: the probability that malignant_tumour is benign, not any other value"
    for about in (words, words.replace("_tumour", "_tumour_of_the_breast"), "x" * 90):
        lines = [
            line.strip() for line in str(Summary(cancer, about=(about,))).split("=" * 78)[0].splitlines()[1:]
        ]
        assert "".join(lines).replace(" ", "") == about.replace(" ", "")
        assert len(lines) == 1 + (len(about) > 78)
        if " " in about:
            assert min(map(len, lines)) > 0.45 * max(map(len, lines))
