"""How precisely an agent's arrays travel: a parameter that every algorithm has, so that comparisons are fair.

Costs, eigenvalues and other scalars always travel in full.  A lossy gradient has the accuracy that the
Master asked for, a fraction of the last gradient norm, so its error vanishes as the run converges; before
convergence is declared, gradients are asked for once more, exactly.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import CodecError, ConfigError
from fedshed.linalg.arrays import pack, unpack
from fedshed.protocol.coded import code_rows
from fedshed.protocol.quantize import decode_rows, decode_steps, encode_rows, encode_steps

Array: TypeAlias = NDArray[np.float64]


class Exact(Struct, frozen=True, tag=True):
    """Arrays travel as float64 numbers, without rounding.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.Exact().lossy
    False
    """

    lossy: ClassVar[bool] = False

    def accuracy(self, norms: tuple[float, ...], n: int) -> float:
        """0: nothing is rounded."""
        return 0.0

    def encode(self, kind: str, array: Array, accuracy: float) -> bytes:
        """This method is not used: the codec encodes exact arrays."""
        raise NotImplementedError

    def decode(self, kind: str, raw: bytes, n: int) -> Array:
        """This method is not used: the codec decodes exact arrays."""
        raise NotImplementedError

    def code(self, kind: str, arrays: Array, accuracy: float) -> tuple[list[bytes], Array]:
        """This method is not used: the codec encodes exact arrays."""
        raise NotImplementedError


class _Lossy(Struct, frozen=True, kw_only=True):
    """Gradients in steps of `gradient` times the last gradient norm per entry; other vectors in float32."""

    gradient: float = 0.1
    lossy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.gradient < 10:
            raise ConfigError(f"gradient must be at least 0 and below 10, not {self.gradient}")

    def accuracy(self, norms: tuple[float, ...], n: int) -> float:
        """The rounding step of a gradient's entries; at the start a negative share of the agent's norm."""
        return self.gradient * norms[-1] / n**0.5 if norms else -self.gradient

    def encode(self, kind: str, array: Array, accuracy: float) -> bytes:
        """The bytes of an array of this kind."""
        if kind == "gradient":
            return self._encode_gradient(array, accuracy)
        if kind == "vector":
            return array.astype("<f4").tobytes()
        return self.encode_rows(array) if kind == "matrix" else self._encode_packed(array)

    def decode(self, kind: str, raw: bytes, n: int) -> Array:
        """The array as the Master sees it: of the shape that n says, and finite."""
        if kind == "gradient":
            return self._decode_gradient(raw, n)
        if kind == "vector":
            if len(raw) != 4 * n:
                raise CodecError(f"{len(raw)} bytes are not a float32 vector of {n} entries")
            return _finite(np.frombuffer(raw, "<f4"))
        if kind == "packed":
            return self._decode_packed(raw, n)
        if _count(raw) > n:
            raise CodecError(f"{_count(raw)} coded rows are more than R^{n} has directions")
        return self.decode_rows(raw, n)

    def code(self, kind: str, arrays: Array, accuracy: float) -> tuple[list[bytes], Array]:
        """The bytes of each agent's array of this kind, by `encode`, and the arrays by `decode`."""
        if kind == "gradient":
            return self._code_gradients(arrays, accuracy)
        return self.code_matrices(arrays) if kind == "matrix" else self._code_each(kind, arrays, accuracy)

    def code_matrices(self, matrices: Array) -> tuple[list[bytes], Array]:
        """The same of eigenvectors."""
        return self._code_each("matrix", matrices, 0.0)

    def _code_each(self, kind: str, arrays: Array, accuracy: float) -> tuple[list[bytes], Array]:
        """One after the other."""
        size = arrays.shape[-1]
        n = int((2 * size) ** 0.5) if kind == "packed" else size
        coded = [self.encode(kind, array, accuracy) for array in arrays]
        return coded, np.stack([self.decode(kind, raw, n) for raw in coded])

    def _encode_packed(self, packed: Array) -> bytes:
        """H = D (W + E) D with a unit diagonal in W: D and the largest eigenvalue of E in float32, W coded.

        So the rounded Hessian D (W + ||E||) D is an upper bound of H, as SHED's is, in whatever units.
        """
        n = int((2 * len(packed)) ** 0.5)
        H = unpack(packed, n)
        d = np.sqrt(np.maximum(np.diag(H), 0.0)).astype("<f4").astype(float)
        scale = np.where(d > 0, d, 1.0)
        W = H / scale / scale[:, None]
        rows = self.encode_rows(pack(W)[None, :])
        error = np.linalg.eigvalsh(W - unpack(self.decode_rows(rows, len(packed)).ravel(), n))[-1]
        head = np.append(max(error, 0.0) * (1 + 1e-6), d).astype("<f4").tobytes()
        return head + rows

    def _decode_packed(self, raw: bytes, n: int) -> Array:
        if len(raw) < 4 * (n + 1):
            raise CodecError("a packed matrix is cut off")
        head, rows = _finite(np.frombuffer(raw, "<f4", n + 1)), raw[4 * (n + 1) :]
        if head.min() < 0 or _count(rows) != 1:
            raise CodecError("a packed matrix has negative scales, or is not one row")
        packed, d = self.decode_rows(rows, n * (n + 1) // 2).ravel(), head[1:]
        packed += 0.0  # no entry is -0
        at = 0
        for i in range(n):  # row by row of the upper triangle: no n x n matrix is needed
            row = packed[at : at + n - i]
            row[0] += head[0]
            row *= d[i] * d[i:]
            at += n - i
        return packed

    def encode_rows(self, rows: Array) -> bytes:
        """A count of rows, and each in few bits."""
        raise NotImplementedError

    def decode_rows(self, raw: bytes, n: int) -> Array:
        """Rows of n entries each."""
        raise NotImplementedError

    def _encode_gradient(self, g: Array, accuracy: float) -> bytes:
        accuracy = _step_of(g, accuracy)
        if not _in_steps(accuracy, np.abs(g).max(initial=0.0)):
            return b"\0" + g.astype("<f8").tobytes()
        return b"\1" + encode_steps(g, accuracy)

    def _code_gradients(self, G: Array, accuracy: float) -> tuple[list[bytes], Array]:
        """The rows by `_encode_gradient`, all quantised in one pass, and as they are decoded."""
        steps = [accuracy] * len(G) if accuracy >= 0 else [_step_of(g, accuracy) for g in G]
        if not all(map(_in_steps, steps, np.abs(G).max(axis=1, initial=0.0).tolist())):
            return self._code_each("gradient", G, accuracy)
        coded, seen = code_rows(G, steps)
        return [b"\1" + data for data in coded], seen

    def _decode_gradient(self, raw: bytes, n: int) -> Array:
        if raw[:1] == b"\1":
            return decode_steps(raw[1:], n)
        if raw[:1] != b"\0" or len(raw) != 1 + 8 * n:
            raise CodecError(f"{len(raw)} bytes are not a coded gradient of {n} entries")
        return _finite(np.frombuffer(raw[1:], "<f8"))


class Bits(_Lossy, frozen=True, tag=True):
    """Eigenvectors and Hessians travel with a fixed number of bits per entry and one scale per row.

    Parameters
    ----------
    bits : int, default 8
        The number of bits per entry, from 1 to 16.
    gradient : float
        The rounding step of gradients, as a share of the last gradient norm; with 0 they travel as float64.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> exact, coded = (
    ...     fedshed.optimize(federation, l2=1e-2, algorithm="newton", precision=precision)
    ...     for precision in (fedshed.Exact(), fedshed.Bits(bits=8))
    ... )
    >>> coded.converged, coded.trace[-1].uplink_bytes < exact.trace[-1].uplink_bytes / 3
    (True, True)
    """

    bits: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.bits <= 16:
            raise ConfigError(f"bits must be 1 to 16, not {self.bits}")

    def encode_rows(self, rows: Array) -> bytes:
        """Levels of a fixed number of bits."""
        return len(rows).to_bytes(4, "little") + encode_rows(rows, np.full(len(rows), self.bits))

    def decode_rows(self, raw: bytes, n: int) -> Array:
        """Rows of n entries each."""
        return decode_rows(raw[4:], _count(raw), n)


class EntropyCoded(_Lossy, frozen=True, tag=True):
    """Eigenvectors and Hessians travel in uniform steps, entropy coded.

    With equal steps on rows of unequal size this is reverse water-filling: small entries get fewer bits.

    Parameters
    ----------
    step : float
        The rounding step in units of the root mean square of the entries, from 1e-6 to 10.
    gradient : float
        The rounding step of gradients, as a share of the last gradient norm; with 0 they travel as float64.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> result = fedshed.optimize(federation, l2=1e-2, algorithm="newton", precision=fedshed.EntropyCoded())
    >>> result.converged
    True
    """

    step: float = 0.35

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-6 <= self.step < 10:
            raise ConfigError(f"step must be at least 1e-6 and below 10, not {self.step}")

    def encode_rows(self, rows: Array) -> bytes:
        """One stream for all rows."""
        step = self._step(float(np.square(rows).sum()), rows.size)
        return len(rows).to_bytes(4, "little") + encode_steps(rows.ravel(), step)

    def code_matrices(self, matrices: Array) -> tuple[list[bytes], Array]:
        """The matrices by `encode_rows`, all quantised in one pass, and as they are decoded."""
        count, rows, n = matrices.shape
        flat = matrices.reshape(count, rows * n)
        steps = [self._step(square, rows * n) for square in np.square(flat).sum(axis=1).tolist()]
        coded, seen = code_rows(flat, steps)
        head = rows.to_bytes(4, "little")
        return [head + data for data in coded], seen.reshape(matrices.shape)

    def _step(self, square: float, size: int) -> float:
        """The rounding step, as a multiple of the root mean square."""
        return max(self.step * (sqrt(square / size) if size else 0.0), 1e-30)

    def decode_rows(self, raw: bytes, n: int) -> Array:
        """Rows of n entries each."""
        count = _count(raw)
        return decode_steps(raw[4:], count * n).reshape(count, n)


class Differences(EntropyCoded, frozen=True, tag=True):
    """Coding in both directions: agents send differences of gradients, and the Master sends directions.

    It is for `lbfgs` and `qn-shed`. Eigenvectors and Hessians travel as with `EntropyCoded`.

    Parameters
    ----------
    step : float
        As for `EntropyCoded`.
    direction : float
        The Master rounds a direction d to d + e such that e'He is at most the square of this share times
        |g'd|, where H is its estimate of the curvature. It is at least 0 and below 1; with 0 directions
        travel as float64.
    gradient : float
        As for `EntropyCoded`, in units of the curvature's diagonal.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> exact, coded = (
    ...     fedshed.optimize(federation, l2=1e-2, algorithm="lbfgs", precision=precision)
    ...     for precision in (fedshed.Exact(), fedshed.Differences())
    ... )
    >>> coded.converged, coded.trace[-1].downlink_bytes < exact.trace[-1].downlink_bytes / 4
    (True, True)
    """

    direction: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.direction < 1:
            raise ConfigError(f"direction must be at least 0 and below 1, not {self.direction}")


def _step_of(g: Array, accuracy: float) -> float:
    """The step of a gradient's entries: as asked for, or a share of its own norm."""
    return accuracy if accuracy >= 0 else -accuracy * float(np.linalg.norm(g)) / len(g) ** 0.5


def _in_steps(step: float, largest: float) -> bool:
    """Whether numbers up to this magnitude can be sent in such steps."""
    return 1e-30 < step < 1e30 and largest < step * 2**30


def _finite(numbers: NDArray[Any]) -> Array:
    """The numbers in float64; to cast a NaN would warn."""
    if not np.isfinite(numbers).all():
        raise CodecError("an array holds NaN or infinity")
    return numbers.astype(float, copy=False)


def _count(raw: bytes) -> int:
    if len(raw) < 4:
        raise CodecError("coded rows have no count")
    count = int.from_bytes(raw[:4], "little")
    if count > 1 << 20:
        raise CodecError(f"{count} coded rows are too many")
    return count


Precision: TypeAlias = Exact | Bits | EntropyCoded | Differences
