"""How precisely an agent's arrays travel: one parameter of any algorithm, the same chance for all of them.

Costs, eigenvalues and other scalars always travel in full.  A lossy gradient has the accuracy that the
Master asked for, a fraction of the last gradient norm, so its error vanishes as the run converges; before
convergence is declared gradients are asked for once more, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import CodecError, ConfigError
from fedshed.linalg.arrays import pack, unpack
from fedshed.protocol.coded import decode_known, encode_all, encode_known
from fedshed.protocol.quantize import decode_rows, encode_rows

Array: TypeAlias = NDArray[np.float64]


class Exact(Struct, frozen=True, tag=True):
    """Arrays travel in float64.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.Exact().lossy
    False
    """

    lossy: ClassVar[bool] = False

    def accuracy(self, norms: tuple[float, ...], n: int) -> float:
        """Nothing is rounded."""
        return 0.0

    def encode(self, kind: str, array: Array, accuracy: float) -> bytes:
        """Not used: exact arrays are encoded by the codec."""
        raise NotImplementedError

    def decode(self, kind: str, raw: bytes, n: int, last: bool = True) -> Array:
        """Not used: exact arrays are decoded by the codec."""
        raise NotImplementedError

    def encode_together(self, kind: str, values: Sequence[Array], accuracy: float) -> list[bytes]:
        """Not used: exact arrays are encoded by the codec."""
        raise NotImplementedError


class _Lossy(Struct, frozen=True, kw_only=True):
    """Gradients in steps of `gradient` times the last gradient norm per entry; other vectors in float32."""

    gradient: float = 0.1
    lossy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.gradient < 10:
            raise ConfigError(f"gradient must be at least 0 and below 10, not {self.gradient}")

    def accuracy(self, norms: tuple[float, ...], n: int) -> float:
        """The step of a gradient's entries; negative at the start: a fraction of the agent's own norm."""
        return self.gradient * norms[-1] / n**0.5 if norms else -self.gradient

    def encode(self, kind: str, array: Array, accuracy: float) -> bytes:
        """The bytes of an array of this kind."""
        if kind == "gradient":
            return self._encode_gradient(array, accuracy)
        if kind == "vector":
            return array.astype("<f4").tobytes()
        return self.encode_rows(array) if kind == "matrix" else self._encode_packed(array)

    def decode(self, kind: str, raw: bytes, n: int, last: bool = True) -> Array:
        """The array as the Master sees it: of the shape that n says, and finite.

        A gradient that this process will read again is not read for the `last` time.
        """
        if kind == "gradient":
            return self._decode_gradient(raw, n, last)
        if kind == "vector":
            if len(raw) != 4 * n:
                raise CodecError(f"{len(raw)} bytes are not a float32 vector of {n} entries")
            return _finite(np.frombuffer(raw, "<f4"))
        if kind == "packed":
            return self._decode_packed(raw, n)
        if _count(raw) > n:
            raise CodecError(f"{_count(raw)} coded rows are more than R^{n} has directions")
        return self.decode_rows(raw, n)

    def encode_together(self, kind: str, values: Sequence[Array], accuracy: float) -> list[bytes]:
        """The bytes of each agent's array of this kind, as `encode` makes them; arrays alike in one pass."""
        alike = len({value.shape for value in values}) == 1 and all(v.flags.c_contiguous for v in values)
        if alike and kind == "gradient":
            return self._gradients_together(np.stack(values), accuracy)
        if alike and kind == "matrix":
            return self.matrices_together(np.stack(values))
        return [self.encode(kind, value, accuracy) for value in values]

    def matrices_together(self, matrices: Array) -> list[bytes]:
        """The bytes of each matrix by `encode_rows`."""
        return [self.encode_rows(rows) for rows in matrices]

    def decode_together(self, kind: str, raws: Sequence[bytes], n: int) -> list[Array]:
        """Each agent's array as the Master sees it, as `decode` makes it."""
        return [self.decode(kind, raw, n) for raw in raws]

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
        return b"\1" + encode_known(g, accuracy)

    def _gradients_together(self, G: Array, accuracy: float) -> list[bytes]:
        """The bytes of each row by `_encode_gradient`."""
        steps = [_step_of(g, accuracy) for g in G]
        if not all(map(_in_steps, steps, np.abs(G).max(axis=1, initial=0.0).tolist())):
            return [self._encode_gradient(g, accuracy) for g in G]
        return [b"\1" + coded for coded in encode_all(G, steps)]

    def _decode_gradient(self, raw: bytes, n: int, last: bool) -> Array:
        if raw[:1] == b"\1":
            return decode_known(raw[1:], n, last)
        if raw[:1] != b"\0" or len(raw) != 1 + 8 * n:
            raise CodecError(f"{len(raw)} bytes are not a coded gradient of {n} entries")
        return _finite(np.frombuffer(raw[1:], "<f8"))


class Bits(_Lossy, frozen=True, tag=True):
    """Eigenvectors and Hessians in so many bits per entry, with one scale per row.

    Parameters
    ----------
    bits : int
        From 1 to 16.
    gradient : float
        Gradients come in steps of this share of the last gradient norm; 0: in float64.

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
    """Eigenvectors and Hessians in uniform steps of `step` times their root mean square, entropy coded.

    With equal steps on rows of unequal size this is reverse water-filling: small entries get fewer bits.

    Parameters
    ----------
    step : float
        In units of the root mean square, from 1e-6 to 10.
    gradient : float
        Gradients come in steps of this share of the last gradient norm; 0: in float64.

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
        return len(rows).to_bytes(4, "little") + encode_known(rows.ravel(), step)

    def matrices_together(self, matrices: Array) -> list[bytes]:
        """The bytes of each matrix by `encode_rows`, all quantised in one pass."""
        count, rows, n = matrices.shape
        flat = matrices.reshape(count, rows * n)
        steps = [self._step(square, rows * n) for square in np.square(flat).sum(axis=1).tolist()]
        return [rows.to_bytes(4, "little") + coded for coded in encode_all(flat, steps)]

    def _step(self, square: float, size: int) -> float:
        """So many root mean squares."""
        return max(self.step * (sqrt(square / size) if size else 0.0), 1e-30)

    def decode_rows(self, raw: bytes, n: int) -> Array:
        """Rows of n entries each."""
        count = _count(raw)
        return decode_known(raw[4:], count * n).reshape(count, n)


class Differences(EntropyCoded, frozen=True, tag=True):
    """Coded both ways: gradients as differences from the agent's last one, directions instead of theta.

    For `lbfgs` and `qn-shed`. Eigenvectors and Hessians travel as with `EntropyCoded`.

    Parameters
    ----------
    step : float
        As for `EntropyCoded`.
    direction : float
        The Master rounds a direction d to d + e with e'He at most this share, squared, of |g'd|, where H is
        its estimate of the curvature; below 1, and 0: directions travel in float64.
    gradient : float
        As for `EntropyCoded`, in units of the curvature's diagonal.

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
