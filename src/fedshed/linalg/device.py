"""Devices on which batches of arrays live, of libraries that keep to the array API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.arrays import Host
from fedshed.errors import ConfigError
from fedshed.names import closest


class Device(Host):
    """A namespace of the array API and one of its devices; numbers there are float64, as everywhere."""

    def __init__(self, xp: Any, place: Any, to_host: Callable[[Any], NDArray[np.float64]]) -> None:
        self.xp, self._place, self._to_host = xp, place, to_host

    def asarray(self, x: NDArray[Any]) -> Any:
        """A copy of an array on the device."""
        return self.xp.asarray(np.ascontiguousarray(x), dtype=self.xp.float64, device=self._place, copy=True)

    def host(self, x: Any) -> NDArray[np.float64]:
        """An array of the device as one of NumPy's."""
        return self._to_host(x)


class _Library(Struct, frozen=True):
    """How a library names its devices, and how its arrays come back."""

    place: Callable[[Any, str], Any]
    to_host: Callable[[Any], NDArray[np.float64]]


def device_named(name: str) -> Device:
    """A device by the name of its library and, after a colon, the library's own name for it: "torch:cuda"."""
    library, _, place = name.partition(":") if isinstance(name, str) else ("", "", "")
    if library not in LIBRARIES:
        raise ConfigError(f"unknown device {name!r}{closest(library, LIBRARIES)}; such as 'torch:cuda'")
    if missing := [needed for needed in ("array_api_compat", library) if find_spec(needed) is None]:
        remedy = "pip install 'fedshed[gpu]'" if library == "torch" else f"pip install {' '.join(missing)}"
        raise ConfigError(f"device {name!r} needs {' and '.join(missing)}: {remedy}")
    known, xp = LIBRARIES[library], _namespace(library)
    try:
        device = Device(xp, known.place(xp, place) if place else None, known.to_host)
        device.host(device.asarray(np.ones(1)))
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot hold float64 numbers here: {error}") from error
    return device


def _namespace(library: str) -> Any:
    """The array API of a library: its own, or array_api_compat's wrapper."""
    wrapped = find_spec(f"array_api_compat.{library}") is not None
    return import_module(f"array_api_compat.{library}" if wrapped else library)


def _from_strict(x: Any) -> NDArray[np.float64]:
    from array_api_strict import Device as StrictDevice

    return np.asarray(x.to_device(StrictDevice("CPU_DEVICE")))


LIBRARIES: Mapping[str, _Library] = {
    "torch": _Library(lambda xp, place: place, lambda x: np.asarray(x.cpu().numpy())),
    "array_api_strict": _Library(lambda xp, place: xp.Device(place), _from_strict),
}
