"""The fields of a study as plain data: NumPy values and sequences of any type are taken, others refused."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError


def plain_fields(study: Struct) -> dict[str, Any]:
    """The fields whose values another type must stand for; ConfigError for a value that no type can."""
    changed = {}
    for name, kind in _kinds(type(study)).items():
        given = getattr(study, name)
        if isinstance(given, str) and _is_list(kind):
            raise ConfigError(f"{name} is a list, not text; write {name} = [{given!r}]")
        if isinstance(given, set | frozenset):
            raise ConfigError(f"{name} is a set, which has no order; give a list")
        value = _plain(given)
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{name} cannot be {value!r}: {error}") from None
        if value is not given:
            changed[name] = value
    return changed


@cache
def _kinds(study: type[Struct]) -> dict[str, Any]:
    hints = get_type_hints(study)
    return {name: hints[name] for name in study.__struct_fields__}


def _is_list(kind: Any) -> bool:
    """Whether a field holds a tuple and no text."""
    options = get_args(kind) if get_origin(kind) is not tuple else (kind,)
    return any(get_origin(option) is tuple for option in options) and str not in options


def _plain(value: Any) -> Any:
    """The same value without types of NumPy, pandas or polars; the value itself if it has none."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        pairs = {_plain(key): _plain(each) for key, each in value.items()}
        same = all(a is b and c is d for (a, c), (b, d) in zip(value.items(), pairs.items(), strict=True))
        return value if same and type(value) is dict else pairs
    if isinstance(value, tuple):
        parts = tuple(map(_plain, value))
        return value if all(a is b for a, b in zip(value, parts, strict=True)) else parts
    if isinstance(value, list | range):
        return tuple(map(_plain, value))
    if hasattr(value, "tolist") or hasattr(value, "to_list"):  # an array, an Index or a Series
        listed = value.tolist() if hasattr(value, "tolist") else value.to_list()
        return tuple(map(_plain, listed)) if isinstance(listed, list) else listed
    return value
