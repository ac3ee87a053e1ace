"""Survival of patients with advanced lung cancer in three hospitals, from a small file of the package."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LUNG = Path(__file__).with_name("lung.csv")
LAST_INSTITUTION = {"north": 3, "south": 12, "west": 33}  # of each hospital; one patient has none: west
WORDS = ("sex",)


def lung_tables() -> dict[str, Sequence[Sequence[Any]]]:
    """The rows of each hospital, the header first; None is a missing value."""
    with LUNG.open(newline="") as file:
        (_, *header), *rows = csv.reader(file)
    tables: dict[str, list[Sequence[Any]]] = {f"{name}.csv": [header] for name in LAST_INSTITUTION}
    for institution, *values in rows:
        number = int(institution or max(LAST_INSTITUTION.values()))
        hospital = next(name for name, last in LAST_INSTITUTION.items() if number <= last)
        tables[f"{hospital}.csv"].append(
            [_value(name, text) for name, text in zip(header, values, strict=True)]
        )
    return {**tables}


def _value(name: str, text: str) -> str | int | None:
    """A cell of the file: a word, a whole number, or nothing."""
    if not text:
        return None
    return text if name in WORDS else int(text)
