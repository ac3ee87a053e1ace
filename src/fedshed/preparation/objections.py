"""Objections to tables and studies, collected so that a user reads all of them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fedshed._utils.errors import ConfigError, DataError, QuotingError

P = ParamSpec("P")
R = TypeVar("R")
_MOST = 30  # that are printed together


class Objections:
    """What checks found wrong so far."""

    def __init__(self) -> None:
        self._found: dict[str, DataError | ConfigError] = {}

    def check(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """What the function returns, or None if it objects."""
        try:
            return function(*args, **kwargs)
        except (DataError, ConfigError) as error:
            self._found.setdefault(str(error), error)
            return None

    def raise_all(self) -> None:
        """Raise what was found: a single error as it is, several in one with a line for each."""
        errors = list(self._found.values())
        if len(errors) == 1:
            raise errors[0]
        if any(isinstance(error, QuotingError) for error in errors):
            told = [error.told if isinstance(error, QuotingError) else str(error) for error in errors]
            raise QuotingError(_together([str(error) for error in errors]), _together(told))
        if errors:
            kind = ConfigError if all(isinstance(error, ConfigError) for error in errors) else DataError
            raise kind(_together([str(error) for error in errors]))


def _together(sentences: list[str]) -> str:
    more = [f"and {len(sentences) - _MOST} more"] if len(sentences) > _MOST else []
    return "\n".join([*sentences[:_MOST], *more])
