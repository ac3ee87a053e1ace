"""What one algorithm needed in a comparison, in numbers and in text: medians over repeats and their range."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from msgspec import Struct

from fedshed.algorithms.base import DIVERGED

KB = 1000.0  # bytes
COUNTS = ("iterations", "rounds", "exchanges", "kb_up", "kb_down", "vectors_up", "hessians", "gap", "seconds")


class Summary(Struct, frozen=True):
    """What one algorithm needed and how it ended; KB (of 1000 bytes), vectors and Hessians are per agent.

    Of several repeats these are medians; `least` and `most` then hold the extremes of each count. `converged`
    says whether every run reached the tolerance, or the target gap of the comparison if it has one.
    """

    algorithm: str
    iterations: float
    rounds: float
    exchanges: float
    kb_up: float
    kb_down: float
    vectors_up: float
    hessians: float
    gap: float
    converged: bool
    reason: str
    seconds: float
    least: dict[str, float] = {}
    most: dict[str, float] = {}


def has_diverged(reason: str) -> bool:
    """Whether the reason of a run says that its cost has grown without bound."""
    return reason.startswith(DIVERGED)


def failure(name: str, converged: bool, reason: str) -> str:
    """Why a run did not reach the tolerance; empty if it did."""
    if has_diverged(reason):
        return f"{name} {reason}"
    return "" if converged else f"{name} stopped: {reason}"


def ended(one: Summary) -> str:
    """How a run ended, in a word."""
    if one.converged:
        return "converged"
    return DIVERGED if has_diverged(one.reason) else "stopped"


def shown(one: Summary) -> dict[str, str]:
    """The counts that tell most, as text."""
    return {
        "algorithm": one.algorithm, "exchanges": with_range(one, "exchanges", whole),
        "KB up": with_range(one, "kb_up", short), "KB down": with_range(one, "kb_down", short),
        "Hessians": with_range(one, "hessians", whole), "gap": f"{one.gap:.1e}",
        "ended": "converged" if one.converged else one.reason,
    }  # fmt: skip


def whole(number: float) -> str:
    """A count as text."""
    return f"{number:.0f}"


def short(number: float) -> str:
    """An amount as text, with a decimal where it is small."""
    return f"{number:.1f}" if number < 1000 else f"{number:.0f}"


def with_range(one: Summary, name: str, shown: Callable[[float], str]) -> str:
    """A count; over several repeats the median, with the least and the most where they differ."""
    middle = shown(getattr(one, name))
    if not one.least or one.least[name] == one.most[name]:
        return middle
    return f"{middle} ({shown(one.least[name])}-{shown(one.most[name])})"


def over_repeats(found: list[Summary]) -> Summary:
    """The medians, with the extremes; a run that did not converge in one of the repeats did not."""
    first = next((one for one in found if not one.converged), found[0])
    if len(found) == 1:
        return first

    def each(combine: Callable[[list[float]], float]) -> dict[str, float]:
        return {name: combine([getattr(one, name) for one in found]) for name in COUNTS}

    stopped = sum(not one.converged for one in found)
    reason = f"in {stopped} of {len(found)} repeats: {first.reason}" if stopped else first.reason
    return Summary(
        algorithm=first.algorithm, converged=not stopped, reason=reason, least=each(min), most=each(max),
        **each(median),
    )  # fmt: skip
