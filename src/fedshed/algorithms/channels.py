"""Channels: how many eigenpairs d_t^(i) the link of agent i carries in round t (Section 6.3).

A channel has no state: a random number depends on (seed, agent, t) only.  The gradient is always sent.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from msgspec import UNSET, Struct, UnsetType

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import name_key


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Constant(Struct, frozen=True, tag=True):
    """A link that carries the same number of eigenpairs in every round.

    Parameters
    ----------
    pairs : int, default 1
        The number of eigenpairs per round and agent, at least 0.

    Raises
    ------
    ConfigError
        If `pairs` is not a whole number of at least 0.

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
                f"budget, the number of eigenpairs per round, must be a whole number >= 0, not {self.pairs!r}"
            )

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """How many eigenpairs of `pair_bytes` bytes the link of `agent` carries in round `t`, from 1."""
        return self.pairs


class Rayleigh(Struct, frozen=True, tag=True):
    """A fading link that carries d = floor(d0 log2(1 + gamma gain)) eigenpairs, where gamma ~ Exp(1).

    These are the d_0 and Gamma of the paper (Section 6.3); the mean of d is 3.81 with the default parameters.

    Parameters
    ----------
    d0 : float, default 2.0
        The number of eigenpairs per unit of log2(1 + gamma gain), at least 0.
    gain : float, default 5.0
        The mean gain of the link, Gamma in the paper, at least 0.
    seed : int, optional
        The seed of the draws, which depend on (seed, agent, t) only. Default: the seed of the run.
    least : int, optional
        The least number of eigenpairs per round, at least 0. Default: 0, only the gradient.

    Raises
    ------
    ConfigError
        If a parameter is negative.

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
    least: int | UnsetType = UNSET  # not encoded where it is not set, as in files that were saved without it

    def __post_init__(self) -> None:
        sane = 0 <= self.d0 < 1e6 and 0 <= self.gain < 1e100 and (self.seed is None or _whole(self.seed))
        if not sane:
            raise ConfigError(
                f"Rayleigh needs d0, gain and seed >= 0, not {self.d0}, {self.gain}, {self.seed}"
            )
        if self.least is not UNSET and not _whole(self.least):
            raise ConfigError(f"Rayleigh needs a whole number least >= 0, not {self.least!r}")

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """How many eigenpairs of `pair_bytes` bytes the link of `agent` carries in round `t`, from 1."""
        gamma = np.random.default_rng((self.seed or 0, name_key(agent), t)).exponential()
        return max(self.least or 0, int(self.d0 * np.log2(1 + gamma * self.gain)))


class ByteRate(Struct, frozen=True, tag=True):
    """A link that carries as many eigenpairs as fit into the time of a round at a given rate.

    Parameters
    ----------
    bytes_per_second : float
        The rate of the link in bytes per second, at least 0.
    seconds : float, default 1.0
        The time of a round in seconds, above 0.

    Raises
    ------
    ConfigError
        If the rate is negative or the time is not above 0.

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
        """How many eigenpairs of `pair_bytes` bytes the link of `agent` carries in round `t`, from 1."""
        return int(self.bytes_per_second * self.seconds // pair_bytes)


class Recorded(Struct, frozen=True, tag=True):
    """Links that carry the recorded numbers of eigenpairs; a record that ends is repeated from its start.

    Parameters
    ----------
    pairs : dict
        For each agent, the numbers of eigenpairs in rounds 1, 2, ...

    Raises
    ------
    ConfigError
        If a record is empty or holds a negative number, or an agent has no record.

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
                raise ConfigError(
                    f"the record of agent {agent!r} must hold at least one number, and none below 0"
                )

    def eigenpairs(self, t: int, agent: str, pair_bytes: int) -> int:
        """How many eigenpairs of `pair_bytes` bytes the link of `agent` carries in round `t`, from 1."""
        if agent not in self.pairs:
            raise ConfigError(
                f"Recorded has no record of agent {agent!r}; add one (there are {sorted(self.pairs)})"
            )
        return self.pairs[agent][(t - 1) % len(self.pairs[agent])]


class PerAgent(Struct, frozen=True, tag=True):
    """Gives some agents a channel each; all other agents share one.

    Parameters
    ----------
    channels : dict
        The channel of each such agent, by the agent's name.
    default : Channel, default Constant(1)
        The channel of all other agents.

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
        """How many eigenpairs of `pair_bytes` bytes the link of `agent` carries in round `t`, from 1."""
        return self.channels.get(agent, self.default).eigenpairs(t, agent, pair_bytes)


Channel: TypeAlias = Constant | Rayleigh | ByteRate | Recorded | PerAgent
