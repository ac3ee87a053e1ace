"""When a site whose call failed is asked again: after pauses that grow, until the exchange's deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable

FIRST, LONGEST, GROWTH = 0.2, 10.0, 2.0  # seconds of the first and of the longest pause, and their ratio


class Backoff:
    """The sites of one exchange that have still to be asked, each with the time of its next call.

    An engine reports at once that a site is away.  A pause before the next call keeps the meaning of
    patience: a site may be away for about patience times the deadline, however fast its calls fail.
    """

    def __init__(self, sites: Iterable[str], seconds: float) -> None:
        now = time.monotonic()
        self._until = now + seconds
        self._next = dict.fromkeys(sites, now)
        self._pauses = dict.fromkeys(self._next, FIRST)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._until - time.monotonic())

    @property
    def open(self) -> bool:
        """Whether there is a site to be asked again, and time to wait for it."""
        return bool(self._next) and self.left > 0

    def due(self) -> list[str]:
        """The sites to be asked now; each is forgotten until its call has `failed`."""
        now = time.monotonic()
        sites = [site for site, when in self._next.items() if when <= now < self._until]
        for site in sites:
            del self._next[site]
        return sites

    def failed(self, site: str) -> None:
        """Ask this site again after its pause."""
        self._next[site] = time.monotonic() + self._pauses[site]
        self._pauses[site] = min(LONGEST, GROWTH * self._pauses[site])

    def seconds(self) -> float:
        """How many seconds nothing has to be done."""
        soonest = min(self._next.values(), default=self._until)
        return max(0.0, min(soonest, self._until) - time.monotonic())
