"""What a plan makes of a site's table: its cells, and the columns that are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.tall import by_column
from fedshed.preparation.design import Design, codes, numbers
from fedshed.preparation.filling import indicator
from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.spellings import option
from fedshed.privacy.policy import Objection, Policy
from fedshed.privacy.tables import cell_objections, computed_objections
from fedshed.tables.columns import Column


def design_objections(policy: Policy, plan: DesignPlan, frame: Any, design: Design) -> list[Objection]:
    """The rules that the design of a plan breaks, beyond those of any table.

    Parameters
    ----------
    policy : Policy
        The site's rules.
    plan : DesignPlan
        The plan that is asked about.
    frame : table
        The site's table.
    design : Design
        What the plan makes of it (`plan.build(frame)[1]`), standardised or not.

    Returns
    -------
    list of Objection
        Empty where each cell has enough rows and no computed column is about a few.
    """
    found = cell_objections(policy, smallest_cells(plan, plan.used(frame), design.terms))
    found += cell_objections(policy, _filled_cells(plan, frame))
    return found + computed_column_objections(policy, plan, frame, design)


def computed_column_objections(
    policy: Policy, plan: DesignPlan, frame: Any, design: Design
) -> list[Objection]:
    """The rule on columns that a formula computes, none of which may be about a few rows."""
    columns = computed(plan, plan.used(frame), design)
    return computed_objections(policy, design.X, columns, design.names)


def empty_reference_cell(plan: DesignPlan, collinear: Sequence[str]) -> str | None:
    """The empty cell of an interaction of two categories that makes these columns collinear, if one does.

    A cell of reference levels has no column of its own.  If it is empty, its indicator, a sum of other
    columns, is 0: for levels a1 (reference) and b2, b[b2] less all of a[.]:b[b2].
    """
    for term in dict.fromkeys(plan.terms):
        names = term.split(":")
        if len(names) != 2 or not set(names) <= set(plan.levels):
            continue
        for cell in product(*(plan.levels[name] for name in names)):
            shown = _indicator(plan, dict(zip(names, cell, strict=True)))
            references = [n for n, level in zip(names, cell, strict=True) if level == plan.levels[n][0]]
            if references and shown <= {*collinear, *plan.constants}:
                where = " and ".join(f"{n} = {level}" for n, level in zip(names, cell, strict=True))
                others = {name: plan.levels[name][1] for name in references}
                options = " ".join(option("reference", f"{name}={other}") for name, other in others.items())
                return (
                    f"no row of any site has {where} (an empty cell at a reference level), so the columns of "
                    f"{term} are collinear; choose another reference (references = {others}, {options}), and "
                    "the column of that cell is left out"
                )
    return None


def _indicator(plan: DesignPlan, cell: Mapping[str, str]) -> set[str]:
    """The design columns that the indicator of a cell is a sum of, without the intercept."""
    parts = [
        [f"{name}[{level}]"]
        if level != plan.levels[name][0]
        else ["", *(f"{name}[{other}]" for other in plan.levels[name][1:])]
        for name, level in cell.items()
    ]
    found = {":".join(filter(None, pair)) for pair in product(*parts)}
    return found & set(plan.names)


def smallest_cells(plan: DesignPlan, read: Mapping[str, Column], terms: tuple[str, ...]) -> dict[str, int]:
    """The rows of the smallest cell that is not empty, of each term with categories.

    A cell is a combination of levels, references included: columns that sum to one tell of the reference too.
    """
    found: dict[str, int] = {}
    for term in dict.fromkeys(terms):
        factors = [name for name in dict.fromkeys(term.split(":")) if name in plan.levels]
        if factors:
            cells = np.column_stack([codes(name, read[name], plan.levels[name]) for name in factors])
            found[term] = int(np.unique(cells, axis=0, return_counts=True)[1].min(initial=len(cells)))
    return found


def _filled_cells(plan: DesignPlan, frame: Any) -> dict[str, int]:
    """Of columns that are filled in: the rows that miss it, or those that do not, whichever are fewer."""
    if not plan.study.fills_in:
        return {}
    read = plan.read(frame)
    rows = {name: int(read[name].missing.sum()) for name in plan.columns}
    all_rows = len(next(iter(read.values())).values)
    return {indicator(name): min(n, all_rows - n) for name, n in rows.items() if 0 < n < all_rows}


def computed(plan: DesignPlan, read: Mapping[str, Column], design: Design) -> list[int]:
    """The columns of a design that are neither a column of the table nor a level of a category."""
    plain = [name for name in plan.columns if name not in plan.levels]
    itself = {
        *plain,
        *map(indicator, plain),
        *(f"{name}[{level}]" for name in plan.levels for level in plan.levels[name]),
    }
    others = [j for j, name in enumerate(design.names) if name not in itself]
    if not others or plan.scales is not None:
        return others
    known = {_mark(numbers(name, read[name])) for name in plain}
    return [j for j, values in by_column(design.X, others) if _mark(values) not in known]


def _mark(values: NDArray[np.float64]) -> bytes:
    """The same for equal columns, so that not all of them need be at hand."""
    return blake2b((values + 0.0).tobytes()).digest()  # -0.0 is 0.0
