"""The lung cancer data of the package."""

from __future__ import annotations

import numpy as np

from embedded import example
from fedshed.datasets.examples import EXAMPLES


def test_the_lung_cancer_patients_are_those_of_the_published_table():
    """Row by row as lifelines has them; the hospitals are as their README says."""
    from lifelines.datasets import load_lung

    tables, published = example("survival"), load_lung()
    assert {name: len(table) for name, table in tables.items()} == {"north": 60, "south": 80, "west": 88}
    published["hospital"] = np.digitize(published["inst"].fillna(33), [3.5, 12.5])
    theirs = ["time", "status", "age", "ph.ecog", "ph.karno", "meal.cal", "wt.loss"]
    ours = ["time", "death", "age", "ecog", "karnofsky", "calories", "loss"]
    for k, table in enumerate(tables.values()):
        rows = published[published["hospital"] == k]
        np.testing.assert_array_equal(table[ours].astype(float), rows[theirs].astype(float))
        assert (table["sex"] == rows["sex"].map({1: "male", 2: "female"}).to_numpy()).all()
    died = sum(int(table["death"].sum()) for table in tables.values())
    assert f"{died} of them died" in EXAMPLES["survival"].readme
