"""Protected fits in one process: real masks, every site's replay, and the model of pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import fedshed
from fedshed._utils.errors import ConfigError
from fedshed.algorithms import build
from fedshed.cli import app
from fedshed.inference import FewSitesWarning
from fedshed.solve.site_scores import SiteScores

ESTIMATORS = {
    "linear": fedshed.FederatedLinearRegression,
    "logistic": fedshed.FederatedLogisticRegression,
    "multinomial": fedshed.FederatedLogisticRegression,
    "poisson": fedshed.FederatedPoissonRegressor,
    "gamma": fedshed.FederatedGammaRegressor,
}


def rows(family, seed=0):
    rng = np.random.default_rng(seed)
    X, sites = rng.normal(size=(90, 3)) * [1.0, 1e4, 1e-3], np.repeat(["north", "south", "west"], 30)
    z = X @ [0.5, -0.5e-4, 0.5e3]
    y = {
        "linear": z + rng.normal(size=90),
        "logistic": (z + rng.logistic(size=90) > 0).astype(int),
        "multinomial": rng.integers(0, 3, size=90),
        "poisson": rng.poisson(np.exp(z)),
        "gamma": rng.gamma(2.0, np.exp(z) / 2.0),
    }[family]
    return X, y, sites


@pytest.mark.parametrize("family", ESTIMATORS)
def test_a_protected_estimator_is_the_plain_one(family):
    X, y, sites = rows(family)
    plain = ESTIMATORS[family](l2=1e-3, algorithm="newton").fit(X, y, sites=sites)
    masked = ESTIMATORS[family](l2=1e-3, protected=True).fit(X, y, sites=sites)
    errors = np.sqrt(np.diag(plain.inference_.covariance())).ravel()
    far = np.array(masked.inference_.coefficients) - np.array(plain.inference_.coefficients)
    assert np.abs(far / errors).max() < 1e-10
    assert masked.inference_.heterogeneity.df == plain.inference_.heterogeneity.df
    assert masked.inference_.site_count == 3


def test_few_sites_do_not_add_up_their_squared_scores(monkeypatch):
    """Scores of three sites that sum to 0 follow from the sum of their squares, but for one angle."""
    asked, whole = [], SiteScores.respond

    def respond(self, agent, cache, part, own_part):
        asked.append(part.inverse)
        return whole(self, agent, cache, part, own_part)

    monkeypatch.setattr(SiteScores, "respond", respond)
    X, y, sites = rows("logistic")
    model = fedshed.FederatedLogisticRegression(protected=True).fit(X, y, sites=sites)
    assert asked == [None] * 3
    assert model.inference_.heterogeneity.p_value is not None
    with pytest.warns(FewSitesWarning):
        said = " ".join(str(model.summary(robust=True)).split())
    assert "No robust error is given: the effective number of sites" in said
    asked.clear()
    fedshed.FederatedLogisticRegression(protected=True).fit(X, y, sites=np.arange(90) % 6)
    assert len(asked) == 6
    assert all(inverse is not None for inverse in asked)


def test_a_protected_estimator_needs_three_sites_and_a_summable_algorithm(tmp_path):
    X, y, _ = rows("logistic")
    two = np.repeat(["north", "south"], 45)
    with pytest.raises(ConfigError, match="at least 3 sites"):
        fedshed.FederatedLogisticRegression(protected=True).fit(X, y, sites=two)
    three = np.repeat(["north", "south", "west"], 30)
    with pytest.raises(ConfigError, match="protected mode allows"):
        fedshed.FederatedLogisticRegression(protected=True, algorithm="fib-shed").fit(X, y, sites=three)
    model = fedshed.FederatedLogisticRegression(protected=True).fit(X, y, sites=three)
    assert fedshed.estimators.load(model.save(tmp_path / "model.json")).protected


def tables():
    X, y, sites = rows("logistic")
    return {
        site: {
            "u": X[sites == site, 0],
            "v": X[sites == site, 1],
            "ill": np.where(y, "yes", "no")[sites == site],
        }
        for site in ("north", "south", "west")
    }


STUDY = fedshed.Study(
    family="logistic", target="ill", columns=("u", "v"), classes=("no", "yes"), protected=True
)


def test_a_protected_fit_counts_the_bytes_of_masks_and_says_what_is_absent():
    model = fedshed.fit(tables(), STUDY, errors="HC1")
    plain = fedshed.fit(tables(), replace(STUDY, protected=False), algorithm="newton", errors="HC1")
    assert model.run.uplink_bytes > 2 * plain.run.uplink_bytes
    assert "no tables of single sites" in " ".join(str(model.summary()).split())
    for robust in (False, "HC1"):
        ours, theirs = (np.array(one.summary(robust=robust).table) for one in (model, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [("fib-shed", "protected mode allows"), (replace(build("newton"), precision=fedshed.Bits(8)), "Exact")],
)
def test_an_algorithm_that_cannot_be_played_is_refused_before_anything_is_sent(algorithm, said, monkeypatch):
    monkeypatch.setattr("fedshed.fitting.conduct.negotiate", lambda *_: pytest.fail("something was sent"))
    with pytest.raises(ConfigError, match=said):
        fedshed.fit(tables(), STUDY, algorithm=algorithm)


def test_what_a_protected_fit_cannot_have_is_said_before_it_begins():
    with pytest.raises(ConfigError, match="no budget"):
        fedshed.fit(tables(), STUDY, budget=3)
    with pytest.raises(ConfigError, match="must name its columns"):
        fedshed.fit(tables(), replace(STUDY, columns=None))


def test_the_command_takes_its_lists_from_the_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for site, table in tables().items():
        lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
        (tmp_path / f"{site}.csv").write_text("\n".join(lines))
    files = [f"{site}.csv" for site in tables()]
    done = CliRunner().invoke(app, ["fit", *files, "--target", "ill", "--protected", "--no-report"])
    assert done.exit_code == 0, done.output
    assert "Protected: only sums over all sites left them" in done.output
