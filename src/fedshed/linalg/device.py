"""Devices on which batches of arrays live, of libraries that keep to the array API."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.linalg.arrays import Host


class Library(Struct, frozen=True):
    """How a library names its devices, how its arrays come back, and how it finds eigenpairs."""

    place: Callable[[Any, str], Any]
    to_host: Callable[[Any], NDArray[np.float64]]
    eigenpairs: Callable[[Any, Any], tuple[Any, Any]]


class Device(Host):
    """A namespace of the array API and one of its devices; numbers there are float64, as everywhere."""

    def __init__(self, xp: Any, library: Library, place: Any) -> None:
        self.xp, self._library, self._place = xp, library, place

    def asarray(self, x: NDArray[Any]) -> Any:
        """A copy of an array on the device."""
        return self.xp.asarray(np.ascontiguousarray(x), dtype=self.xp.float64, device=self._place, copy=True)

    def host(self, x: Any) -> NDArray[np.float64]:
        """An array of the device as one of NumPy's."""
        return self._library.to_host(x)

    def eigenpairs(self, S: Any) -> tuple[Any, Any]:
        """Falling eigenvalues of many matrices S >= 0, and their eigenvectors as rows."""
        return self._library.eigenpairs(self.xp, S)


def device_named(name: str) -> Device:
    """A device by the name of its library and, after a colon, the library's name for it: "torch:cuda"."""
    library, _, place = name.partition(":") if isinstance(name, str) else ("", "", "")
    if library not in LIBRARIES:
        raise ConfigError(
            f"unknown device {name!r}{closest(library, LIBRARIES)}; write for example 'torch:cuda'"
        )
    if missing := [needed for needed in ("array_api_compat", library) if find_spec(needed) is None]:
        remedy = "pip install 'fedshed[gpu]'" if library == "torch" else f"pip install {' '.join(missing)}"
        raise ConfigError(f"device {name!r} needs {' and '.join(missing)}: {remedy}")
    known, xp = LIBRARIES[library], _namespace(library)
    try:
        device = Device(xp, known, known.place(xp, place) if place else None)
        device.host(device.asarray(np.ones(1)))
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot hold float64 numbers here: {error}") from error
    return device


def _namespace(library: str) -> Any:
    """The array API of a library: its own, or array_api_compat's wrapper."""
    wrapped = find_spec(f"array_api_compat.{library}") is not None
    return import_module(f"array_api_compat.{library}" if wrapped else library)


def by_eigh(xp: Any, S: Any) -> tuple[Any, Any]:
    """Eigenpairs by the library's own routine."""
    values, columns = xp.linalg.eigh(S)
    return xp.flip(values, axis=-1), xp.flip(xp.matrix_transpose(columns), axis=-2)


def by_svd(xp: Any, S: Any, **options: Any) -> tuple[Any, Any]:
    """Eigenpairs by the singular values s of the Cholesky factor of S/c + d I: c (s^2 - d), to S's rounding.

    With c the largest entry of S and a small d it has full rank and bounded condition, which drivers need.
    """
    c = xp.max(xp.abs(S), axis=(1, 2), keepdims=True)
    unit = xp.eye(S.shape[1], dtype=S.dtype, device=S.device)
    L = xp.linalg.cholesky(S / xp.where(c > 0, c, 1.0) + SHIFT * unit)
    _, s, rows = xp.linalg.svd(xp.matrix_transpose(L), full_matrices=False, **options)
    return c[:, :, 0] * (s * s - SHIFT), rows


def _by_torch(xp: Any, S: Any) -> tuple[Any, Any]:
    """Beyond 32 columns torch's `eigh` takes one matrix after the other on CUDA, this SVD all at once."""
    if S.device.type == "cuda" and S.shape[1] > 32 and xp.version.cuda:
        return by_svd(xp, S, driver="gesvda")
    return by_eigh(xp, S)


def _from_strict(x: Any) -> NDArray[np.float64]:
    from array_api_strict import Device as StrictDevice

    return np.asarray(x.to_device(StrictDevice("CPU_DEVICE")))


SHIFT = 1e-5  # far above rounding, far below the largest eigenvalue
LIBRARIES = {
    "torch": Library(lambda xp, place: place, lambda x: np.asarray(x.cpu().numpy()), _by_torch),
    "array_api_strict": Library(lambda xp, place: xp.Device(place), _from_strict, by_eigh),
}
