"""The rows of one site, and the checks that a caller's X and y must pass."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import narwhals
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.linalg.tall import Tall
from fedshed.tables import survival
from fedshed.tables.lazy import ArrowRows, arrow_table, is_arrow, is_large, is_mapped

Matrix2D: TypeAlias = NDArray[np.float64] | scipy.sparse.csr_array | Tall

LARGEST = 1e60  # of a number in a design: the squares of its products with others are numbers, too
_REAL = (numbers.Real, Decimal, np.bool_)
_KINDS = {
    **{"U": "text", "S": "text", "T": "text", "M": "dates", "m": "durations"},
    **{"c": "complex numbers", "V": "records"},
}


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of one site.

    Attributes
    ----------
    X : array, scipy CSR array or Tall
        The predictors as float64 numbers: dense, sparse, or left in their file.
    y : array
        The target, one entry per row.
    weights : array or None
        The weight of each row; None if every row counts once.
    offset : array or None
        A number per row that is added to x'theta; None means 0.
    clusters : array or None
        Rows with the same entry are not independent; None if all rows are.
    """

    X: Matrix2D
    y: NDArray[Any]
    weights: NDArray[np.float64] | None = None
    offset: NDArray[np.float64] | None = None
    clusters: NDArray[np.intp] | None = None


@dataclass(frozen=True, eq=False)
class Raw:
    """What a site gave, as arrays of any type, not yet checked; names are those of a DataFrame or None."""

    X: Any
    names: tuple[str, ...] | None
    y: NDArray[Any]
    weights: NDArray[Any] | None = None
    offset: NDArray[Any] | None = None

    def take(self, rows: Any) -> Raw:
        """These rows only."""
        weights = None if self.weights is None else self.weights[rows]
        offset = None if self.offset is None else self.offset[rows]
        X = self.X.take(rows) if isinstance(self.X, Tall) else self.X[rows]
        return Raw(X, self.names, self.y[rows], weights, offset)


def raw(where: str, X: Any, y: Any, weights: Any = None, offset: Any = None) -> Raw:
    """X as a 2-D array or CSR matrix and vectors of the same length, whatever they hold."""
    matrix, names = _matrix(where, X)
    given = {"y": y, "sample_weight": weights, "offset": offset}
    vectors = {what: vector(where, what, values) for what, values in given.items() if values is not None}
    for what, values in vectors.items():
        if matrix.shape[0] != len(values):
            raise DataError(
                f"{where}: X has {matrix.shape[0]} rows but {what} has {len(values)}; "
                f"give one {what} for each row of X"
            )
    if "y" not in vectors:
        raise DataError(f"{where}: y is None; give one y for each row of X")
    return Raw(matrix, names, vectors["y"], vectors.get("sample_weight"), vectors.get("offset"))


def vector(where: str, what: str, values: Any) -> NDArray[Any]:
    """A 1-D array of what was given, of objects where text and numbers are mixed."""
    array = _array(where, what, values)
    if array.ndim != 1:
        raise DataError(
            f"{where}: {what} must be 1-D, one entry per row, but has shape {array.shape}; "
            "use .ravel() if it is a single column"
        )
    return array


def table(site: str, rows: Raw, columns: tuple[str, ...]) -> Table:
    """The checked table of a site, its columns in the order of `columns`."""
    where = f"site {site!r}"
    if rows.X.shape[0] == 0:
        raise DataError(f"{where} has no rows; leave it out or give it data")
    return Table(
        _numbers(where, _aligned(where, rows, columns), columns),
        _labels(where, rows.y),
        None if rows.weights is None else _weights(where, rows.weights),
        None if rows.offset is None else _numbers(where, rows.offset[:, None], ("offset",))[:, 0],
    )


def _weights(where: str, weights: NDArray[Any]) -> NDArray[np.float64]:
    """Weights that count rows: finite, none negative, not all 0."""
    numbers_: NDArray[np.float64] = _numbers(where, weights[:, None], ("sample_weight",))[:, 0]
    if numbers_.min() < 0:
        raise DataError(
            f"{where}: sample_weight is negative in {_rows(int((numbers_ < 0).sum()))}; drop those rows"
        )
    if not numbers_.any():
        raise DataError(f"{where}: every sample_weight is 0; leave the site out")
    return numbers_


def missing(value: object) -> bool:
    """Whether a value stands for "not known": None, NaN, NaT or the NA of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (*_REAL, np.datetime64)) and bool(value != value)


def _matrix(where: str, X: Any) -> tuple[Any, tuple[str, ...] | None]:
    """X as a 2-D array, tall table or CSR matrix of any type, with its column names if it is a DataFrame."""
    names = None
    X = arrow_table(where, X) if is_arrow(X) else X
    if (left := left_in_place(where, X)) is not None:
        return left
    frame = X if isinstance(X, np.ndarray) else narwhals.from_native(X, eager_only=True, pass_through=True)
    if scipy.sparse.issparse(X):
        matrix = X
    elif isinstance(frame, narwhals.DataFrame):
        names = tuple(str(column) for column in frame.columns)
        matrix = _array(where, "X", frame.to_numpy())
    else:
        matrix = _array(where, "X", X)
    if matrix.ndim != 2:
        raise DataError(f"{where}: X must be 2-D, rows by columns, but has shape {matrix.shape}")
    return (_csr(where, matrix) if scipy.sparse.issparse(matrix) else matrix), names


def left_in_place(where: str, X: Any) -> tuple[Tall, tuple[str, ...] | None] | None:
    """What is too large to be copied, or may be, as a tall table; None for anything else."""
    if is_arrow(X) and is_large(X):
        return Tall(ArrowRows(where, X)), tuple(X.column_names)
    if is_mapped(X):
        return Tall(X), None
    return (X, None) if isinstance(X, Tall) else None


def _csr(where: str, X: Any) -> Any:
    """Any sparse matrix as a well-formed CSR array without duplicate entries; the caller's stays as it is."""
    # Floats first: duplicate entries are summed, and a sum of small integers may overflow.
    try:
        csr = scipy.sparse.csr_array(X.astype(np.float64, copy=False) if X.dtype.kind in "biuf" else X)
        csr.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"{where}: X is not a well-formed sparse matrix ({error}); rebuild it") from error
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def _array(where: str, what: str, values: Any) -> NDArray[Any]:
    """An array of what was given, without turning mixed lists into text or forgetting a mask."""
    if isinstance(values, np.ma.MaskedArray):
        objects: NDArray[Any] = np.asarray(values.data).astype(object)
        objects[np.ma.getmaskarray(values)] = None
        return objects
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(
            f"{where}: {what} is not a table of equally long rows ({error}); check the rows' lengths"
        ) from error
    mixed = array.dtype.kind in "US" and not isinstance(values, np.ndarray)
    return np.array(values, dtype=object) if mixed else array


def _aligned(where: str, rows: Raw, columns: tuple[str, ...]) -> Any:
    """The columns of a DataFrame brought into the common order; those of an array are only counted."""
    names = rows.names
    if names is None:
        if rows.X.shape[1] != len(columns):
            raise DataError(
                f"{where}: X has {rows.X.shape[1]} columns where {len(columns)} are expected "
                f"({_some(columns)}); give every site the same columns"
            )
        return rows.X
    check_names(where, names)
    _same_names(where, names, columns)
    return rows.X if names == columns else rows.X[:, [names.index(column) for column in columns]]


def _same_names(where: str, names: tuple[str, ...], columns: tuple[str, ...]) -> None:
    """Refuse a table that lacks a column or has one too many."""
    lacks = [column for column in columns if column not in names]
    extra = [column for column in names if column not in columns]
    if lacks or extra:
        parts = [f"lacks {_some(lacks)}"] * bool(lacks) + [f"has also {_some(extra)}"] * bool(extra)
        raise DataError(f"{where}: X {' and '.join(parts)}; give every site the same columns")


def check_names(where: str, names: tuple[str, ...]) -> None:
    """Refuse a table without columns, or with two of the same name."""
    if not names:
        raise DataError(f"{where}: X has no columns; give at least one")
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise DataError(
            f"{where}: column {_some(twice)} appears more than once; rename or drop the repetition"
        )


def _numbers(where: str, X: Any, columns: Sequence[str]) -> Matrix2D:
    """X in float64, or an error that names the first columns that are not finite numbers."""
    matrix = X if isinstance(X, Tall) else _dense_or_csr(where, X, columns)
    _check_finite(where, matrix, columns)
    return matrix


def _dense_or_csr(where: str, X: Any, columns: Sequence[str]) -> Matrix2D:
    """X in float64, or an error that names the first column that is not of real numbers."""
    sparse, kind = scipy.sparse.issparse(X), X.dtype.kind
    if kind == "O" and not sparse:
        X = _from_objects(where, X, columns)
    elif kind not in "biuf":
        found = _KINDS.get(kind, str(X.dtype))
        raise DataError(
            f"{where}, column {columns[_first(X)]!r}: X holds {found}, not real numbers; encode or drop it"
        )
    return X if sparse else _contiguous(X)


def _contiguous(X: NDArray[Any]) -> NDArray[np.float64]:
    """X in float64, row by row; numbers that are too large become infinite and are refused later."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(X, dtype=np.float64)


def _first(X: Any) -> int:
    """The first column that shows that X is not real: the first with an imaginary part, else column 0."""
    if X.dtype.kind != "c":
        return 0
    imaginary = _columns(X, (X.data if scipy.sparse.issparse(X) else X).imag != 0)
    return int(imaginary.min()) if imaginary.size else 0


def _columns(X: Any, chosen: NDArray[np.bool_]) -> NDArray[Any]:
    """The column of each chosen entry of X (of its stored entries if it is sparse)."""
    return np.asarray(X.indices[chosen] if scipy.sparse.issparse(X) else np.nonzero(chosen)[1])


def _check_finite(where: str, X: Matrix2D, columns: Sequence[str]) -> None:
    """Refuse NaN, infinity and huge numbers, naming the columns and the number of rows affected."""
    if isinstance(X, scipy.sparse.csr_array):
        width = len(columns)
        lost, huge = (np.bincount(X.indices[bad], minlength=width) for bad in _unusable(X.data))
    else:
        lost, huge = unusable(X)
    for rows, what in ((lost, "NaN or infinity"), (huge, f"numbers beyond {LARGEST:g}")):
        if rows.any():
            named = _some([columns[j] for j in np.flatnonzero(rows).tolist()], rows[rows > 0].tolist())
            remedy = "impute the values or drop those rows" if rows is lost else "change the unit"
            raise DataError(f"{where}: {what} in X, column {named}; {remedy}")


def unusable(X: NDArray[np.float64] | Tall) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """How many entries of each column are not finite, and how many are too large, block by block."""
    counts = np.zeros((2, X.shape[1]), dtype=np.intp)
    for _, block in (X if isinstance(X, Tall) else Tall(X)).blocks():
        if not (np.abs(block) <= LARGEST).all():
            counts += [bad.sum(axis=0) for bad in _unusable(block)]
    return counts[0], counts[1]


def _unusable(values: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which numbers are not finite, and which are finite but too large."""
    finite = np.isfinite(values)
    return ~finite, finite & (np.abs(values) > LARGEST)


def _from_objects(where: str, X: NDArray[Any], columns: Sequence[str]) -> NDArray[np.float64]:
    """The numbers in an array of objects, column by column; what is missing becomes NaN."""
    numbers_ = np.empty(X.shape)
    for j, column in enumerate(columns):
        numbers_[:, j] = [_number(where, column, value) for value in X[:, j]]
    return numbers_


def _number(where: str, column: str, value: object) -> float:
    """A real number as a float, NaN for a missing one; text is refused even if it looks like a number."""
    if missing(value):
        return float("nan")
    if isinstance(value, _REAL):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    raise DataError(
        f"{where}, column {column!r}: {value!r} ({type(value).__name__}) is not a real number; "
        "encode the column as numbers or drop it"
    )


def _labels(where: str, y: NDArray[Any]) -> NDArray[Any]:
    """The labels of a site as booleans, integers, floats or text, in value as given."""
    if survival.is_survival(y):
        return survival.checked(where, y)
    lost = _missing_labels(y)
    if lost:
        raise DataError(
            f"{where}: y is missing (NaN or None) in {_rows(lost)}; drop those rows or fill them in"
        )
    labels = _from_label_objects(where, y) if y.dtype.kind in "OT" else y
    if labels.dtype.kind not in "biufUS":
        found = _KINDS.get(labels.dtype.kind, str(labels.dtype))
        raise DataError(f"{where}: y holds {found}; labels are numbers or text, convert them")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise DataError(
            f"{where}: y is infinite in {_rows(int((~np.isfinite(labels)).sum()))}; drop those rows"
        )
    return np.array(labels.tolist()) if labels.dtype.kind in "US" else labels


def _missing_labels(y: NDArray[Any]) -> int:
    """How many labels are NaN or None."""
    if y.dtype.kind == "f":
        return int(np.isnan(y).sum())
    return sum(map(missing, y)) if y.dtype.kind in "OT" else 0


def _from_label_objects(where: str, y: NDArray[Any]) -> NDArray[Any]:
    """An array of objects as text or as numbers; a mixture of both is refused."""
    if all(isinstance(value, str) for value in y):
        return np.array([str(value) for value in y])
    if all(isinstance(value, _REAL) for value in y):
        return np.array([value if isinstance(value, numbers.Integral) else float(value) for value in y])
    types = sorted({type(value).__name__ for value in y})
    raise DataError(f"{where}: y mixes values of types {', '.join(types)}; use numbers only or text only")


def _rows(count: int) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} row{'s' if count != 1 else ''}"


def _some(names: Sequence[str], rows: Sequence[int] | None = None, most: int = 5) -> str:
    """The first few names, quoted, each with its number of rows if given."""
    counts = [f" ({_rows(count)})" for count in rows] if rows else [""] * len(names)
    shown = [f"{name!r}{count}" for name, count in zip(names, counts, strict=True)][:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
