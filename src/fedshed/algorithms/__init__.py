"""The algorithms by name: each entry says what it is, what it takes, and builds it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithm import Algorithm
from fedshed.algorithms.agd import Agd, HeavyBall
from fedshed.algorithms.fednl import FedNL
from fedshed.algorithms.giant import Done, Giant, GiantDeterminantal
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.shed import Held, Midpoint, NextEigenvalue, Shed
from fedshed.channels import ByteRate, Channel, Constant, PerAgent, Rayleigh, Recorded
from fedshed.errors import ConfigError
from fedshed.linesearch import FullStep, LineSearch
from fedshed.names import closest
from fedshed.renewal import EveryRound, GradientNorm, Once, Periodic

Budget = int | Channel | None


class Entry(Struct, frozen=True):
    """An algorithm of the registry."""

    name: str
    algorithm: Algorithm[Any]
    about: str
    source: str

    @property
    def takes_budget(self) -> bool:
        """Whether the size of its messages follows the link."""
        return hasattr(self.algorithm, "channel")


_LEAST_SQUARES = Shed(renewal=Once(), line_search=FullStep(), rho=Midpoint())
ENTRIES: tuple[Entry, ...] = (
    Entry("shed-ls", _LEAST_SQUARES, "SHED for least squares: one Hessian, eta = 1", "Algorithm 1"),
    Entry(
        "shed-ls-periodic",
        replace(_LEAST_SQUARES, renewal=Periodic()),
        "shed-ls, restarted every T = n - 1 iterations",
        "Algorithm 3",
    ),
    Entry(
        "shed-periodic", Shed(renewal=Periodic()), "SHED, renewed every T = n - 1 iterations", "Algorithm 4"
    ),
    Entry("fib-shed", Shed(), "SHED, renewed at Fibonacci distances", "Algorithm 4, Section 5.1"),
    Entry(
        "gn-shed", Shed(renewal=GradientNorm()), "SHED, renewed when the gradient norm stalls", "Section 5.1"
    ),
    Entry(
        "mont-dec",
        Shed(renewal=EveryRound(), channel=Rayleigh()),
        "first eigenpairs of a new Hessian every round, never extended",
        "Section 6",
    ),
    Entry(
        "giant",
        Giant(),
        "harmonic mean of the local Hessians; the global gradient costs an exchange",
        "GIANT",
    ),
    Entry("giant-det", GiantDeterminantal(), "GIANT weighted by the determinants", "determinantal averaging"),
    Entry("done", Done(), "GIANT with Richardson iterations for the local solves", "DONE"),
    Entry("fednl", FedNL(), "FedNL-LS: rank-1 corrections of a Hessian sent whole at the start", "FedNL"),
    Entry("agd", Agd(), "Nesterov's accelerated gradient with gradient restart", "first order"),
    Entry("heavy-ball", HeavyBall(), "constant step and momentum 0.95, as in GIANT's code", "first order"),
    Entry(
        "lbfgs", Lbfgs(), "L-BFGS at the Master, memory 20, diagonal of the initial Hessian", "quasi-Newton"
    ),
    Entry("newton", Newton(), "exact Newton, the packed Hessian in every round", "Section 2.1"),
)
ALGORITHMS: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}


def build(
    name: str, budget: Budget = None, line_search: LineSearch | None = None, seed: int = 0
) -> Algorithm[Any]:
    """The algorithm of that name, with its own budget and line search unless others are given.

    A trailing `+` is the paper's mark for `budget=Rayleigh()`: "fib-shed+" is Fib-SHED+.
    """
    plus = name.endswith("+")
    if name.removesuffix("+") not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}{closest(name, ALGORITHMS)}")
    entry = ALGORITHMS[name.removesuffix("+")]
    algorithm: Any = entry.algorithm
    channel = Rayleigh() if plus and budget is None else as_channel(budget)
    if channel is not None and not entry.takes_budget:
        raise ConfigError(f"{entry.name} sends messages of fixed size; leave budget out")
    if entry.takes_budget:
        algorithm = replace(algorithm, channel=_seeded(channel or algorithm.channel, seed))
    return with_line_search(algorithm, line_search)


def with_line_search(algorithm: Algorithm[Any], line_search: LineSearch | None) -> Algorithm[Any]:
    """The algorithm with another line search, where it has one."""
    if line_search is None:
        return algorithm
    if not hasattr(algorithm, "line_search"):
        raise ConfigError(f"{type(algorithm).__name__} has no line search to replace")
    changed: Algorithm[Any] = replace(algorithm, line_search=line_search)
    return changed


def as_channel(budget: Any) -> Channel | None:
    """A budget as a channel: a whole number is so many eigenpairs a round."""
    if budget is None or isinstance(budget, Constant | Rayleigh | ByteRate | Recorded | PerAgent):
        return budget
    if callable(getattr(budget, "eigenpairs", None)):
        return budget  # type: ignore[no-any-return]
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise ConfigError(f"budget must be a whole number of eigenpairs, a Channel or None, not {budget!r}")
    return Constant(budget)


def _seeded(channel: Channel, seed: int) -> Channel:
    return replace(channel, seed=seed) if isinstance(channel, Rayleigh) and channel.seed == 0 else channel


__all__ = ["ALGORITHMS", "Budget", "Entry", "Held", "NextEigenvalue", "as_channel", "build"]
