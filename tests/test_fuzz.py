"""Mutated messages and files: every border refuses them with an error of fedshed's own, or reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.fuzz import fuzz

from fedshed import ConfigError, DataError, Model
from fedshed.preparation.study import read_study, study_of


def test_no_mutated_message_or_file_raises_a_foreign_exception():
    lines = list(fuzz(1000))
    assert sum(line.cases for line in lines) >= 900
    assert {line.name: dict(line.foreign) for line in lines if line.foreign} == {}
    assert sum(line.refused for line in lines) > 300  # or the mutations do nothing


@pytest.mark.parametrize("text", [b'family = "lin\xe9ar"\n', b"\xff\xfe", b"family = 1\n", b""])
def test_a_study_that_is_no_text_is_refused_by_its_name(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"study.toml"):
        read_study(path)


def test_a_model_that_is_no_text_is_refused_by_its_name(tmp_path):
    path = tmp_path / "model.json"
    path.write_bytes(b'{"fedshed_model": "\xe9"}')
    with pytest.raises(ConfigError, match=r"model.json"):
        Model.load(path)


@pytest.mark.parametrize(
    "formula", ["y ~ (x + z ] ]w)**2", "y ~ scale()", "y ~ bs()", "y ~ x %in%", "y ~ **"]
)
def test_a_formula_that_cannot_be_read_is_refused(formula):
    from fedshed.preparation.formulas import formula_of

    with pytest.raises((ConfigError, DataError)):
        formula_of(study_of({"family": "linear", "formula": formula}))
