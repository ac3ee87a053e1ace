"""Chooses an algorithm when none is named: the one that is estimated to end first (costs.py).

Over a network, exchanges and bytes count; if all agents are in one process, CPU seconds count.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.channels import Channel
from fedshed.algorithms.costs import (
    ELSEWHERE,
    HERE,
    LARGEST,
    Estimate,
    Network,
    Shape,
    estimate,
    rate_in_words,
    size_in_words,
    time_in_words,
)
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.linesearch import Fused
from fedshed.algorithms.newton import Newton
from fedshed.algorithms.newton_seldom import NewtonSeldom
from fedshed.algorithms.pen import Pen
from fedshed.algorithms.qn_shed import QnShed
from fedshed.algorithms.shed import Shed

SMALL = 32  # up to here a packed Hessian is at most as large as 17 gradients
LARGE = 1000  # beyond it n^2 numbers an agent are too many to be coded or masked
MANY_SECANTS = 150  # of L-BFGS where nothing else tells the curvature: they cost no byte
MEMORY = 125_000_000  # numbers the Master may hold of all agents together: 1 GB
MARGIN, MOMENT = 1.1, 0.01  # a simpler algorithm may take this many times as long, and 10 ms more
# the simplest first
CANDIDATES: Mapping[str, AnyAlgorithm] = {
    "newton": Newton(line_search=Fused()), "newton-seldom": NewtonSeldom(line_search=Fused()),
    "pen": Pen(), "qn-shed": QnShed(),
}  # fmt: skip


def choose(
    shape: Shape, channel: Channel | None, network: Network = ELSEWHERE, stateless: bool = False
) -> tuple[AnyAlgorithm, str]:
    """An algorithm, and one line with its name and the reason; PEN needs agents that keep their frame."""
    if channel is not None:
        why = "links with a budget, on which each site sends the eigenpairs that fit"
        return replace(QnShed(), channel=channel), f"qn-shed: {why}"
    found = [estimate(name, shape) for name in CANDIDATES if _possible(name, shape, stateless)]
    least = min(one.seconds(network) for one in found)
    best = next(one for one in found if one.seconds(network) <= MARGIN * least + MOMENT)
    return CANDIDATES[best.name], f"{best.name}: {_why(best, found, network)}"


def _possible(name: str, shape: Shape, stateless: bool) -> bool:
    """Whether the Master has room for n^2 numbers per agent, and agents keep the cache that is needed."""
    numbers = shape.agents * shape.n * shape.n
    if name == "pen":
        return not stateless and shape.n <= LARGE and numbers <= MEMORY
    return name == "qn-shed" or numbers <= 2 * MEMORY


def _why(best: Estimate, found: list[Estimate], network: Network) -> str:
    """The estimates behind the choice, in words, also where a simpler algorithm is preferred."""
    times = {one.name: one.seconds(network) for one in found}
    others = [f"{name} {time_in_words(time)}" for name, time in times.items() if name != best.name]
    than = ", ".join(others) or "no other algorithm has room at the Master"
    if times[best.name] > min(times.values()):
        than += "; the simplest of those that take about as long"
    taken, count = time_in_words(times[best.name]), f"about {best.exchanges:.0f} exchanges"
    far = "" if best.n <= LARGEST else f", extrapolated from n = {LARGEST:,}"
    if network == HERE:
        return (
            f"all sites are in this process, so CPU time decides; estimated {taken} in {count}{far} ({than})"
        )
    link = f"{time_in_words(network.latency)} per exchange and {rate_in_words(network.rate)}"
    size = f"{size_in_words(best.link_bytes)} per site"
    return f"over a network of {link}, estimated {taken} in {count} with {size}{far} ({than})"


def choose_composite(n: int, channel: Channel | None = None) -> tuple[AnyAlgorithm, str]:
    """An algorithm for a cost with an absolute penalty, and one line with the reason."""
    if channel is not None:
        why = "links with a budget, and an absolute penalty (l1) that has a step in SHED"
        return replace(Shed(), channel=channel), f"fib-shed: {why}"
    why = f"an absolute penalty (l1) needs a model of the curvature, with n = {n} the packed Hessian"
    return Newton(line_search=Fused()), f"newton: {why}"


def choose_approved(n: int, composite: bool) -> tuple[AnyAlgorithm, str]:
    """An algorithm for a study that sites approve, and one line that is the same at each of them.

    It asks for gradients, which every default policy has room for; how many rows a site has, what its link
    carries and how much of its budget is left do not change it.
    """
    if composite:
        return Newton(line_search=Fused()), "newton: an absolute penalty (l1) needs a model of the curvature"
    algorithm = Lbfgs(line_search=Fused()) if n <= LARGE else Lbfgs(memory=MANY_SECANTS, line_search=Fused())
    return algorithm, "lbfgs: a study that names no algorithm asks its sites for gradients only"


def choose_summable(n: int) -> tuple[AnyAlgorithm, str]:
    """An algorithm for protected mode and groups, where answers are added, and one line with the reason."""
    why = f"answers have to add up over sites, and with n = {n}"
    if n <= SMALL:
        why = f"{why} a packed Hessian has {n * (n + 1) // 2} numbers"
        return Newton(line_search=Fused()), f"newton: {why}"
    if n <= LARGE:
        why = f"{why} a packed Hessian is asked for only now and then"
        return NewtonSeldom(line_search=Fused()), f"newton-seldom: {why}"
    why = f"{why} packed Hessians are too large"
    return Lbfgs(memory=MANY_SECANTS, line_search=Fused()), f"lbfgs: {why}"
