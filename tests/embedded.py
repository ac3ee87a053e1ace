"""Real tables that come with scikit-learn and statsmodels, and one that is simulated: nothing is downloaded.

They stand in for the larger data of docs/data.md, so that every oracle test has a form that anybody can run.
"""

from __future__ import annotations

from functools import cache

import pandas as pd
import statsmodels.api as sm

from fedshed import Federation
from fedshed.datasets.examples import EXAMPLES
from fedshed.tables import split


def example(name):
    """The tables of `fedshed example NAME`, by site."""
    return {
        file.removesuffix(".csv"): pd.DataFrame(rows[1:], columns=rows[0])
        for file, rows in EXAMPLES[name].tables().items()
    }


def hospitals():
    """Breast cancer at three hospitals of 60, 190 and 319 rows."""
    return example("hospitals")


def claims():
    """Simulated motor claims in ten regions, with an exposure in years."""
    return split(example("claims")["claims"], "region")


def firms():
    """Grunfeld's investments of eleven firms, twenty years each; one firm with fewer."""
    data = sm.datasets.grunfeld.load_pandas().data
    data = data[~((data["firm"] == "American Steel") & (data["year"] < 1945))]
    return split(data.reset_index(drop=True), "firm")


def doctor_visits():
    """RAND's health insurance experiment: visits to a doctor, by people with as many diseases (31 groups)."""
    data = sm.datasets.randhie.load_pandas().data
    return split(data.assign(group=[f"{value:.4f}" for value in data["disea"]]), "group")


def marriages():
    """Fair's survey on extramarital affairs, by the wife's occupation (6 groups)."""
    data = sm.datasets.fair.load_pandas().data
    return split(data.assign(affair=(data["affairs"] > 0).astype(float)), "occupation")


def voters():
    """The American election study of 1996: party identification in seven classes, by education (7 groups)."""
    return split(sm.datasets.anes96.load_pandas().data, "educ")


def federation(tables, target, columns):
    """Tables as a Federation of these columns."""
    return Federation.from_sites(
        {site: (table[columns], table[target].to_numpy()) for site, table in tables.items()}
    )


@cache
def embedded(name):
    """A federation by its name."""
    tables, target, columns = {
        "hospitals": (hospitals, "malignant", ["radius", "texture", "smoothness", "compactness", "symmetry"]),
        "firms": (firms, "invest", ["value", "capital"]),
        "visits": (doctor_visits, "mdvis", ["lncoins", "idp", "lpi", "physlm", "hlthg"]),
        "stays": (positive_visits, "mdvis", ["lncoins", "idp", "lpi", "physlm"]),
        "marriages": (marriages, "affair", ["rate_marriage", "age", "yrs_married", "religious", "educ"]),
        "voters": (voters, "PID", ["logpopul", "selfLR", "age", "income"]),
    }[name]
    return federation(tables(), target, columns)


def positive_visits():
    """The visits of those who had any: positive amounts, for the Gamma family."""
    tables = {site: table[table["mdvis"] > 0] for site, table in doctor_visits().items()}
    return {site: table for site, table in tables.items() if len(table)}
