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
    """d_t = pairs, for every agent and round.

    Parameters
    ----------
    pairs : int
        Eigenpairs per round.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.Constant(3).eigenpairs(t=1, agent="north", pair_bytes=80)
    3
    """

    pairs: int = 1

    def __post_init__(self) -> None:
        if not _whole(self.pairs):
            raise ConfigError(
                f"budget must be a whole number >= 0 of eigenpairs per round, not {self.pairs!r}"
            )

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """d_t^(i)."""
        return self.pairs


class Rayleigh(Struct, frozen=True, tag=True):
    """A fading link: d = floor(d_0 log2(1 + gamma Gamma)), gamma ~ Exp(1); mean 3.81 (Section 6.3).

    Parameters
    ----------
    d0, gain : float
        d_0 and Gamma.
    seed : int, optional
        Default: the seed of the run. Draws depend on (seed, agent, t) only.

    Examples
    --------
    >>> import fedshed
    >>> link = fedshed.Rayleigh(seed=0)
    >>> link.eigenpairs(1, "north", 80) == link.eigenpairs(1, "north", 80)
    True
    """

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
    """As many pairs as a link of so many bytes per second carries in the time that a round may take.

    Parameters
    ----------
    bytes_per_second : float
        The rate.
    seconds : float
        The time of a round.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.ByteRate(1000.0).eigenpairs(t=1, agent="north", pair_bytes=80)
    12
    """

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
    """The pairs that links carried in recorded rounds, played again from the start when they end.

    Parameters
    ----------
    pairs : dict
        For each agent the eigenpairs of rounds 1, 2, ...

    Examples
    --------
    >>> import fedshed
    >>> link = fedshed.Recorded({"north": (1, 5)})
    >>> link.eigenpairs(1, "north", 80), link.eigenpairs(2, "north", 80), link.eigenpairs(3, "north", 80)
    (1, 5, 1)
    """

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
    """Some agents have their own channel; all others share one.

    Parameters
    ----------
    channels : dict
        The channel of each such agent.
    default : Channel
        The channel of the others.

    Examples
    --------
    >>> import fedshed
    >>> links = fedshed.PerAgent({"north": fedshed.Constant(8)})
    >>> links.eigenpairs(1, "north", 80), links.eigenpairs(1, "south", 80)
    (8, 1)
    """

    channels: dict[str, Constant | Rayleigh | ByteRate | Recorded]
    default: Constant | Rayleigh | ByteRate | Recorded = Constant(1)

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """d_t^(i)."""
        return self.channels.get(agent, self.default).eigenpairs(t, agent, pair_bytes)


Channel: TypeAlias = Constant | Rayleigh | ByteRate | Recorded | PerAgent
