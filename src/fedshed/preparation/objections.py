"""Objections to tables and studies, collected so that a user reads all of them together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from fedshed._utils.errors import ConfigError, DataError, QuotingError

P = ParamSpec("P")
R = TypeVar("R")
_MOST = 30  # that are printed together
_QUOTED_OR_NUMBER = re.compile(r"('[^']*'|\"[^\"]*\")|\d+")


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

    @property
    def found(self) -> bool:
        """Whether a check has objected."""
        return bool(self._found)

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


def by_sentence(said: Iterable[tuple[str, str]]) -> list[tuple[list[str], str]]:
    """The sites that say each sentence; of sentences that differ in counts only, the first site's stands."""
    found: dict[str, tuple[list[str], str]] = {}
    for site, sentence in said:
        alike = _QUOTED_OR_NUMBER.sub(lambda part: part[1] or "#", sentence)
        found.setdefault(alike, ([], sentence))[0].append(site)
    return list(found.values())


def in_short(sites: Sequence[str]) -> str:
    """Sites, as the subject of a sentence."""
    return f"site {sites[0]!r}{f' and {len(sites) - 1} more' if len(sites) > 1 else ''}"


def _together(sentences: list[str]) -> str:
    more = [f"and {len(sentences) - _MOST} more"] if len(sentences) > _MOST else []
    return "\n".join([*sentences[:_MOST], *more])
