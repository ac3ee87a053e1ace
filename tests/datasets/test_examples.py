"""`fedshed example`: tables that come with the package, and what their README says of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import fedshed
from calls import call
from embedded import example
from fedshed.datasets.examples import EFFECTS, EXAMPLES, write_example
from fedshed.tables import split


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_readme_names_every_column_its_source_and_licence(tmp_path, name):
    written = write_example(name, tmp_path / name)
    readme = (tmp_path / name / "README.md").read_text()
    tables = [path for path in written if path.suffix == ".csv"]
    assert set(written) == set((tmp_path / name).iterdir())
    assert sum(path.stat().st_size for path in tables) <= (100_000 if name == "claims" else 300_000)
    for path in tables:
        header = path.read_text().splitlines()[0].split(",")
        assert all(f"`{re.sub('_[0-9]_[0-9]', '_R_C', column)}`" in readme for column in header)
    assert "Source: " in readme
    assert ("simulated" in readme) == (name == "claims")
    assert "CC BY 4.0" in readme or name == "claims" or "facts, to which\nno licence" in readme


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_it_advises_runs_as_printed(tmp_path, monkeypatch, name):
    """Every command that it prints ends well, in the folder that it names."""
    monkeypatch.chdir(tmp_path)
    printed = call("example", name)
    assert printed.exit_code == 0
    steps = [line.strip() for line in printed.stdout.partition("Try next:\n")[2].splitlines()]
    assert steps.pop(0) == f"cd {name}"
    monkeypatch.chdir(tmp_path / name)
    for step in steps:
        command, *words = shlex.split(step)
        files = [sorted(map(str, Path().glob(word))) if "*" in word else [word] for word in words]
        done = call(*(word for part in files for word in part))
        assert command == "fedshed"
        assert done.exit_code == 0, done.stderr


def test_it_writes_twice_but_over_no_other_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("example", "claims", "here").exit_code == 0
    assert call("example", "claims", "here").exit_code == 0
    (tmp_path / "here/claims.csv").write_text("mine\n")
    refused = call("example", "claims", "here")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "here/claims.csv exists and has another content" in refused.stderr
    assert (tmp_path / "here/claims.csv").read_text() == "mine\n"
    unknown = call("example", "hospital")
    assert unknown.exit_code == 2
    assert "did you mean 'hospitals'?" in unknown.stderr


def test_the_hospitals_are_as_their_readme_says():
    tables = example("hospitals")
    assert {name: len(table) for name, table in tables.items()} == {"north": 60, "south": 190, "west": 319}
    shares = [round(100 * (table["malignant"] == "yes").mean()) for table in tables.values()]
    assert "({}, {} and {} percent)".format(*shares) in EXAMPLES["hospitals"].readme


def test_the_fitted_claims_are_near_the_model_they_were_simulated_from():
    """Each coefficient within four standard errors of the effect that the README states."""
    study = fedshed.Study(
        family="poisson", formula="claims ~ age + bonus + C(fuel) + C(brand)", exposure="years"
    )
    model = fedshed.fit(split(example("claims")["claims"], "region"), study)
    truth = {"age": "age", "bonus": "bonus", "fuel[petrol]": "petrol"}
    truth |= {f"brand[{brand}]": brand for brand in "BCD"}
    errors = dict(zip(model.inference.names, model.inference.std_err(), strict=True))
    for name, effect in truth.items():
        assert abs(model.coefficients[name] - EFFECTS[effect]) < 4 * errors[name], name
    start = EFFECTS["intercept"] - 45 * EFFECTS["age"] - 50 * EFFECTS["bonus"]
    assert abs(model.coefficients["intercept"] - start) < 4 * errors["intercept"] + 0.1
    assert np.isfinite(model.inference.std_err()).all()
