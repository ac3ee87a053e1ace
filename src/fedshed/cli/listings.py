"""`fedshed algorithms`, `fedshed families` and `fedshed datasets`: lists of what is available."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedshed._utils.errors import DataError
from fedshed.cli.app import app
from fedshed.cli.show import NOT_POOLED, Json, print_json, print_rows

if TYPE_CHECKING:
    from fedshed.datasets.loaders import Dataset
    from fedshed.objectives import Family


@app.command()
def algorithms(as_json: Json = False) -> None:
    """List the algorithms with the losses they can minimise, their budget and their source."""
    from fedshed.algorithms import ALGORITHMS

    rows = [
        {
            "name": entry.name, "what": entry.about, "losses": ", ".join(entry.algorithm.losses or ("any",)),
            "budget": _budget(entry.algorithm), "source": entry.source,
            "pooled": entry.algorithm.pooled, "compare_only": entry.algorithm.compare_only,
        }
        for entry in ALGORITHMS.values()
    ]  # fmt: skip
    notes = ["budget: eigenpairs per round; NAME+ runs NAME over a simulated fading (Rayleigh) link"]
    notes += _kept_for_comparisons(rows)
    shown = [{key: row[key] for key in row if key not in ("pooled", "compare_only")} for row in rows]
    print_json(rows) if as_json else print_rows(shown, notes, optional=("source", "budget"))


@app.command()
def families(as_json: Json = False) -> None:
    """List the families of models with their response, their link and the meaning of exp(coef)."""
    from fedshed.objectives import FAMILIES

    named = {family.name: family for family in reversed(FAMILIES.values())}
    rows = [
        {"name": name, "response": _response(family), "link": family.link, "exp(coef)": _ratio(family)}
        for name, family in sorted(named.items())
    ]
    notes = [
        "a name with a number, such as 'tweedie(1.6)', fixes the parameter; without a number, the "
        "parameter of tweedie is 1.5 and that of negative-binomial is estimated"
    ]
    print_json(rows) if as_json else print_rows(rows, notes, optional=("exp(coef)",))


def _ratio(family: Family) -> str:
    return "no ratio" if family.ratio == "exp(coef)" else family.ratio


def _response(family: Family) -> str:
    """The response of a family in words."""
    classes = {"two": "two classes", "many": "classes", "ordered": "ordered classes"}
    if family.survival:
        return "a time to an event"
    return classes.get(family.classes, family.response)


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the data sets with their size, their defaults, and where they are or how to get them."""
    from fedshed.datasets.loaders import DATASETS

    fields = ("name", "rows", "columns", "loss", "agents", "partition")
    rows = [{key: getattr(data, key) for key in fields} | _place(data) for data in DATASETS.values()]
    notes = [f"{row['name']}: {row['how']}" for row in rows if row["how"]]
    shown = [{key: row[key] or "no" for key in (*fields, "found")} for row in rows]
    print_json(rows) if as_json else print_rows(shown, notes, optional=("partition",))


def _kept_for_comparisons(rows: list[dict[str, Any]]) -> list[str]:
    """Notes on the algorithms that studies refuse, and on those that miss the pooled optimum."""
    kept = ", ".join(row["name"] for row in rows if row["compare_only"])
    biased = ", ".join(row["name"] for row in rows if not row["pooled"])
    return [f"for comparisons only (studies refuse them): {kept}", f"{NOT_POOLED}: {biased}"]


def _budget(algorithm: Any) -> int | str:
    """The default budget of an algorithm: eigenpairs per round, the name of a channel, or none."""
    channel = getattr(algorithm, "channel", None)
    if channel is None:
        return "none: fixed size"
    return getattr(channel, "pairs", type(channel).__name__.lower())


def _place(dataset: Dataset) -> dict[str, str | None]:
    """Where a data set was found, and how to get it if it, or a part of it, is missing."""
    from fedshed.datasets.files import advice

    if not dataset.files:
        return {"found": "in scikit-learn", "how": None}
    try:
        paths = dataset.find_files()
    except DataError as sentence:
        return {"found": None, "how": str(sentence)}
    part = dataset.substitute()
    how = f"{part} is read; for the official files, {advice(dataset.files[0])}" if part else None
    return {"found": str(paths[0].parent), "how": how}
