"""Small tables to begin with, which come with the package: `fedshed example NAME` writes them.

Nothing is downloaded.  Real rows are those inside scikit-learn, or in a small file of this package; simulated
ones say that they are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import write_atomically
from fedshed._utils.names import closest
from fedshed.datasets.lung import lung_tables

Rows: TypeAlias = Sequence[Sequence[Any]]


class Example(Struct, frozen=True):
    """Tables for a first fit, and what a reader should know of them."""

    about: str  # one line
    tables: Callable[[], dict[str, Rows]]  # the rows of each file, the header first
    commands: tuple[str, ...]  # what to type next, in the folder that holds the tables
    readme: str


def write_example(name: str, folder: str | Path) -> list[Path]:
    """Write the tables of an example and a README.md that explains them into a folder."""
    if name not in EXAMPLES:
        raise ConfigError(f"unknown example {name!r}{closest(name, EXAMPLES)}")
    example, folder = EXAMPLES[name], Path(folder)
    commands = "\n".join(f"    {command}" for command in example.commands)
    contents = {"README.md": f"# {example.about}\n\n{example.readme}\n\nTry:\n\n{commands}\n".encode()}
    contents |= {file: csv_text(rows).encode() for file, rows in example.tables().items()}
    for file, data in contents.items():
        if (folder / file).exists() and (folder / file).read_bytes() != data:
            raise ConfigError(f"{folder / file} exists and has another content; name another folder")
    return [write_atomically(folder / file, data, private=False) for file, data in contents.items()]


def example_tables(name: str) -> dict[str, dict[str, list[Any]]]:
    """The tables of an example that comes with the package, as `fedshed.fit` takes them.

    `fedshed example NAME` writes the same tables as CSV files, with a page that explains their columns.

    Parameters
    ----------
    name : str
        "hospitals", "survival", "digits" or "claims"; the last is one table with a column `region`.

    Returns
    -------
    dict
        The columns of each table, by the name of its file; None is a missing value.

    Raises
    ------
    ConfigError
        If there is no such example.

    Examples
    --------
    >>> import fedshed
    >>> tables = fedshed.datasets.example_tables("hospitals")
    >>> {hospital: len(table["malignant"]) for hospital, table in tables.items()}
    {'north': 60, 'south': 190, 'west': 319}
    """
    if name not in EXAMPLES:
        raise ConfigError(f"unknown example {name!r}{closest(name, EXAMPLES)}")
    found = {}
    for file, (header, *rows) in EXAMPLES[name].tables().items():
        columns = zip(*rows, strict=True)
        found[file.removesuffix(".csv")] = dict(zip(header, map(list, columns), strict=True))
    return found


def csv_text(rows: Rows) -> str:
    """Rows as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


# --- hospitals -----------------------------------------------------------------------------------

TARGET = "malignant"
MEASURED = ("radius", "texture", "smoothness", "compactness", "symmetry")
HOSPITALS = {"north": 60, "south": 190, "west": 319}


def tumours() -> Rows:
    """Scikit-learn's breast-cancer table: mean measurements of the cell nuclei, and the diagnosis."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    names = data.feature_names.tolist()
    columns = [names.index(f"mean {name}") for name in MEASURED]
    answers = ("yes", "no")  # scikit-learn codes malignant as 0
    rows = [
        [*map(float, row), answers[kind]]
        for row, kind in zip(data.data[:, columns], data.target, strict=True)
    ]
    return [[*MEASURED, TARGET], *rows]


def _hospitals() -> dict[str, Rows]:
    """The rows in their order, which is not random: the hospitals differ in size and in their patients."""
    header, *rows = tumours()
    ends = np.cumsum(list(HOSPITALS.values()))
    return {
        f"{name}.csv": [header, *rows[end - size : end]]
        for (name, size), end in zip(HOSPITALS.items(), ends.tolist(), strict=True)
    }


# --- claims --------------------------------------------------------------------------------------

POLICIES = 2500
REGIONS = ("coast", "hills", "lakes", "north", "plain", "ports", "rhine", "south", "towns", "woods")
FUELS = ("diesel", "petrol")
BRANDS = ("A", "B", "C", "D")
# effects on the logarithm of the claims per year, as the README of the example states them
EFFECTS = {"intercept": -1.2, "age": -0.012, "bonus": 0.015, "petrol": 0.1, "B": -0.15, "C": 0.0, "D": 0.25}


def _claims() -> dict[str, Rows]:
    """Motor policies drawn from a Poisson model; regions differ in size and, a little, in their claims.

    Only uniform numbers are drawn, so that the rows do not depend on how NumPy draws other ones.
    """
    from scipy.stats import poisson

    u = np.random.default_rng(2022).random((POLICIES, 7))
    region = (len(REGIONS) * u[:, 0] ** 1.8).astype(int)
    years = np.round(0.05 + 0.95 * np.minimum(1.0, 1.6 * u[:, 1]), 2)
    age = (18 + 67 * u[:, 2]).astype(int)
    bonus = (50 + 100 * u[:, 3] ** 3).astype(int)
    fuel, brand = (len(FUELS) * u[:, 4]).astype(int), (len(BRANDS) * u[:, 5]).astype(int)
    of_brand = np.array([EFFECTS.get(name, 0.0) for name in BRANDS])[brand]
    of_region = 0.1 * np.cos(np.arange(len(REGIONS)))[region]
    log_rate = EFFECTS["intercept"] + EFFECTS["age"] * (age - 45) + EFFECTS["bonus"] * (bonus - 50)
    log_rate = log_rate + EFFECTS["petrol"] * fuel + of_brand + of_region
    claims = poisson.ppf(u[:, 6], years * np.exp(log_rate)).astype(int)
    header = ["region", "years", "age", "bonus", "fuel", "brand", "claims"]
    columns = (
        [REGIONS[k] for k in region], years.tolist(), age.tolist(), bonus.tolist(),
        [FUELS[k] for k in fuel], [BRANDS[k] for k in brand], claims.tolist(),
    )  # fmt: skip
    return {"claims.csv": [header, *map(list, zip(*columns, strict=True))]}


# --- digits --------------------------------------------------------------------------------------

SCHOOLS = (97, 200, 300, 400, 800)


def _digits() -> dict[str, Rows]:
    """Handwritten digits at five sites, in the order of the rows."""
    from sklearn.datasets import load_digits

    data = load_digits()
    header = [*data.feature_names, "digit"]
    rows = [[*map(int, row), int(digit)] for row, digit in zip(data.data, data.target, strict=True)]
    ends = np.cumsum(SCHOOLS).tolist()
    return {
        f"site-{k + 1}.csv": [header, *rows[end - size : end]]
        for k, (size, end) in enumerate(zip(SCHOOLS, ends, strict=True))
    }


EXAMPLES: Mapping[str, Example] = {
    "hospitals": Example(
        "Three hospitals and their tumours",
        _hospitals,
        (
            "fedshed fit north.csv south.csv west.csv --target malignant",
            "fedshed predict results/fit/model.json west.csv",
        ),
        """569 real patients, one table per hospital: north.csv (60 rows), south.csv (190) and west.csv (319).
The hospitals are made up: the rows were cut in their published order, which is not random, so the
hospitals differ in size and in how many of their tumours are malignant (78, 41 and 28 percent).

| column | what it is |
|---|---|
| `radius` | mean distance from the centre of a cell nucleus to its border |
| `texture` | standard deviation of the grey values of a nucleus |
| `smoothness` | local variation of the radius |
| `compactness` | perimeter^2 / area - 1 |
| `symmetry` | mean symmetry of the nuclei |
| `malignant` | `yes` or `no`: the diagnosis, which is to be explained |

Source: W. Wolberg, O. Mangasarian, N. Street and W. Street, Breast Cancer Wisconsin (Diagnostic), UCI
Machine Learning Repository, 1993, doi 10.24432/C5DW2B, licence CC BY 4.0; as shipped with scikit-learn.
Five of the 30 measurements are here, under shorter names.""",
    ),
    "claims": Example(
        "Motor insurance claims in ten regions (simulated)",
        _claims,
        (
            "fedshed fit claims.csv --site region --family poisson --exposure years "
            "--formula 'claims ~ age + bonus + C(fuel) + C(brand)'",
        ),
        f"""{POLICIES:,} policies in one table, with a column that names the region. **The rows are
simulated**: they describe nobody. Claims are Poisson distributed with mean `years` times exp(z), where
z = {EFFECTS["intercept"]} {EFFECTS["age"]:+} (age - 45) {EFFECTS["bonus"]:+} (bonus - 50)
    {EFFECTS["petrol"]:+} if petrol {EFFECTS["B"]:+} if brand B {EFFECTS["D"]:+} if brand D
    + an effect of the region between -0.1 and 0.1.

| column | what it is |
|---|---|
| `region` | the site that holds the policy; regions differ in size |
| `years` | how long the policy was in force (the exposure) |
| `age` | age of the driver |
| `bonus` | bonus-malus level: 50 is best |
| `fuel` | `diesel` or `petrol` |
| `brand` | `A` to `D` |
| `claims` | number of claims in that time, which is to be explained |

Source: simulated by fedshed (`fedshed.datasets.examples`), free of any rights.""",
    ),
    "digits": Example(
        "Handwritten digits at five sites",
        _digits,
        (
            "fedshed compare site-*.csv --target digit --positive 1 --l2 1e-3 --algorithms newton,fib-shed",
            "fedshed fit site-*.csv --target digit --positive 1 --l2 1e-3",
        ),
        """1,797 real digits in five tables of 97, 200, 300, 400 and 800 rows. The sites are made up: the rows
were cut in their published order.

| column | what it is |
|---|---|
| `pixel_R_C` | ink in row R and column C of the 8 x 8 picture, from 0 to 16 |
| `digit` | the digit, 0 to 9, which is to be explained |

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998, doi 10.24432/C50P49, licence CC BY 4.0; the part that is shipped with scikit-learn.""",
    ),
    "survival": Example(
        "Survival with lung cancer in three hospitals",
        lung_tables,
        ("fedshed survival north.csv south.csv west.csv --time time --event death --by sex",),
        """228 real patients with advanced lung cancer, one table per hospital: north.csv (60 rows), south.csv
(80) and west.csv (88); 165 of them died while they were observed. Each hospital stands for several of
the 18 institutions of the published table, in the order of their numbers (1 to 3, 4 to 12, 13 to 33);
the one patient whose institution is not known is in the last. Empty cells are missing values.

| column | what it is |
|---|---|
| `time` | days until death, or until the patient was last seen alive |
| `death` | 1 if the patient died then, 0 if the time is censored |
| `age` | age in years |
| `sex` | `female` or `male` |
| `ecog` | the physician's ECOG performance score: 0 is good, 4 is bedbound |
| `karnofsky` | the physician's Karnofsky score: 0 is bad, 100 is good |
| `calories` | calories eaten at meals |
| `loss` | weight lost in the last six months, in pounds |

Source: C. Loprinzi, J. Laurie, S. Wieand and others, Prospective evaluation of prognostic variables from
patient-completed questionnaires, Journal of Clinical Oncology 12 (1994) 601-607 (North Central Cancer
Treatment Group), as tabulated in R's survival package and in lifelines. The values are facts, to which
no licence is attached; the papers above are to be cited.""",
    ),
}
