"""What the Master holds of each agent after every iteration, read from its state: nothing more is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedshed.algorithms.shed_curvature import SharedCurvature
from fedshed.linalg.arrays import Scalars
from fedshed.report.downsample import spread
from fedshed.report.model import Grid, Spectrum
from fedshed.solve.engine import Progress
from fedshed.solve.watching import Observer

MOST_AGENTS, MOST_ITERATIONS = 200, 100  # of a grid
MOST_STEPS, MOST_VALUES = 400, 3000  # of a spectrum: iterations, and eigenvalues over all of its Hessians


class _Seen(NamedTuple):
    """The eigenvalues held of one Hessian; its vectors would fill the memory."""

    k: int
    values: Scalars
    rho: float


class Recorder(Observer):
    """Watches one run: how many eigenpairs are held of each agent, and the spectra of a few of them."""

    def __init__(self, spectra: int = 3) -> None:
        self._most = spectra
        self._agents: tuple[str, ...] = ()
        self._iterations: list[int] = []
        self._q: list[NDArray[np.int32]] = []
        self._seen: dict[str, list[_Seen]] = {}

    def __call__(self, progress: Progress) -> None:
        """Take down the state after an iteration; an algorithm that holds no eigenpairs leaves no record."""
        known = progress.state.known
        held = {i: known[i].curvature for i in sorted(known)}
        if not held or not all(isinstance(one, SharedCurvature) for one in held.values()):
            return
        if not self._agents:
            self._agents = tuple(held)
            self._seen = {self._agents[i]: [] for i in spread(len(held), self._most)}
        for agent, seen in self._seen.items():
            seen.append(_Seen(held[agent].k, held[agent].values, held[agent].rho))
        self._q.append(np.array([held[i].q for i in self._agents], dtype=np.int32))
        self._iterations.append(len(progress.rows))

    def pairs(self) -> Grid | None:
        """q_t^(i), thinned."""
        if not self._iterations:
            return None
        return grid(self._agents, list(self._iterations), lambda t, i: int(self._q[t][i]))

    def spectra(self) -> tuple[Spectrum, ...]:
        """q_t, rho_t and the eigenvalues sent, of a few agents."""
        iterations = list(self._iterations)
        return tuple(_spectrum(agent, iterations, seen) for agent, seen in self._seen.items() if iterations)


def grid(agents: Sequence[str], iterations: Sequence[int], value: Callable[[int, int], int | None]) -> Grid:
    """`value(t, i)` of iterations and agents by their index, as many of both as a screen can show."""
    who, when = spread(len(agents), MOST_AGENTS), spread(len(iterations), MOST_ITERATIONS)
    return Grid(
        agents=tuple(agents[i] for i in who),
        iterations=tuple(iterations[t] for t in when),
        values=tuple(tuple(value(t, i) for t in when) for i in who),
        of=(len(agents), len(iterations)),
    )


def _spectrum(
    agent: str, iterations: Sequence[int], seen: Sequence[_Seen], most: int = MOST_STEPS
) -> Spectrum:
    shown = spread(len(iterations), most)
    last = {seen[t].k: seen[t] for t in shown}  # pairs are only added: the last has all that were sent
    if most > 2 and sum(len(one.values) for one in last.values()) > MOST_VALUES:
        return _spectrum(agent, iterations, seen, most // 2)
    order = {k: index for index, k in enumerate(last)}
    return Spectrum(
        agent=agent,
        iterations=tuple(iterations[t] for t in shown),
        q=tuple(len(seen[t].values) for t in shown),
        rho=tuple(digits(seen[t].rho) for t in shown),
        hessian=tuple(order[seen[t].k] for t in shown),
        values=tuple(tuple(map(digits, one.values)) for one in last.values()),
    )


def digits(value: float) -> float:
    """Four digits: enough to draw."""
    return float(f"{value:.4g}")
