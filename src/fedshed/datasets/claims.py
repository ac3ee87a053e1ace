"""French motor claims: counts with an exposure, whose logarithm is the offset."""

from __future__ import annotations

import numpy as np

from fedshed.datasets.design import Column, binned, dummies, read_csv, stacked
from fedshed.datasets.records import Content, Dataset

FREQUENCY = "fremtpl2/freMTPL2freq.csv.xz"
_KINDS = {
    **dict.fromkeys(("ClaimNb", "Exposure", "BonusMalus", "Density"), "f8"),
    **dict.fromkeys(("VehPower", "VehAge", "DrivAge"), "i8"),
    **dict.fromkeys(("Area", "VehBrand", "Region"), "U3"),
    "VehGas": "U7",
}
_VEHICLE_AGES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20)
_DRIVER_AGES = (18, 21, 23, 26, 31, 36, 41, 46, 51, 56, 61, 66, 71, 76, 81)


def read_fremtpl2() -> Content:
    """678,013 policies of freMTPL2freq as they are; E[claims] = exposure * exp(X theta)."""
    rows = read_csv(FREQUENCY, **_KINDS)
    columns: dict[str, Column] = {
        "BonusMalus/100": rows["BonusMalus"] / 100,
        "log Density": np.log(rows["Density"]),
    }
    rows |= {
        "VehAge": binned(rows["VehAge"], _VEHICLE_AGES),
        "DrivAge": binned(rows["DrivAge"], _DRIVER_AGES),
    }
    references = {
        "Area": "C",
        "VehPower": 6,
        "VehAge": "1",
        "DrivAge": "46-50",
        "VehBrand": "B1",
        "VehGas": "Regular",
    }
    for name, reference in references.items():
        columns |= dummies(name, rows[name], reference)
    X, names = stacked(columns)
    return Content(X, rows["ClaimNb"], names, rows["Region"], np.log(rows["Exposure"]))


FREMTPL2 = Dataset(
    name="fremtpl2",
    description="claims of French motor policies with their exposure, in 22 regions; reference levels "
    "Area=C, VehPower=6, VehAge=1, DrivAge=46-50, VehBrand=B1, VehGas=Regular",
    loss="poisson",
    rows=678_013,
    columns=54,
    classes=(),
    agents=22,
    partition="natural",
    target=None,
    citation="Dutang, Charpentier, R package CASdatasets; OpenML 41214",
    licence="GPL family",
    files=(FREQUENCY,),
    read=read_fremtpl2,
)
