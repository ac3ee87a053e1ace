"""Tables that were collected at several places: hospitals, districts, communities, schools."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.datasets.design import dummies, named, read_csv, stacked
from fedshed.datasets.files import content
from fedshed.datasets.records import Content, Dataset

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART = tuple(f"heart/processed.{hospital}.data" for hospital in HOSPITALS)
# The first eight are nearly complete everywhere; chol, fbs, slope, ca and thal are not.
_HEART = {
    "age": 0,
    "sex": 1,
    "cp": 2,
    "trestbps": 3,
    "restecg": 6,
    "thalach": 7,
    "exang": 8,
    "oldpeak": 9,
    "num": 13,
}


def read_heart() -> Content:
    """Complete cases of eight predictors of heart disease in their own units, chest pain and ECG by level."""
    parts = [_hospital(name) for name in HEART]
    rows = dict(zip(_HEART, np.concatenate(parts).T, strict=True))
    disease = (rows.pop("num") > 0).astype(np.int64)
    levels = {name: dummies(name, rows[name].astype(int)) for name in ("cp", "restecg")}
    columns = {key: v for name in rows for key, v in levels.get(name, {name: rows[name]}).items()}
    return _content(columns, disease, np.repeat(HOSPITALS, [len(part) for part in parts]))


def read_medpar() -> Content:
    """Length of stay of Arizona's Medicare patients by insurance, race and type of admission."""
    rows = read_csv("silos/medpar.csv.xz", los="f8", hmo="f8", white="f8", type="U1", provnum="U6")
    columns = {"hmo": rows["hmo"], "white": rows["white"]} | dummies("type", rows["type"])
    return _content(columns, rows["los"], rows["provnum"])


def read_contraception() -> Content:
    """Use of contraception by age (centred), town or country, and number of living children."""
    rows = read_csv("silos/Contraception.csv.xz", use="U1", age="f8", urban="U1", livch="U2", district="i8")
    columns = {"age": rows["age"]} | dummies("urban", rows["urban"]) | dummies("livch", rows["livch"])
    return _content(columns, _yes(rows["use"]), named("district", rows["district"]))


def read_guimmun() -> Content:
    """Complete immunisation of a child by its age and birth order, its parents and its community."""
    levels = ("kid2p", "mom25p", "ord", "ethn", "momEd", "husEd", "momWork", "rural")
    rows = read_csv(
        "silos/guImmun.csv.xz", immun="U1", pcInd81="f8", comm="i8", **dict.fromkeys(levels, "U2")
    )
    columns = {key: column for name in levels for key, column in dummies(name, rows[name]).items()}
    columns["pcInd81"] = rows["pcInd81"]
    return _content(columns, _yes(rows["immun"]), named("community", rows["comm"]))


def read_exam() -> Content:
    """Exam score of a pupil by reading test, sex, intake band, and the school's kind and intake."""
    levels = {"sex": None, "schgend": "mixed", "vr": None, "intake": None}
    rows = read_csv(
        "silos/Exam.csv.xz", normexam="f8", standLRT="f8", schavg="f8", school="i8",
        **dict.fromkeys(levels, "U10"),
    )  # fmt: skip
    columns = {name: rows[name] for name in ("standLRT", "schavg")}
    for name, reference in levels.items():
        columns |= dummies(name, rows[name], reference)
    return _content(columns, rows["normexam"], named("school", rows["school"]))


def _hospital(relative: str) -> NDArray[np.float64]:
    """The complete rows of one hospital's file, in which ? is missing."""
    text = np.loadtxt(io.BytesIO(content(relative)), dtype="U8", delimiter=",", usecols=list(_HEART.values()))
    return np.asarray(text[(text != "?").all(axis=1)], dtype=np.float64)


def _yes(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(values == "Y", dtype=np.int64)


def _content(columns: dict[str, Any], y: NDArray[Any], sites: NDArray[np.str_]) -> Content:
    X, names = stacked(columns)
    return Content(X, y, names, sites)


def _silos(name: str, loss: str, file: str | tuple[str, ...], **about: Any) -> Dataset:
    """The record of a set with natural sites: classes 0 and 1, or a number to be predicted."""
    binary = loss == "logistic"
    files = (file,) if isinstance(file, str) else file
    return Dataset(
        name=name, loss=loss, classes=(0, 1) if binary else (), target=1 if binary else None,
        partition="natural", files=files, **about,
    )  # fmt: skip


DATASETS = (
    _silos(
        "heart",
        "logistic",
        HEART,
        description="heart disease or not, at four hospitals; complete cases of eight predictors, "
        "reference levels cp=1 and restecg=0",
        rows=852,
        columns=11,
        agents=4,
        citation="Janosi, Steinbrunn, Pfisterer, Detrano 1988, Heart Disease, UCI, doi 10.24432/C52P4X",
        licence="CC BY 4.0",
        read=read_heart,
    ),
    _silos(
        "medpar",
        "poisson",
        "silos/medpar.csv.xz",
        description="days in hospital (los), at 54 hospitals; reference level type=1 (elective)",
        rows=1495,
        columns=4,
        agents=54,
        citation="Hilbe 2011, Negative Binomial Regression; R package COUNT",
        licence="GPL family",
        read=read_medpar,
    ),
    _silos(
        "contraception",
        "logistic",
        "silos/Contraception.csv.xz",
        description="use of contraception, in 60 districts of Bangladesh; reference levels urban=N, livch=0",
        rows=1934,
        columns=5,
        agents=60,
        citation="Huq, Cleland 1990, Bangladesh Fertility Survey 1989; R package mlmRev",
        licence="GPL family",
        read=read_contraception,
    ),
    _silos(
        "guimmun",
        "logistic",
        "silos/guImmun.csv.xz",
        description="complete immunisation of children, in 161 communities of Guatemala; "
        "reference levels ord=01, ethn=L, momEd=N, husEd=N and N elsewhere",
        rows=2159,
        columns=15,
        agents=161,
        citation="Rodriguez, Goldman 2001, J. R. Stat. Soc. A 164; R package mlmRev",
        licence="GPL family",
        read=read_guimmun,
    ),
    _silos(
        "exam",
        "least-squares",
        "silos/Exam.csv.xz",
        description="exam scores (normexam), in 65 schools of inner London; reference levels sex=F, "
        "schgend=mixed, vr and intake=bottom 25%",
        rows=4059,
        columns=9,
        agents=65,
        citation="Goldstein, Rasbash et al. 1993, Oxford Review of Education 19; R package mlmRev",
        licence="GPL family",
        read=read_exam,
    ),
)
