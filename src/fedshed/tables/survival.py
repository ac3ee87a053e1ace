"""Times to an event: the response of a survival model, one record for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError

SURVIVAL = np.dtype(
    [("event", np.bool_), ("time", np.float64), ("entry", np.float64), ("stratum", np.intp)]
)  # entry is -inf where a row is at risk from the start; stratum is 0 where there are no strata


def is_survival(y: NDArray[Any]) -> bool:
    """Whether responses are records of times and events."""
    return y.dtype.names is not None


def survival(time: Any, event: Any, entry: Any = None, stratum: Any = None) -> NDArray[Any]:
    """Records of times and events, unchecked; rows of equal `stratum` share a baseline hazard."""
    y = np.zeros(len(time), dtype=SURVIVAL)
    y["time"], y["event"] = time, event
    y["entry"] = -np.inf if entry is None else entry
    y["stratum"] = 0 if stratum is None else stratum
    return y


def checked(where: str, y: NDArray[Any]) -> NDArray[Any]:
    """Records as `SURVIVAL` has them; those with other names are an event and a time, in this order."""
    names = y.dtype.names or ()
    unnamed = len(names) == 2 and not {"event", "time"} <= set(names)
    event, time = names if unnamed else ("event", "time")
    if not unnamed and not {"event", "time"} <= set(names):
        raise DataError(f"{where}: y has the fields {', '.join(names)}; give it the fields event and time")
    found = survival(
        _numbers(where, time, y[time]),
        _events(where, event, y[event]),
        _numbers(where, "entry", y["entry"], True) if "entry" in names else None,
        np.unique(y["stratum"], return_inverse=True)[1] if "stratum" in names else None,
    )
    for bad, found_in, rule in broken(found):
        if bad.any():
            raise DataError(
                f"{where}: {found_in} in {int(bad.sum())} of {len(y)} rows, but {rule}; correct or drop "
                "those rows"
            )
    return found


def broken(y: NDArray[Any]) -> tuple[tuple[NDArray[np.bool_], str, str], ...]:
    """The rules of times: the rows that break each, what is found there, and the rule."""
    return (
        (y["time"] < 0, "the time is negative", "a time must be at least 0"),
        (y["entry"] >= y["time"], "the entry is not before the time", "a row must enter before its time"),
    )


def _numbers(where: str, name: str, values: NDArray[Any], unbounded: bool = False) -> NDArray[np.float64]:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: the field {name!r} of y does not hold numbers; convert it")
    numbers: NDArray[np.float64] = values.astype(np.float64)
    bad = np.isnan(numbers) | (numbers == np.inf) | ((numbers == -np.inf) & (not unbounded))
    if bad.any():
        raise DataError(f"{where}: {name} is missing or infinite in {int(bad.sum())} rows; drop those rows")
    return numbers


def _events(where: str, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise DataError(f"{where}: {name} must be 0 or 1, or a boolean: 1 is an event, 0 is censored")
    return np.asarray(values == 1)
