"""The algorithms by name: what each one is, which parts it takes, and how it is built."""

from __future__ import annotations

from typing import Any, Union

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.algorithms.aggregate import ShedAggregate
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.channels import Channel, Constant, PerAgent, Rayleigh
from fedshed.algorithms.firth import Firth
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.linesearch import FullStep, Fused, LineSearch, TwoExchange
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.newton_seldom import NewtonSeldom
from fedshed.algorithms.pen import Pen
from fedshed.algorithms.qn_shed import QnShed
from fedshed.algorithms.renewal import EveryRound, GradientNormAsPrinted, Once, Periodic
from fedshed.algorithms.rho import Midpoint
from fedshed.algorithms.rivals.agd import Agd, HeavyBall
from fedshed.algorithms.rivals.compressors import Natural, TopK
from fedshed.algorithms.rivals.dane import Dane
from fedshed.algorithms.rivals.disco import Disco
from fedshed.algorithms.rivals.fednl import FedNL
from fedshed.algorithms.rivals.fedns import FedNS
from fedshed.algorithms.rivals.giant import Done, Giant, GiantDeterminantal
from fedshed.algorithms.rivals.local_steps import FedAvg, FedProx
from fedshed.algorithms.rivals.q_shed import QShed
from fedshed.algorithms.rivals.q_shed_coding import EqualBits
from fedshed.algorithms.rivals.scaffold import Scaffold
from fedshed.algorithms.shed import Shed
from fedshed.protocol.precision import Differences

Budget = int | Channel | None


class Entry(Struct, frozen=True):
    """An algorithm of the registry `ALGORITHMS`.

    Attributes
    ----------
    name : str
        The name, as `fedshed algorithms` lists it.
    algorithm : Algorithm
        The algorithm with its default parts.
    about : str
        One line that describes it.
    source : str
        The place where it is described.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.ALGORITHMS["fib-shed"].takes_budget
    True
    """

    name: str  # by which it is called
    algorithm: AnyAlgorithm  # with the parts that belong to this name
    about: str  # what it does, in one line
    source: str  # where it was published

    @property
    def takes_budget(self) -> bool:
        """Whether the size of its messages can follow the capacity of a link."""
        return hasattr(self.algorithm, "channel")


_LEAST_SQUARES = Shed(renewal=Once(), line_search=FullStep(), rho=Midpoint())
ENTRIES: tuple[Entry, ...] = (
    Entry("shed-ls", _LEAST_SQUARES, "SHED for least squares: one Hessian, step size 1", "Algorithm 1"),
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
        "gn-shed",
        Shed(renewal=GradientNormAsPrinted()),
        "SHED, renewed when the gradient norm falls faster than before, or has risen",
        "Section 5.1",
    ),
    Entry(
        "shed-aggregate",
        ShedAggregate(),
        "fib-shed for very many agents: the Master keeps two n x n sums and no pairs",
        "ours: docs/performance.md",
    ),
    Entry(
        "mont-dec",
        Shed(renewal=EveryRound(), channel=Rayleigh(least=1)),
        "the first eigenpairs of a new Hessian in every round, never extended",
        "Section 6",
    ),
    Entry(
        "q-shed",
        QShed(),
        "fib-shed in few bits: later rounds refine the eigenvectors",
        "Q-SHED; the allocation of bits is ours",
    ),
    Entry(
        "q-shed-equal",
        QShed(allocation=EqualBits()),
        "fib-shed in few bits: the same number for every eigenvector",
        "Q-SHED's naive variant",
    ),
    Entry(
        "qn-shed",
        QnShed(),
        "SHED with secants, coded eigenpairs, one exchange per iteration",
        "ours: docs/beyond.md",
    ),
    Entry(
        "pen",
        Pen(),
        "predictive entropy-coded Newton: innovations in whitened coordinates",
        "ours: docs/beyond.md",
    ),
    Entry(
        "giant",
        Giant(),
        "harmonic mean of the local Hessians; sending the global gradient costs an exchange",
        "GIANT",
    ),
    Entry("giant-det", GiantDeterminantal(), "GIANT weighted by the determinants", "determinantal averaging"),
    Entry("done", Done(), "GIANT with Richardson iterations for the local solves", "DONE"),
    Entry("fednl", FedNL(), "FedNL-LS: rank-1 corrections of a Hessian sent whole at the start", "FedNL"),
    Entry(
        "fednl-top-k",
        FedNL(compressor=TopK()),
        "FedNL-LS whose corrections are the n largest entries of the difference",
        "FedNL",
    ),
    Entry(
        "fednl-natural",
        FedNL(compressor=Natural()),
        "FedNL-LS whose corrections are rounded to powers of two, 9 bits per entry",
        "FedNL, natural compression",
    ),
    Entry(
        "fedns",
        FedNS(),
        "Newton with n/2 random combinations of the rows of each Hessian's square root",
        "FedNS, Algorithm 1",
    ),
    Entry(
        "disco",
        Disco(),
        "Newton steps by distributed conjugate gradients, one Hessian product per exchange",
        "DiSCO, Algorithms 1 and 2",
    ),
    Entry("agd", Agd(), "Nesterov's accelerated gradient with gradient restart", "first order"),
    Entry("heavy-ball", HeavyBall(), "constant step and momentum 0.95, as in GIANT's code", "first order"),
    Entry("lbfgs", Lbfgs(), "L-BFGS at the Master, memory 150; one diagonal of a Hessian", "quasi-Newton"),
    Entry(
        "lbfgs-coded",
        # chosen on F5, F6, F8 and W5 of docs/beyond.md, partition seed 0
        Lbfgs(line_search=Fused(candidates=3), precision=Differences(gradient=0.15)),
        "L-BFGS coded in both directions: differences of gradients up, rounded directions down",
        "ours: docs/beyond.md",
    ),
    Entry("newton", Newton(), "exact Newton with the packed Hessian in every round", "Section 2.1"),
    Entry(
        "newton-seldom",
        NewtonSeldom(),
        "Newton with a packed Hessian only when secants no longer suffice",
        "ours: docs/protected.md",
    ),
    Entry("dane", Dane(), "DANE: local minima corrected by the global gradient, constant step", "DANE"),
    Entry("scaffold", Scaffold(), "local gradient steps whose drift control variates correct", "SCAFFOLD"),
    Entry("fedavg", FedAvg(), "average of the sites' models after local gradient steps", "FedAvg"),
    Entry("fedprox", FedProx(), "fedavg with a proximal term in the local cost", "FedProx"),
)
ALGORITHMS: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}
BUILT_IN: Any = Union[tuple({*(type(entry.algorithm) for entry in ENTRIES), Firth})]  # what a file may hold


def build(
    name: str, budget: Budget = None, line_search: LineSearch | None = None, seed: int = 0
) -> AnyAlgorithm:
    """The algorithm of that name, with its default budget and line search unless others are given.

    Parameters
    ----------
    name : str
        A name of `ALGORITHMS`. A trailing `+` is the paper's mark for `budget=Rayleigh()`: "fib-shed+" is
        Fib-SHED+.
    budget : int or Channel, optional
        The number of eigenpairs per round, or the channel that decides it. Default: that of the algorithm.
    line_search : TwoExchange or Fused, optional
        How the step size is found. Default: that of the algorithm.
    seed : int, default 0
        The seed of random channels that have no seed.

    Returns
    -------
    Algorithm
        The configured algorithm.

    Raises
    ------
    ConfigError
        If the name is unknown or the algorithm has no such part.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.algorithms.build("fib-shed", budget=3).channel
    Constant(pairs=3)
    """
    plain = name.removesuffix("+")
    if plain not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}{closest(name, ALGORITHMS)}")
    budget = Rayleigh() if name != plain and budget is None else budget
    if budget is not None and not ALGORITHMS[plain].takes_budget:
        raise ConfigError(f"{plain} sends messages of fixed size, so it has no budget; leave budget out")
    return configured(ALGORITHMS[plain].algorithm, budget, line_search, seed)


def configured(
    algorithm: AnyAlgorithm, budget: Budget, line_search: LineSearch | None, seed: int
) -> AnyAlgorithm:
    """The algorithm with this budget and line search, if it has such parts; its draws depend on the seed."""
    changes: dict[str, Any] = {}
    channel = as_channel(budget) or getattr(algorithm, "channel", None)
    if channel is not None:
        changes["channel"] = _seed_part(channel, seed)
    for part in ("compressor", "sketch"):
        if hasattr(algorithm, part):
            changes[part] = _seed_part(getattr(algorithm, part), seed)
    if line_search is not None:
        if not isinstance(line_search, FullStep | TwoExchange | Fused) and not callable(line_search):
            raise ConfigError(f"line_search must be TwoExchange(), Fused() or the like, not {line_search!r}")
        if isinstance(line_search, type):
            raise ConfigError(f"line_search must be an instance; write {line_search.__name__}()")
        changes["line_search"] = line_search
    for part in changes:
        if not hasattr(algorithm, part):
            raise ConfigError(
                f"{type(algorithm).__name__} has no {part.replace('_', ' ')} to replace; leave it out"
            )
    return replace(algorithm, **changes)


def check_summable(algorithm: AnyAlgorithm, where: str = "protected mode", budget: Budget = None) -> None:
    """Refuse a budget, and an algorithm that needs each site's answer, where only sums are seen."""
    if budget is not None:
        raise ConfigError(
            f"a budget counts eigenpairs, which cannot be added over sites; for {where} leave budget out"
        )
    if algorithm.summable and not algorithm.lossy:
        return
    allowed, name = [entry.name for entry in ENTRIES if entry.algorithm.summable], _base_name(algorithm)
    if algorithm.summable or name in allowed:  # but for its precision
        raise ConfigError(f"{where} adds exact numbers, so precision must be Exact(); leave precision out")
    raise ConfigError(f"{name} needs the answer of each site; {where} allows {', '.join(allowed)}")


def check_composite(algorithm: AnyAlgorithm) -> None:
    """Refuse an algorithm that has no step for an absolute penalty."""
    if not algorithm.composite:
        allowed = ", ".join(entry.name for entry in ENTRIES if entry.algorithm.composite)
        raise ConfigError(
            f"{_base_name(algorithm)} has no step for an absolute penalty (l1); use {allowed}, or set l1 = 0"
        )


def check_for_studies(algorithm: AnyAlgorithm) -> None:
    """Refuse an algorithm that is only for comparisons, in a study at sites."""
    if algorithm.compare_only:
        allowed = ", ".join(entry.name for entry in ENTRIES if not entry.algorithm.compare_only)
        raise ConfigError(
            f"{_base_name(algorithm)} is for comparisons (fedshed compare, fedshed.optimize), not for "
            f'studies; leave algorithm out, or use one of "auto", {allowed}'
        )


def _base_name(algorithm: AnyAlgorithm) -> str:
    """The name of an algorithm, or of the one that it is a variant of."""
    same = [entry.name for entry in ENTRIES if entry.algorithm == algorithm]
    alike = [entry.name for entry in ENTRIES if type(entry.algorithm) is type(algorithm)]
    return next(iter(same + alike), type(algorithm).__name__)


def with_one_exchange(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """The algorithm with costs and update in one exchange, if its line search takes two."""
    if isinstance(getattr(algorithm, "line_search", None), TwoExchange):
        return replace(algorithm, line_search=Fused())
    return algorithm


def as_channel(budget: Any) -> Channel | None:
    """A budget as a channel; a whole number means that many eigenpairs per round.

    Parameters
    ----------
    budget : int, Channel or None
        The budget that an algorithm is given.

    Returns
    -------
    Channel or None
        The channel; None if the budget is None.
    """
    if budget is None or (callable(getattr(budget, "eigenpairs", None)) and not isinstance(budget, type)):
        channel: Channel | None = budget
        return channel
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer):
        raise ConfigError(f"budget must be a whole number of eigenpairs, a Channel or None, not {budget!r}")
    return Constant(int(budget))


def _seed_part(channel: Any, seed: int) -> Any:
    """The part with its random draws tied to the run's seed, if it draws and has no seed."""
    if getattr(channel, "seed", seed) is None:
        return replace(channel, seed=seed)
    if isinstance(channel, PerAgent):
        own = {agent: _seed_part(one, seed) for agent, one in channel.channels.items()}
        return PerAgent(own, _seed_part(channel.default, seed))
    return channel
