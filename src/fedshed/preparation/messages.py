"""What crosses the wire in the preparation: schemas, plans, and sums; never a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from fedshed.linalg.arrays import Scalars, Vector
from fedshed.preparation.plan import DesignPlan, Label
from fedshed.preparation.spellings import Others
from fedshed.preparation.study import Study
from fedshed.protocol.codec import Codec
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import FINE, NOTHING, SAME, TOTAL, Numbers, Rule, Scaling
from fedshed.tables.columns import Kind

Hidden: TypeAlias = Annotated[int, Meta(gt=-(2**31), lt=2**31)]  # a count; -m: fewer than m


class Describe(Message, frozen=True):
    """Asks what a site's table is like, as far as this study needs it."""

    study: Study


class Build(Message, frozen=True):
    """Asks a site to build its design as agreed, and to check it."""

    plan: DesignPlan


class Spread(Message, frozen=True):
    """Asks for the sums of x - m and (x - m)^2 over the rows, by design column, m being the means."""

    plan: DesignPlan
    means: Scalars


class Constants(Message, frozen=True):
    """Asks for the value of design columns that do not vary at any site."""

    plan: DesignPlan
    columns: tuple[Count, ...]


class Tally(Message, frozen=True):
    """Asks for what the transforms of the formula still lack: sums over the rows, or histograms."""

    plan: DesignPlan


class Field(Struct, frozen=True, array_like=True):
    """One column: its kind, how many rows miss it (-m: fewer than m), and its levels if it is a category.

    The levels are in the order that the site's table declares, if `ordered`; they were numbers, not text, if
    `from_numbers`.  Too many levels are not sent; `problem` says so, in case the column's kind is the one
    agreed on.
    """

    name: str
    kind: Kind
    missing: Hidden
    levels: tuple[str, ...] = ()
    problem: str = ""
    ordered: bool = False
    from_numbers: bool = False


class _Fields(Struct, frozen=True):
    """Columns that are alike at all sites, but for how many rows miss them."""

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """The columns, and their counts."""
        fields = message.fields
        counts = np.array([field.missing for field in fields], dtype=np.float64)
        return msgspec.to_builtins([replace(field, missing=0) for field in fields]), Numbers(counts)

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """The columns with the counts of all sites."""
        pairs = zip(msgspec.convert(public, kind), totals.tolist(), strict=True)
        return tuple(replace(field, missing=round(count)) for field, count in pairs)


class _Missing(Struct, frozen=True):
    """In how many rows each column is missing: the columns are the same at all sites."""

    def split(self, message: Any, name: str, scaling: Scaling) -> tuple[Any, Numbers | None]:
        """The columns, and their counts."""
        return [column for column, _ in message.missing], Numbers(
            np.array([count for _, count in message.missing], dtype=np.float64)
        )

    def join(self, public: Any, totals: Vector, kind: Any, scaling: Scaling) -> Any:
        """The columns that some rows miss."""
        counts = [round(count) for count in totals.tolist()]
        return tuple((column, count) for column, count in zip(public, counts, strict=True) if count)


class Schema(Message, frozen=True):
    """A site's table: its rows, those without a missing value, the columns used, and the target's classes."""

    rows: Count
    complete: Count
    fields: tuple[Field, ...]
    labels: tuple[Label, ...] = ()
    excluded: tuple[str, ...] = ()  # of the columns that the study excludes, those that are there
    positive: tuple[Count, ...] = ()  # places of the study's positive values that the target has here
    others: Others = ""  # what its other values look like: one class, several, or two of another spelling

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "rows": TOTAL, "complete": TOTAL, "fields": _Fields(), "labels": SAME, "excluded": SAME,
        "positive": SAME, "others": SAME,
    }  # fmt: skip


class Ready(Message, frozen=True):
    """A site has built its design: rows used, their weight, the design's columns and the terms they are of.

    `constant` are the design columns that do not vary here; `sums` are those of each column, weighted, where
    the study standardises.  `measured` are the places of the table's columns of numbers with three values or
    more, with their weighted means and variances: they show whether the sites have the same units.
    """

    rows: Count
    dropped: Hidden  # rows that miss a value or have the weight 0; -m: fewer than m
    weight: float
    names: tuple[str, ...]
    terms: tuple[str, ...]
    constant: tuple[Count, ...] = ()
    sums: Scalars | None = None
    missing: tuple[tuple[str, Hidden], ...] = ()  # columns, and in how many rows each is missing
    digest: Annotated[str, Meta(max_length=64, pattern="^[0-9a-f]*$")] = (
        ""  # of the rows used and their target, weight and offset, with a key of the site
    )
    measured: tuple[Count, ...] = ()
    means: Scalars | None = None
    variances: Scalars | None = None
    different: tuple[Count, ...] = ()  # those of them that hold a different whole number in each row

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "rows": TOTAL, "dropped": TOTAL, "weight": TOTAL, "names": SAME, "terms": SAME, "constant": SAME,
        "sums": FINE, "missing": _Missing(), "digest": SAME, "measured": SAME, "means": NOTHING,
        "variances": NOTHING, "different": SAME,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows < 1 or self.weight <= 0:
            raise ValueError(f"a site has rows and a weight, not {self.rows} and {self.weight}")


class Told(Ready, frozen=True):
    """What a site said of its table, and what the Master computed from it; this is never sent."""

    squares: Scalars | None = None  # the mean square of each column of the design


class Deviations(Message, frozen=True):
    """The weighted sums of x - m and of (x - m)^2, by design column."""

    sums: Scalars
    squares: Scalars

    adds: ClassVar[Mapping[str, Rule] | None] = {"sums": FINE, "squares": FINE}


class Values(Message, frozen=True):
    """The value that each design column asked for has in every row."""

    values: Scalars


class Tallies(Message, frozen=True):
    """Sums over a site's rows, and histograms: lower end, upper end and rows of each block.

    Term by term in the order of the formula; `sizes` are the numbers of blocks of the histograms.
    """

    sums: Scalars
    blocks: Scalars
    sizes: tuple[Count, ...]

    adds: ClassVar[Mapping[str, Rule] | None] = {"sums": FINE, "blocks": NOTHING, "sizes": SAME}


class Refused(Message, frozen=True):
    """A site cannot go on, and why: a sentence without any of its values."""

    reason: str

    refuses: ClassVar[str] = "reason"


MESSAGES = (Describe, Build, Spread, Constants, Tally, Schema, Ready, Deviations, Values, Tallies, Refused)
CODEC = Codec(MESSAGES, 1)  # its arrays have any length, so the dimension plays no part
