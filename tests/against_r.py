"""Values that R gave for real tables, and the tables: tests/oracles/statistics.R made both."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from fedshed.tables import split

FOLDER = Path(__file__).with_name("oracles")
R = json.loads((FOLDER / "statistics.json").read_text(encoding="utf-8"))


def rows_of(name):
    """A table in one piece."""
    return pd.read_csv(FOLDER / f"{name}.csv")


def tables_of(name, site, **changes):
    """A table divided among sites by a column, which may be computed."""
    return split(rows_of(name).assign(**changes), site)
