"""A user's algorithm, named by its file: `my.py:DiagonalNewton`."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.algorithms.base import Algorithm, AnyAlgorithm


def is_in_file(name: str) -> bool:
    """Whether a name consists of a file and a name in it."""
    return ".py:" in name


def load_algorithm(name: str) -> AnyAlgorithm:
    """The algorithm `FILE.py:NAME`, NAME being a class that needs no arguments, or an instance.

    The file is executed: name only files that you trust.
    """
    path, _, what = name.rpartition(":")
    module = _module(Path(path))
    found = getattr(module, what, None)
    known = [
        each
        for each, value in vars(module).items()
        if _is_algorithm(value) and getattr(value, "__module__", module.__name__) == module.__name__
    ]
    if not _is_algorithm(found):
        raise ConfigError(f"{path} has no algorithm {what!r}{closest(what, known)}")
    if not isinstance(found, type):
        return cast(AnyAlgorithm, found)
    try:
        return cast(AnyAlgorithm, found())
    except TypeError as error:
        raise ConfigError(
            f"{name} needs arguments ({error}); create an instance in {path} and name the instance"
        ) from None


def _is_algorithm(value: Any) -> bool:
    return isinstance(value, Algorithm) or (isinstance(value, type) and issubclass(value, Algorithm))


def _module(path: Path) -> ModuleType:
    """The file as a module with a unique name, where msgspec looks up annotations."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    name = f"fedshed_user_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))  # it may import what lies beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module
