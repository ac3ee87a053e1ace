"""A protected study without masks: sites replay it and add their numbers, and a Master that may deviate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedshed.algorithms.registry import build
from fedshed.exchange.sums import ALL
from fedshed.fitting.all_sites import AllTables, Playing
from fedshed.fitting.fit_problem import Fitted, fit_problem
from fedshed.fitting.protected_site import ObjectiveRows, SiteSteps
from fedshed.fitting.protected_study import _together
from fedshed.privacy.addends import Totals, add
from fedshed.protocol.replies import Request
from fedshed.solve.goal import Goal
from fedshed.solve.optimize import build_problem
from fedshed.tables import Federation

Deviate = Callable[[int, Request], Any]  # what a Master asks in place of its request


class PlainSums(AllTables):
    """The Master's side: sums in the open; `deviate` changes what is asked in an exchange."""

    def __init__(
        self, steps: Mapping[str, SiteSteps], deviate: Deviate = lambda number, request: None
    ) -> None:
        super().__init__(self._summed)
        self.steps, self._deviate = steps, deviate
        self.log: list[
            tuple[int, bytes, bytes, Totals]
        ] = []  # of each exchange: what was asked, and the sums

    def _summed(self, label: int, payload: bytes) -> bytes:
        codec = self.codec(label)
        request = codec.decode_request(payload)
        parts = self._deviate(len(self.log) + 1, request)
        asked = payload
        if parts is not None:
            common = codec.encode_common(request.run, request.number, parts)
            asked = codec.encode_request(common, request.mine)
        found = []
        for step in self.steps.values():
            step.check(label, asked)
            found.append(step.addends(label, asked))
        assert len({public for public, _, _ in found}) == 1
        totals = add([addends for _, addends, _ in found])
        for step in self.steps.values():
            step.take(label, asked, found[0][0], totals)
        self.log.append((label, asked, found[0][0], totals))
        return self.reply(label, payload, found[0][0], totals)


def rows_of(sites: int = 3, rows: int = 40, units: Any = (1.0, 10.0, 1e-3), seed: int = 0) -> Federation:
    """A small logistic problem whose columns have very different units."""
    rng = np.random.default_rng(seed)
    scale = np.asarray(units, dtype=float)
    tables = {}
    for k in range(sites):
        Z = rng.normal(size=(rows, len(scale)))
        y = (Z @ np.ones(len(scale)) + rng.logistic(size=rows) > 0).astype(int)
        tables[f"site{k}"] = (Z * scale, y)
    return Federation.from_sites(tables)


class Ready:
    """A study that is ready to be played."""

    def __init__(self, play: Callable[[AllTables], Fitted], sums: PlainSums) -> None:
        self._play, self.sums = play, sums

    def __call__(self) -> tuple[Fitted, PlainSums]:
        return self._play(self.sums), self.sums


@contextmanager
def played(
    federation: Federation, algorithm: str = "newton", loss: str = "logistic",
    deviate: Deviate = lambda number, request: None, **settings: Any,
) -> Iterator[Ready]:  # fmt: skip
    """A study that is ready to be played; its sites' replays end with the context.

    `settings` are more of those of `fit_problem`.
    """
    objectives, problem = build_problem(federation, loss, 1e-3, True)
    together, chosen = _together(problem, objectives), build(algorithm)

    def play(tables: AllTables) -> Fitted:
        sites = tables.start(Playing(together, chosen, None, 1))
        return fit_problem(together, chosen, sites, Goal(), why=algorithm, intercept=True, **settings)

    assert set(together.weights) == {ALL}
    steps = {i: SiteSteps(play, ObjectiveRows(i, model)) for i, model in objectives.items()}
    try:
        yield Ready(play, PlainSums(steps, deviate))
    finally:
        for step in steps.values():
            step.close()
