"""How rows are distributed over agents: functions of labels, number of agents, seed, target class and sites.

Each returns one array of row indices per agent, sorted; no row is used twice, and where rows are drawn the
seed decides which.  A partition ignores the arguments that it does not need.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedshed._utils.errors import ConfigError

Rows = NDArray[np.intp]
ALPHA = 0.5  # of the Dirichlet distribution: the smaller, the fewer agents hold most of a class


class Partition(Protocol):
    """The one signature that all partitions share."""

    def __call__(
        self, y: ArrayLike, agents: int | None, seed: int, target: Any = None, sites: ArrayLike | None = None
    ) -> list[Rows]:
        """The rows of each agent."""


def iid(
    y: ArrayLike, agents: int | None, seed: int, target: Any = None, sites: ArrayLike | None = None
) -> list[Rows]:
    """All rows, shuffled and split as equally as possible; balanced for a target of three or more classes.

    Balanced: each agent gets floor(N_target / M) rows of the target class and as many of the others, mixed
    equally (counts of two of them differ by at most one); fewer if the smallest of the others runs out.
    """
    labels, M = _checked(y, agents, seed)
    groups = {} if target is None else _shuffled(labels, seed, target)
    if len(groups) <= 2:
        return _spread(np.random.default_rng((seed, 0)).permutation(len(labels)), M)
    wanted = groups.pop(target)
    smallest = min(map(len, groups.values()))
    mixed = np.stack([rows[:smallest] for rows in groups.values()], axis=1).ravel()
    each = _enough(min(len(wanted), len(mixed)) // M, M, target, len(wanted), len(mixed))
    return [_joined(_share(wanted, i, each), _share(mixed, i, each)) for i in range(M)]


def two_class(
    y: ArrayLike, agents: int | None, seed: int, target: Any = None, sites: ArrayLike | None = None
) -> list[Rows]:
    """Two classes per agent: the target, and class others[i mod K] of the K others, sorted (Section 6).

    Agent i gets floor(N_target / M) rows of the target and as many of its other class; if a class has too few
    rows for the agents it is assigned to, every agent gets as many as that class can give to each of them.
    With two classes in all, the target (by default the larger label) is spread over the first ceil(M / 2)
    agents and the other class over all of them, each as equally as possible and with every row used.
    """
    labels, M = _checked(y, agents, seed)
    groups = _shuffled(labels, seed, target)
    if len(groups) == 2:
        wanted = groups.pop(max(groups) if target is None else target)
        (rest,) = groups.values()
        return _halved(wanted, rest, M)
    if target is None or len(groups) < 2:
        raise ConfigError(
            f"partition 'two-class' needs a target and another class; classes: {_listed(groups)}; "
            f"target: {target!r}"
        )
    wanted = groups.pop(target)
    return _paired(wanted, list(groups.values()), M, target)


def one_label(
    y: ArrayLike, agents: int | None, seed: int, target: Any = None, sites: ArrayLike | None = None
) -> list[Rows]:
    """One label per agent and all of its rows, so that sizes are as they come; agents in order of labels.

    None: an agent for every label; else the `agents` labels with most rows, of equal ones the smaller first.
    """
    labels, count = np.unique(np.asarray(y), return_counts=True)
    M = _counted(agents, seed, len(labels))
    if len(labels) < M:
        raise ConfigError(
            f"{M} agents of one label each need {M} labels, but the data have {len(labels)}; use fewer agents"
        )
    largest = np.sort(np.argsort(-count, kind="stable")[:M])
    return [np.flatnonzero(np.asarray(y) == label) for label in labels[largest]]


def dirichlet(
    y: ArrayLike, agents: int | None, seed: int, target: Any = None, sites: ArrayLike | None = None
) -> list[Rows]:
    """All rows: the shares of the agents in each label are drawn from a Dirichlet distribution (alpha 0.5).

    An agent that would have no row at all gets one of the agent that then has most.
    """
    labels, M = _checked(y, agents, seed)
    _check_rows(len(labels), M)
    parts: list[list[Rows]] = [[] for _ in range(M)]
    for k, rows in enumerate(_shuffled(labels, seed, None).values()):
        shares = np.random.default_rng((seed, k, M)).dirichlet(np.full(M, ALPHA))
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows) + 0.5).astype(int)
        for part, dealt in zip(parts, np.split(rows, cuts), strict=True):
            part.append(dealt)
    return _none_empty([_joined(*part) for part in parts])


def natural(
    y: ArrayLike, agents: int | None, seed: int, target: Any = None, sites: ArrayLike | None = None
) -> list[Rows]:
    """An agent for each site, in the order of their names, with all the rows collected there."""
    if sites is None:
        others = ", ".join(name for name in PARTITIONS if name != "natural")
        raise ConfigError(
            f"partition 'natural' needs a site for each row, but these data have none; use {others}"
        )
    places, site = np.unique(np.asarray(sites), return_inverse=True)
    if _counted(agents, seed, len(places)) != len(places):
        raise ConfigError(f"the data have {len(places)} sites, not {agents}; leave agents out")
    return [np.flatnonzero(site == k) for k in range(len(places))]


PARTITIONS: Mapping[str, Partition] = {
    "iid": iid,
    "two-class": two_class,
    "one-label": one_label,
    "dirichlet": dirichlet,
    "natural": natural,
}


def _paired(wanted: Rows, others: list[Rows], agents: int, target: Any) -> list[Rows]:
    """Equally many rows of the target and of class others[i mod K] for agent i."""
    K = len(others)
    fits = [len(others[k]) // len(range(k, agents, K)) for k in range(min(K, agents))]
    fewest = min(map(len, others))
    each = _enough(min(len(wanted) // agents, *fits), agents, target, len(wanted), fewest)
    return [_joined(_share(wanted, i, each), _share(others[i % K], i // K, each)) for i in range(agents)]


def _halved(wanted: Rows, rest: Rows, agents: int) -> list[Rows]:
    """The target over the first ceil(M / 2) agents, the rest over all."""
    holders = -(-agents // 2)
    if len(wanted) < holders or len(rest) < agents:
        raise ConfigError(
            f"{agents} agents need at least {holders} rows of the target class and {agents} of the other, "
            f"but the data have {len(wanted)} and {len(rest)}; use fewer agents"
        )
    positives, negatives = _spread(wanted, holders), _spread(rest, agents)
    return [_joined(*positives[i : i + 1], negatives[i]) for i in range(agents)]


def _none_empty(parts: list[Rows]) -> list[Rows]:
    """The same parts, each without rows given the last row of the then largest."""
    filled = list(parts)
    for i in (i for i, part in enumerate(parts) if not len(part)):
        most = max(range(len(filled)), key=lambda j: len(filled[j]))
        filled[most], filled[i] = filled[most][:-1], filled[most][-1:]
    return filled


def _checked(y: ArrayLike, agents: int | None, seed: int) -> tuple[NDArray[Any], int]:
    """The labels as an array and the number of agents, M, once agents and seed are known to be usable."""
    check_whole("seed", seed, 0)
    return np.asarray(y), check_whole("agents", agents, 1)


def _counted(agents: int | None, seed: int, found: int) -> int:
    """The number of agents, M; None: as many as were found."""
    check_whole("seed", seed, 0)
    return found if agents is None else check_whole("agents", agents, 1)


def check_whole(name: str, value: object, least: int) -> int:
    """The value, refused unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
    return int(value)


def check_target(target: Any, classes: Any) -> None:
    """Refuse a target that is no class, listing those there are."""
    if not any(target == label for label in classes):
        raise ConfigError(f"target {target!r} is not a class; choose one of {_listed(classes)}")


def _shuffled(y: NDArray[Any], seed: int, target: Any) -> dict[Any, Rows]:
    """The rows of each class, the classes sorted, the rows shuffled."""
    classes = np.unique(y).tolist()
    if target is not None:
        check_target(target, classes)
    return {
        label: np.random.default_rng((seed, k)).permutation(np.flatnonzero(y == label))
        for k, label in enumerate(classes)
    }


def _spread(rows: Rows, agents: int) -> list[Rows]:
    """All rows over the agents, as equally as possible."""
    _check_rows(len(rows), agents)
    return [np.sort(part) for part in np.array_split(rows, agents)]


def _check_rows(rows: int, agents: int) -> None:
    """Refuse fewer rows than agents."""
    if rows < agents:
        raise ConfigError(
            f"{agents} agents need at least {agents} rows, but the data have {rows}; use fewer agents"
        )


def _enough(each: int, agents: int, target: Any, wanted: int, others: int) -> int:
    """The rows of a class per agent, if there is one for everybody."""
    if each < 1:
        raise ConfigError(
            f"{agents} agents cannot each have a row of class {target!r} and one of another: "
            f"the data have {wanted} of class {target!r}, and {others} of the others; use fewer agents"
        )
    return each


def _share(rows: Rows, i: int, each: int) -> Rows:
    return rows[i * each : (i + 1) * each]


def _joined(*parts: Rows) -> Rows:
    return np.sort(np.concatenate(parts))


def _listed(classes: Any) -> str:
    """The classes in words, at most thirty of them."""
    names = [repr(label) for label in classes]
    return ", ".join(names[:30]) + (", ..." if len(names) > 30 else "")
