"""Channels: how many eigenpairs d_t^(i) an agent's link carries in a round (Section 6.3).

A channel is pure: what it draws depends on (seed, agent, t) only.  The gradient always travels.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import name_key


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Constant(Struct, frozen=True, tag=True):
    """d_t = pairs, for every agent and round."""

    pairs: int = 1

    def __post_init__(self) -> None:
        if not _whole(self.pairs):
            raise ConfigError(f"budget must be a whole number >= 0 of eigenpairs a round, not {self.pairs!r}")

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """d_t^(i)."""
        return self.pairs


class Rayleigh(Struct, frozen=True, tag=True):
    """d_gamma = floor(d_0 log2(1 + gamma Gamma)) with gamma ~ Exp(1): mean 3.81, unbounded."""

    d0: float = 2.0
    gain: float = 5.0
    seed: int | None = None  # None: the run's

    def __post_init__(self) -> None:
        sane = 0 <= self.d0 < 1e6 and 0 <= self.gain < 1e100 and (self.seed is None or _whole(self.seed))
        if not sane:
            raise ConfigError(
                f"Rayleigh needs d0, gain and seed >= 0, not {self.d0}, {self.gain}, {self.seed}"
            )

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """d_t^(i)."""
        gamma = np.random.default_rng((self.seed or 0, name_key(agent), t)).exponential()
        return int(self.d0 * np.log2(1 + gamma * self.gain))


class ByteRate(Struct, frozen=True, tag=True):
    """As many pairs as a link of so many bytes per second carries in the time a round may take."""

    bytes_per_second: float
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.bytes_per_second < np.inf and 0 < self.seconds < np.inf):
            raise ConfigError(
                f"ByteRate needs a rate >= 0 and a time > 0, not {self.bytes_per_second}, {self.seconds}"
            )

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """d_t^(i)."""
        return int(self.bytes_per_second * self.seconds // pair_bytes)


class Recorded(Struct, frozen=True, tag=True):
    """Pairs an agent's link carried in recorded rounds, played again from the start when they end."""

    pairs: dict[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        for agent, pairs in self.pairs.items():
            if not pairs or not all(map(_whole, pairs)):
                raise ConfigError(f"the record of agent {agent!r} must hold numbers >= 0, at least one")

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """d_t^(i)."""
        if agent not in self.pairs:
            raise ConfigError(f"no record for agent {agent!r}; recorded are {sorted(self.pairs)}")
        return self.pairs[agent][(t - 1) % len(self.pairs[agent])]


class PerAgent(Struct, frozen=True, tag=True):
    """A channel of its own for some agents, and one for all others."""

    channels: dict[str, Constant | Rayleigh | ByteRate | Recorded]
    default: Constant | Rayleigh | ByteRate | Recorded = Constant(1)

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """d_t^(i)."""
        return self.channels.get(agent, self.default).eigenpairs(t, agent, pair_bytes)


Channel: TypeAlias = Constant | Rayleigh | ByteRate | Recorded | PerAgent
