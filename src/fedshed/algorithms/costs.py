"""The cost of a run, estimated before it begins: exchanges x latency + bytes / rate + CPU (docs/cost.md).

Exchanges, Hessians and coded bytes are those of measured runs, on problems that are harder than most, one
standard deviation above the mean; bytes of exact arrays follow from the messages.
`python -m benchmarks automatic --constants` measures the constants and prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from msgspec import Struct

from fedshed._utils.errors import ConfigError

LARGEST = 1600  # columns of the largest problem that constants were measured on
FACTORED = 1000  # columns up to which the Master of QN-SHED factors a dense matrix (docs/performance.md)
SPARSE = 8  # a stored number of a sparse table costs as much as this many of a dense one


class Network(Struct, frozen=True):
    """The network between the Master and the sites: the time of an exchange, and the rate of a link.

    Parameters
    ----------
    latency : float
        The time of an exchange in seconds, without the transfer of its bytes and without computations.
    rate : float
        The rate of each site's link in bits per second.

    Raises
    ------
    ConfigError
        If the latency is not finite or is negative, or the rate is not above 0.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> slow = fedshed.Network(latency=0.1, rate=10_000)
    >>> fedshed.optimize(federation, l2=1e-2, network=slow).algorithm.partition(":")[0]
    'pen'
    """

    latency: float = 0.05
    rate: float = 10e6

    def __post_init__(self) -> None:
        for name in ("latency", "rate"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int | float):
                raise ConfigError(f"{name} of a Network must be a number, not {value!r}")
        if not (isfinite(self.latency) and self.latency >= 0 and self.rate > 0):
            raise ConfigError(
                f"a Network needs latency >= 0 (seconds) and rate > 0 (bits per second), not {self}"
            )

    def seconds(self, exchanges: float, link_bytes: float, cpu: float) -> float:
        """T = exchanges x latency + 8 bytes / rate + CPU.

        Parameters
        ----------
        exchanges : float
            Messages to all sites with the answers to them.
        link_bytes : float
            Bytes of the busiest link, up and down together.
        cpu : float
            Seconds of CPU.
        """
        return exchanges * self.latency + 8 * link_bytes / self.rate + cpu


ELSEWHERE = Network()  # where nothing else is known
HERE = Network(0.0, inf)  # all sites in this process: messages take no time beside their CPU


class Shape(Struct, frozen=True):
    """The size of a problem, as far as costs depend on it."""

    n: int
    agents: int
    rows: float  # of all agents together
    entries: float | None = None  # stored numbers of sparse tables; None: they are dense
    quadratic: bool = False  # one step of Newton is enough
    contrasts: int = 1  # of several classes: Hessians have as many times the rows

    @property
    def numbers(self) -> float:
        """The number of entries of all tables together, a sparse entry counted by what it costs."""
        dense = self.rows * self.n
        return dense if self.entries is None else min(dense, SPARSE * self.entries)


class Typical(Struct, frozen=True):
    """What was measured for an algorithm; a pair (a, b) stands for a (n / 100)^b."""

    exchanges: tuple[float, float]
    hessians: tuple[float, float]  # that every agent computes, and sends where they travel whole
    up: tuple[float, float]  # bytes per exchange and agent beside whole Hessians: a + b n
    down: tuple[float, float]
    cpu: tuple[float, ...]  # seconds per unit of each kind of `work`
    whole: bool = False  # whether Hessians travel whole: 4 n (n + 1) bytes


class Estimate(Struct, frozen=True):
    """The approximate cost of a run by one algorithm."""

    name: str
    n: int
    exchanges: float
    link_bytes: float  # of one agent, both ways
    cpu: float  # of all agents and the Master
    apart: float  # of one agent and the Master: agents on machines of their own compute at the same time

    def seconds(self, network: Network) -> float:
        """Seconds to the optimum."""
        cpu = self.cpu if network == HERE else self.apart
        return network.seconds(self.exchanges, self.link_bytes, cpu)


def work(
    name: str, shape: Shape, exchanges: float, hessians: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Units of work for the messages and the Master, and units of work on rows, which the agents share.

    Eigenpairs of QN-SHED are computed from the shorter side of a table, and its Master factors no matrix
    larger than `FACTORED`; the others have n x n matrices of every agent.
    """
    n, agents, rows = shape.n, shape.agents, max(shape.rows, 1.0)
    side, solved = (n, n) if name != "qn-shed" else (min(n, rows / agents), min(n, FACTORED))
    messages = exchanges * agents
    here = (exchanges, messages, messages * n, hessians * agents * side**2, exchanges * float(solved) ** 3)
    return here, (exchanges * shape.numbers, hessians * shape.contrasts * shape.numbers**2 / rows)


def estimate(name: str, shape: Shape) -> Estimate:
    """The approximate cost of an algorithm on a problem of this size."""
    typical = MEASURED[name]
    exchanges, hessians = _counts(name, typical, shape)
    here, rows = work(name, shape, exchanges, hessians)
    fixed = sum(c * x for c, x in zip(typical.cpu[:5], here, strict=True))
    shared = sum(c * x for c, x in zip(typical.cpu[5:], rows, strict=True))
    packed = 4 * shape.n * (shape.n + 1) * hessians if typical.whole else 0.0
    (a, b), (c, d) = typical.up, typical.down
    each = a + c + (b + d) * shape.n
    link_bytes, apart = packed + exchanges * each, fixed + shared / max(shape.agents, 1)
    return Estimate(name, shape.n, exchanges, link_bytes, fixed + shared, apart)


def _counts(name: str, typical: Typical, shape: Shape) -> tuple[float, float]:
    """Exchanges and Hessians; a quadratic cost needs one Newton step and one gradient after it."""
    if shape.quadratic and typical.whole:
        return 2.0, 2.0 if name == "newton" else 1.0
    size = shape.n / 100
    (a, b), (c, d) = typical.exchanges, typical.hessians
    exchanges = max(2.0, a * size**b)
    return exchanges, exchanges if name == "newton" else min(exchanges, max(1.0, c * size**d))


def time_in_words(seconds: float) -> str:
    """A duration with two digits: 0.35 ms, 50 ms, 1.2 s, 150 s."""
    unit, size = ("ms", 1000.0) if seconds < 0.995 else ("s", 1.0)
    return f"{float(f'{size * seconds:.2g}'):,.10g} {unit}"


def size_in_words(count: float) -> str:
    """Bytes with two digits and their unit, KB being 1000 of them."""
    return _with_unit(float(f"{count:.2g}"), {"GB": 1e9, "MB": 1e6, "KB": 1e3}, "bytes")


def rate_in_words(rate: float) -> str:
    """A rate with its unit: 10 kbit/s, 1 Mbit/s, or 'links without limit' if it is infinite."""
    if not isfinite(rate):
        return "links without limit"
    return _with_unit(rate, {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3}, "bit/s")


def _with_unit(value: float, units: Mapping[str, float], smallest: str) -> str:
    """A number in the largest of the units that is no larger."""
    for unit, size in units.items():
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} {smallest}"


MEASURED: dict[str, Typical] = {
    "newton": Typical(
        exchanges=(9.37, 0.12),
        hessians=(9.37, 0.12),
        up=(98.8, 8.06),
        down=(84.2, 15.1),
        cpu=(0.0031, 0.00016, 0, 3.5e-09, 4.3e-11, 7.8e-09, 1.3e-11),
        whole=True,
    ),
    "newton-seldom": Typical(
        exchanges=(14.5, 0.14),
        hessians=(2.76, 0.14),
        up=(104.0, 8.01),
        down=(98.4, 15.4),
        cpu=(0.0028, 0.00012, 0, 4.9e-09, 4e-11, 4e-09, 0),
        whole=True,
    ),
    "pen": Typical(
        exchanges=(17.3, 0.21),
        hessians=(8.61, 0.39),
        up=(57.1, 2.6),
        down=(60.2, 1.93),
        cpu=(0.0015, 0.0004, 4.9e-06, 5e-08, 2.4e-10, 2.8e-09, 4.3e-11),
        whole=False,
    ),
    "qn-shed": Typical(
        exchanges=(37.0, 0.24),
        hessians=(9.61, 0.0),
        up=(165.0, 3.53),
        down=(85.0, 0.507),
        cpu=(0.002, 0.00088, 2.1e-06, 0, 0, 7.4e-09, 0),
        whole=False,
    ),
}
