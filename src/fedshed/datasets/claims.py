"""French motor claims: a reader beside `load`, until a `Table` can hold the exposure that they need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedshed.datasets.design import Column, binned, dummies, read_csv, stacked

FREQUENCY = "fremtpl2/freMTPL2freq.csv.xz"
_KINDS = {
    **dict.fromkeys(("ClaimNb", "Exposure", "BonusMalus", "Density"), "f8"),
    **dict.fromkeys(("VehPower", "VehAge", "DrivAge"), "i8"),
    **dict.fromkeys(("Area", "VehBrand", "Region"), "U3"),
    "VehGas": "U7",
}
_VEHICLE_AGES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20)
_DRIVER_AGES = (18, 21, 23, 26, 31, 36, 41, 46, 51, 56, 61, 66, 71, 76, 81)


@dataclass(frozen=True, eq=False)
class Claims:
    """Policies: the design X and its columns, the claims y, the exposure in years, and the region of each."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    exposure: NDArray[np.float64]
    columns: tuple[str, ...]
    regions: NDArray[np.str_]


def read_fremtpl2() -> Claims:
    """678,013 policies of freMTPL2freq as they are: a Poisson model is E[y] = exposure * exp(X theta).

    Without the offset log(exposure) the model is another, so the set is not among `names()`.
    """
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
    return Claims(X, rows["ClaimNb"], rows["Exposure"], names, rows["Region"])
