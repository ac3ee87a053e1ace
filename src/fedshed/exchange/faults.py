"""Transports that misbehave, to test what the protocol promises: nothing lost, nothing counted twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedshed.exchange.inprocess import InProcess


class Faulty:
    """Loses, delays and repeats replies and lets agents forget, each with its own probability.

    What happens in exchange k depends on (seed, k) only; nothing happens from exchange `quiet_after` on.
    """

    def __init__(
        self,
        inner: InProcess,
        *,
        seed: int = 0,
        lose: float = 0.0,
        delay: float = 0.0,
        repeat: float = 0.0,
        forget: float = 0.0,
        quiet_after: int | None = None,
    ) -> None:
        self._inner, self._seed, self._quiet_after = inner, seed, quiet_after
        self.stateless = inner.stateless
        self._odds = {"lose": lose, "delay": delay, "repeat": repeat, "forget": forget}
        self._count = 0
        self._late: list[tuple[str, bytes]] = []
        self.happened: dict[str, int] = dict.fromkeys(self._odds, 0)

    def agents(self) -> Sequence[str]:
        """Names of the agents."""
        return self._inner.agents()

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """What arrives in time, what arrives late from earlier exchanges, and what arrives twice."""
        rng = np.random.default_rng((self._seed, self._count))
        self._count += 1
        arrived, self._late = self._late, []
        for i, payload in payloads.items():
            if self._happens("forget", rng):
                self._inner.sites[i].forget()
            (reply,) = self._inner.exchange({i: payload})
            if self._happens("lose", rng):
                continue
            (self._late if self._happens("delay", rng) else arrived).append(reply)
            if self._happens("repeat", rng):
                arrived.append(reply)
                self._late.append(reply)
        return arrived

    def _happens(self, fault: str, rng: np.random.Generator) -> bool:
        drawn = rng.random() < self._odds[fault]  # always drawn, so that one fault does not move another
        happens = drawn and (self._quiet_after is None or self._count <= self._quiet_after)
        self.happened[fault] += happens
        return bool(happens)


class Stateless(InProcess):
    """Agents forget everything between two exchanges, as where each message starts a process."""

    stateless = True

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """Every agent asked answers, and forgets."""
        replies = list(super().exchange(payloads))
        for i in payloads:
            self.sites[i].forget()
        return replies
