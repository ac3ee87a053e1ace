"""What a report shows, as plain data: problems with runs and agents, a fit, and how to make it again."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, TypeAlias

from msgspec import Struct

from fedshed._utils.version import __version__
from fedshed.inference.evaluation import Evaluation
from fedshed.solve.trace import Row


class Grid(Struct, frozen=True):
    """One whole number for each agent and iteration, as many of both as a screen can show."""

    agents: tuple[str, ...]
    iterations: tuple[int, ...]
    values: tuple[tuple[int | None, ...], ...]  # by agent, by iteration
    of: tuple[int, int]  # how many agents and iterations there were


class Spectrum(Struct, frozen=True):
    """What the Master held of one agent's Hessian as the run went on: q_t, rho_t, and the eigenvalues."""

    agent: str
    iterations: tuple[int, ...]
    q: tuple[int, ...]
    rho: tuple[float, ...]
    hessian: tuple[int, ...]  # which of `values` was in use
    values: tuple[tuple[float, ...], ...]  # eigenvalues of each Hessian that were sent
    whole: tuple[float, ...] = ()  # all eigenvalues at the end of the run, where the rows are at hand


class SiteTraffic(Struct, frozen=True):
    """What passed between the Master and one site in a run, and the exchange that the site last answered."""

    name: str
    uplink_bytes: int
    downlink_bytes: int
    last: int
    refused: int = 0  # answers that could not be used


class Run(Struct, frozen=True):
    """One algorithm: its trace, how it ended, and what the Master held of each agent."""

    name: str
    rows: Sequence[Row]
    ended: str = ""
    converged: bool = False
    pairs: Grid | None = None  # q_t^(i)
    budget: Grid | None = None  # d_t^(i)
    spectra: tuple[Spectrum, ...] = ()
    repeats: tuple[Sequence[Row], ...] = ()  # traces on other partitions of the rows
    traffic: tuple[SiteTraffic, ...] = ()  # of each site, in a study over sites


class Agent(Struct, frozen=True):
    """One agent: its rows, and how many of each class."""

    name: str
    rows: int
    classes: dict[str, int] = {}


class Times(Struct, frozen=True):
    """Which algorithm is the fastest at each latency (rows) and rate (columns), in numbers and in words."""

    latencies: tuple[str, ...]
    rates: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    seconds: tuple[tuple[float, ...], ...]
    words: tuple[tuple[str, ...], ...]  # the time of the fastest
    ranked: tuple[tuple[tuple[str, ...], ...], ...]  # all algorithms with their times, the fastest first
    notes: tuple[str, ...] = ()


class Gap(Struct, frozen=True):
    """What the gaps of a problem's traces are: from the pooled optimum, unless the note says otherwise."""

    name: str = "gap f − f*"
    note: str = ""


class Problem(Struct, frozen=True):
    """Runs on the same data and cost, and who holds the data."""

    title: str
    runs: tuple[Run, ...]
    count: int  # of agents: bytes are shown per agent
    agents: tuple[Agent, ...] = ()
    times: Times | None = None
    gap: Gap = Gap()


Kind: TypeAlias = Literal["number", "level", "constant"]  # what a coefficient belongs to; an intercept: none


class Coefficient(Struct, frozen=True):
    """An estimate with its confidence interval, in the table's units; what was not computed is None."""

    name: str
    estimate: float
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    kind: Kind = "number"
    deviation: float | None = None  # standard deviation of its column over all rows, where it is known


class Fit(Struct, frozen=True):
    """A fitted model: coefficients with intervals of this level, and the summary as text."""

    coefficients: tuple[Coefficient, ...]
    summary: str = ""
    level: float = 0.95
    ratio: str = ""  # what exp(coefficient) is, such as "odds ratio", where the family has a name for it
    exp: bool = False  # whether the table has exponentials, as the summary


PACKAGES = ("numpy", "scipy", "scikit-learn", "msgspec", "constriction")


def versions() -> dict[str, str]:
    """The versions that numbers depend on."""
    return {"fedshed": __version__, "Python": platform.python_version()} | {
        name: found for name in PACKAGES if (found := _version(name))
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Rerun(Struct, frozen=True):
    """How to make the same report again: the command, the seed, and what the data and the code were."""

    command: str
    seed: int
    data: dict[str, str] = {}  # hash of the rows as dealt, by data set
    versions: dict[str, str] = {}


class Report(Struct, frozen=True):
    """All that one page shows."""

    title: str
    problems: tuple[Problem, ...]
    rerun: Rerun
    fit: Fit | None = None
    evaluation: Evaluation | None = None
