"""What the Master has had to do with each site, counted for all sites at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.protocol.conversation import AgentId


class Contact(Struct, frozen=True):
    """What the Master has had to do with one site so far."""

    last: int = 0  # the exchange it last answered
    silent: int = 0  # exchanges in a row without a usable answer
    refused: int = 0  # answers that could not be used
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    why: str = ""  # why its last answer could not be used, if it has not answered since


class Contacts:
    """One row of numbers for each site, in the order of their names."""

    def __init__(self, agents: Sequence[AgentId], before: Mapping[AgentId, Contact]) -> None:
        self._place, self._everyone = {i: place for place, i in enumerate(agents)}, list(agents)
        self._all = np.arange(len(agents))
        old = [before.get(i, Contact()) for i in agents]
        self._last, self._refused, self._up, self._down = (
            np.array([getattr(contact, name) for contact in old], dtype=np.int64)
            for name in ("last", "refused", "uplink_bytes", "downlink_bytes")
        )
        self._silent = np.zeros(len(old), dtype=np.int64)
        self._why = {i: contact.why for i, contact in zip(agents, old, strict=True) if contact.why}

    def places(self, agents: Iterable[AgentId]) -> NDArray[np.intp]:
        """Where sites are in the arrays."""
        some = list(agents)
        return (
            self._all if some == self._everyone else np.array([self._place[i] for i in some], dtype=np.intp)
        )

    def refuse(self, agent: AgentId, why: str) -> None:
        """One more answer that could not be used."""
        self._refused[self._place[agent]] += 1
        self._why[agent] = why

    def receive(self, agents: Sequence[AgentId], sizes: Sequence[int]) -> None:
        """Bytes that came; from some sites perhaps twice."""
        np.add.at(self._up, self.places(agents), np.array(sizes, dtype=np.int64))

    def ask(
        self, number: int, agents: Sequence[AgentId], sizes: Sequence[int], usable: Iterable[AgentId]
    ) -> None:
        """An exchange: what was sent to each of these sites, and who gave a usable answer."""
        asked, heard = self.places(agents), self.places(usable)
        self._down[asked] += np.array(sizes, dtype=np.int64)
        self._silent[asked] += 1
        self._silent[heard], self._last[heard] = 0, number
        for i in [i for i in self._why if self._last[self._place[i]] == number]:
            del self._why[i]

    def lost(self, agents: Sequence[AgentId], patience: int) -> list[AgentId]:
        """Those of the sites that have been silent for too long."""
        late = self._silent[self.places(agents)] >= patience
        return [agents[k] for k in np.flatnonzero(late).tolist()]

    def of(self, agent: AgentId) -> Contact:
        """What is known of one site."""
        return self._contacts([agent])[0]

    def all(self) -> dict[AgentId, Contact]:
        """What is known of each site."""
        return dict(zip(self._place, self._contacts(list(self._place)), strict=True))

    def _contacts(self, agents: list[AgentId]) -> list[Contact]:
        rows, why = self.places(agents), [self._why.get(i, "") for i in agents]
        counts = (x[rows].tolist() for x in (self._last, self._silent, self._refused, self._up, self._down))
        return list(map(Contact, *counts, why))
