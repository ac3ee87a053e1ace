"""A comparison on a named data set as plain data: what the command line, and later a file, says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed._utils.version import __version__
from fedshed.algorithms import Budget
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.channels import Rayleigh
from fedshed.algorithms.linesearch import Fused, LineSearch, TwoExchange
from fedshed.datasets import load
from fedshed.datasets.loaders import DATASETS, choose_preprocessing
from fedshed.experiments.compare import OnProgress, OnResult, OnRow, compare, defaults, prepared
from fedshed.experiments.comparison import Comparison
from fedshed.tables import Federation

LINE_SEARCHES: Mapping[str, LineSearch] = {"two-exchange": TwoExchange(), "fused": Fused()}


class ComparisonSpec(Struct, frozen=True, kw_only=True):
    """Which algorithms on which data with which settings; None is the data set's or the algorithm's own."""

    dataset: str = "digits"
    agents: int | None = None
    partition: str | None = None
    target: int | None = None
    preprocessing: str | None = None
    loss: str | None = None
    l2: float = 1e-5
    intercept: bool = False
    algorithms: tuple[str, ...] | None = None
    budget: int | str | None = None
    line_search: str | None = None
    tol: float = 1e-9
    max_iterations: int = 500
    gap: float | None = None  # costs are counted until f - f* is below it
    seed: int = 0
    repeats: int = 1  # partitions of the rows, by seed, seed + 1, ...

    def resolved(self) -> ComparisonSpec:
        """The same study, with the data set's own settings and the loss's algorithms written out."""
        own = DATASETS[_known("data set", self.dataset, DATASETS)]
        as_budget(self.budget), as_line_search(self.line_search)  # refused now, before the data is loaded
        if isinstance(self.repeats, bool) or self.repeats < 1:
            raise ConfigError(f"repeats must be at least 1, not {self.repeats!r}")
        fields = ("partition", "target", "loss")
        study = replace(self, **{name: getattr(own, name) for name in fields if getattr(self, name) is None})
        own_number = study.partition in ("one-label", "natural")  # of agents
        if self.repeats > 1 and study.partition == "natural":
            raise ConfigError("repeats are other partitions of the rows, and natural has one; leave it out")
        study = replace(study, preprocessing=choose_preprocessing(self.dataset, self.preprocessing))
        if study.agents is None and not own_number:
            study = replace(study, agents=own.agents)
        return study if self.algorithms is not None else replace(study, algorithms=defaults(study.loss))

    def run(self, on_row: OnRow | None = None, on_result: OnResult | None = None) -> Comparison:
        """Load the data and compare."""
        study = self.resolved()
        several = [study.data(study.seed + k) for k in range(study.repeats)]
        return study.compare(several, on_row, on_result=on_result)

    def data(self, seed: int | None = None) -> Federation:
        """The rows, dealt to the agents."""
        return load(
            self.dataset, agents=self.agents, partition=self.partition, target=self.target,
            seed=self.seed if seed is None else seed, preprocessing=self.preprocessing,
        )  # fmt: skip

    @property
    def _names(self) -> tuple[str, ...]:
        return defaults(self.loss) if self.algorithms is None else self.algorithms

    def prepared(self) -> dict[str, AnyAlgorithm]:
        """The algorithms ready to run, or the error of the first that cannot."""
        budget, line_search = as_budget(self.budget), as_line_search(self.line_search)
        return prepared(self._names, self.loss or "logistic", budget, line_search, self.seed)

    def compare(
        self,
        federation: Federation | Sequence[Federation],
        on_row: OnRow | None = None,
        watch: OnProgress | None = None,
        on_result: OnResult | None = None,
    ) -> Comparison:
        """Run the algorithms on these rows."""
        return compare(
            federation, self._names, loss=self.loss or "logistic", l2=self.l2,
            intercept=self.intercept, budget=as_budget(self.budget), tol=self.tol, seed=self.seed,
            line_search=as_line_search(self.line_search), max_iterations=self.max_iterations,
            target_gap=self.gap, on_row=on_row, watch=watch, on_result=on_result, command=self.command(),
            title="" if isinstance(federation, Federation) else self.title(federation),
        )  # fmt: skip

    def command(self) -> str:
        """The command line that makes this comparison again."""
        words = ["fedshed", "compare"]
        for name, value in asdict(self).items():
            if value is None or value is False or (name, value) == ("repeats", 1):
                continue
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
        return shlex.join(words)

    def title(self, several: Sequence[Federation]) -> str:
        """The data and the problem in one line."""
        data = several[0]
        size = f"{len(data.sites)} agents, {sum(data.rows.values())} rows, n = {data.dim + self.intercept}"
        repeats = f", median of {len(several)} partitions" if len(several) > 1 else ""
        return f"{data.name}: {size}, {self.loss}, l2 = {self.l2:g}{repeats}"


def facts(settings: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
    """Settings, data and summary, ready for JSON."""
    data = comparison.federation
    return {
        "version": __version__,
        "settings": settings,
        "data": {
            "name": data.name,
            "rows": sum(data.rows.values()),
            "columns": data.dim,
            "fingerprint": data.fingerprint(),
        },
        "f_star": comparison.f_star,
        "summary": [asdict(one) for one in comparison.summary()],
        "times": comparison.time_map(),
    }


def as_budget(text: int | str | None) -> Budget:
    """A budget as it is written: a whole number of eigenpairs, or `rayleigh`."""
    if text is None or text == "rayleigh":
        return None if text is None else Rayleigh()
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"budget must be a whole number of eigenpairs per round or 'rayleigh', not {text!r}"
        ) from None


def as_line_search(name: str | None) -> LineSearch | None:
    """A line search by its name."""
    return None if name is None else LINE_SEARCHES[_known("line search", name, LINE_SEARCHES)]


def _known(kind: str, name: str, known: Mapping[str, Any]) -> str:
    if name not in known:
        raise ConfigError(f"unknown {kind} {name!r}{closest(name, known)}")
    return name
