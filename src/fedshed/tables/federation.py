"""A Federation: the local tables of several sites that have the same columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed._utils.notebook import html_table
from fedshed.linalg.tall import Tall
from fedshed.tables import stored as checks
from fedshed.tables.stored import Matrix2D, Raw, Table
from fedshed.tables.survival import is_survival

__all__ = ["Federation", "Matrix2D", "Table"]

_MOST_CLASSES = 20


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """The local tables of several sites with common columns.

    Use `from_arrays` or `from_sites` to build one; both check the data.

    Attributes
    ----------
    tables : mapping of str to Table
        The table of each site, by its name.
    columns : tuple of str
        The names of the columns.
    name : str
        A name for titles.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.Federation.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1], ["a", "a", "b"])
    Federation('data': 2 sites, 3 rows, 1 columns)
    """

    tables: Mapping[str, Table]
    columns: tuple[str, ...]
    name: str = "data"

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        sites: Any = None,
        *,
        sample_weight: Any = None,
        offset: Any = None,
        columns: Sequence[str] | None = None,
        name: str = "data",
    ) -> Federation:
        """Build a federation from one table with a site label per row.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame
            The predictors, one row per observation.
        y : array
            The target, one entry per row.
        sites : array, optional
            The site of each row. Default: a single site called "all".
        sample_weight : array, optional
            The weight of each row: how often the row counts. Default: 1.
        offset : array, optional
            A number per row that is added to x'theta, such as the logarithm of an exposure. Default: 0.
        columns : sequence of str, optional
            The names of the columns. Default: those of a DataFrame, otherwise x0, x1, ...
        name : str, default "data"
            A name for titles.

        Returns
        -------
        Federation
            One table per site, with its rows in their order.

        Raises
        ------
        DataError
            If the data cannot be used; the message names the site and the column.

        Examples
        --------
        >>> import fedshed
        >>> fedshed.Federation.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1], ["a", "a", "b"]).rows
        {'a': 2, 'b': 1}
        """
        rows = checks.raw("data", X, y, sample_weight, offset)
        if not len(rows.y):
            raise DataError("data: X has no rows; give at least one")
        if sites is None:
            return _build({"all": rows}, columns, name)
        labels = checks.vector("data", "sites", sites)
        if len(labels) != len(rows.y):
            raise DataError(
                f"data: X has {len(rows.y)} rows but sites has {len(labels)}; give one site for each row of X"
            )
        return _build(
            {site: rows.take(index) for site, index in _rows_by_site(labels).items()}, columns, name
        )

    @classmethod
    def from_sites(
        cls, sites: Mapping[Any, Any], *, columns: Sequence[str] | None = None, name: str = "data"
    ) -> Federation:
        """Build a federation from one (X, y) or `Table` per site.

        The columns of DataFrames are brought into one order.

        Parameters
        ----------
        sites : mapping
            For each name a pair (X, y), or a `Table` with weights and offsets.
        columns : sequence of str, optional
            The names of the columns. Default: those of the first DataFrame, otherwise x0, x1, ...
        name : str, default "data"
            A name for titles.

        Returns
        -------
        Federation
            The checked tables.

        Raises
        ------
        DataError
            If the data cannot be used; the message names the site and the column.

        Examples
        --------
        >>> import fedshed
        >>> fedshed.Federation.from_sites({"a": ([[1.0], [2.0]], [0, 1]), "b": ([[3.0]], [1])}).dim
        1
        """
        if not isinstance(sites, Mapping):
            raise DataError(f"sites must be a mapping of names to pairs (X, y), not a {type(sites).__name__}")
        names = _site_names(sites)
        return _build({site: _pair(site, sites[key]) for site, key in names.items()}, columns, name)

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return tuple(sorted(self.tables))

    @property
    def dim(self) -> int:
        """The number of columns, n."""
        return len(self.columns)

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each site, N_i."""
        return {site: len(self.tables[site].y) for site in self.sites}

    def pooled(self) -> Table:
        """All rows in one table in memory, site by site in sorted order; CSR if one site's table is."""
        parts = [self.tables[site] for site in self.sites]
        if any(scipy.sparse.issparse(part.X) for part in parts):
            X = scipy.sparse.vstack([_csr(part.X) for part in parts], format="csr")
        else:
            X = np.concatenate([np.asarray(part.X) for part in parts])
        return Table(
            X,
            _responses([part.y for part in parts]),
            _joined([part.weights for part in parts], [len(part.y) for part in parts], 1.0),
            _joined([part.offset for part in parts], [len(part.y) for part in parts], 0.0),
        )

    def fingerprint(self) -> str:
        """A hash of site names, columns, shapes and values, which does not depend on `name`."""
        digest = hashlib.blake2b(json.dumps(self.columns).encode(), digest_size=16)
        for site in self.sites:
            part = self.tables[site]
            header = [site, *part.X.shape, scipy.sparse.issparse(part.X), part.y.dtype.str]
            digest.update(json.dumps(header).encode())
            for array in chain(_arrays(part.X), (part.y, *_beside(part))):  # block by block
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def report(self) -> list[dict[str, Any]]:
        """The number of rows of each site and, up to 20 classes, the number of rows per class (`y=1`)."""
        outcomes = {site: _outcomes(self.tables[site].y) for site in self.sites}
        classes = np.unique(np.concatenate(list(outcomes.values()))).tolist()
        shown = classes if len(classes) <= _MOST_CLASSES else []
        return [
            {
                "site": site,
                "rows": rows,
                **{f"y={label}": int(np.sum(outcomes[site] == label)) for label in shown},
            }
            for site, rows in self.rows.items()
        ]

    def __repr__(self) -> str:
        rows = sum(self.rows.values())
        return f"Federation({self.name!r}: {len(self.tables)} sites, {rows} rows, {self.dim} columns)"

    def _repr_html_(self) -> str:
        return html_table(self.report(), repr(self))


def _build(parts: dict[str, Raw], columns: Sequence[str] | None, name: str) -> Federation:
    """Check every site against the common columns."""
    common = _common_columns(parts, columns)
    checked = {site: checks.table(site, parts[site], common) for site in sorted(parts)}
    _check_label_types(checked)
    return Federation(checked, common, name)


def _common_columns(parts: dict[str, Raw], columns: Sequence[str] | None) -> tuple[str, ...]:
    """The names given, else those of the first DataFrame, else x0, x1, ... as many as the first site has."""
    first = min(parts)
    if columns is not None:
        names = tuple(str(column) for column in columns)
    else:
        frames = [named for site in sorted(parts) if (named := parts[site].names) is not None]
        names = frames[0] if frames else tuple(f"x{j}" for j in range(parts[first].X.shape[1]))
    checks.check_names(f"site {first!r}", names)
    return names


def _pair(site: str, given: Any) -> Raw:
    """What one site gave."""
    if isinstance(given, Table):
        return checks.raw(f"site {site!r}", given.X, given.y, given.weights, given.offset)
    try:
        X, y = given
    except (TypeError, ValueError) as error:
        raise DataError(
            f"site {site!r}: give a pair (X, y) or a Table, not {type(given).__name__}"
        ) from error
    return checks.raw(f"site {site!r}", X, y)


def _site_names(labels: Iterable[Any]) -> dict[str, Any]:
    """Each distinct label by its name as text; labels that are missing or share a name are refused."""
    names: dict[str, Any] = {}
    for label in labels:
        name = str(label)
        if name not in names:
            names[name] = _site_label(label)
        elif label != names[name]:
            raise DataError(
                f"site labels {names[name]!r} and {label!r} have the same name {name!r}; rename one of them"
            )
    if not names:
        raise DataError("a federation needs at least one site; give one (X, y) per site")
    return names


def _site_label(label: Any) -> Any:
    """The label, refused if it is missing or empty."""
    if checks.missing(label) or str(label) == "":
        raise DataError(f"site label {label!r} is missing; name the site of every row or drop those rows")
    return label


def _rows_by_site(labels: NDArray[Any]) -> dict[str, NDArray[np.intp]]:
    """The rows of each site, in their order."""
    rows: dict[str, list[int]] = {name: [] for name in _site_names(labels)}
    for row, label in enumerate(labels):
        rows[str(label)].append(row)
    return {name: np.array(index, dtype=np.intp) for name, index in rows.items()}


def _check_label_types(tables: Mapping[str, Table]) -> None:
    """Refuse text labels at one site and numbers at another."""
    first, *others = tables
    for site in others:
        if is_survival(tables[site].y) != is_survival(tables[first].y):
            raise DataError(
                f"sites {first!r} and {site!r}: y holds times and events at one of them only; "
                "give every site the same kind of response"
            )
        if _is_text(tables[site].y) != _is_text(tables[first].y):
            kinds = ["text" if _is_text(tables[name].y) else "numbers" for name in (first, site)]
            raise DataError(
                f"site {first!r}: y holds {kinds[0]} but site {site!r}: y holds {kinds[1]}; "
                "use the same labels everywhere"
            )


def _is_text(y: NDArray[Any]) -> bool:
    return y.dtype.kind in "US"


def _responses(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """All responses; strata of times to an event are kept apart by site."""
    y = np.concatenate(parts)
    if is_survival(y):
        sites = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        both = np.column_stack([sites, y["stratum"]])
        y["stratum"] = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    return y


def _outcomes(y: NDArray[Any]) -> NDArray[Any]:
    """The labels; of times to an event, whether there was one."""
    return np.asarray(y["event"]) if is_survival(y) else y


def _joined(
    parts: Sequence[NDArray[np.float64] | None], rows: Sequence[int], default: float
) -> NDArray[np.float64] | None:
    """One vector for all sites, with a default where a site has none; None where no site has one."""
    if all(part is None for part in parts):
        return None
    filled = [
        np.full(count, default) if part is None else part for part, count in zip(parts, rows, strict=True)
    ]
    return np.concatenate(filled)


def _beside(part: Table) -> tuple[NDArray[Any], ...]:
    """Weights and offsets, each after a word that tells them apart; nothing where there are none."""
    named = ((b"weights", part.weights), (b"offset", part.offset))
    return tuple(
        array
        for word, values in named
        if values is not None
        for array in (np.frombuffer(word, np.uint8), values)
    )


def _arrays(X: Matrix2D) -> Iterator[NDArray[Any]]:
    """The arrays that hold a matrix, of types that do not depend on how it was made; blocks of a tall one."""
    if isinstance(X, np.ndarray):
        return iter((X,))
    if isinstance(X, Tall):
        return (block for _, block in X.blocks())
    return iter((X.indptr.astype(np.int64), X.indices.astype(np.int64), X.data))


def _csr(X: Matrix2D) -> scipy.sparse.csr_array:
    """A site's matrix among sparse ones."""
    return scipy.sparse.csr_array(np.asarray(X) if isinstance(X, Tall) else X)
