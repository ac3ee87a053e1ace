"""Named data sets, read from scikit-learn or from checked files, and distributed over simulated agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.datasets import claims, images, tabular
from fedshed.datasets import multi_site as silos
from fedshed.datasets.checksums import SHA256
from fedshed.datasets.partitions import PARTITIONS, Rows, check_target, check_whole
from fedshed.datasets.records import Content, Dataset
from fedshed.tables.federation import Federation
from fedshed.tables.stored import Table

__all__ = ["DATASETS", "SHA256", "Dataset", "labels", "load", "names"]

DATASETS: Mapping[str, Dataset] = {
    dataset.name: dataset
    for dataset in (*images.DATASETS, *tabular.DATASETS, *silos.DATASETS, claims.FREMTPL2)
}
_COUNTS_AGENTS = ("one-label", "natural")  # the data say how many agents there are, unless told


def names() -> tuple[str, ...]:
    """The names of the data sets that `load` knows.

    Returns
    -------
    tuple of str
        The names, as `fedshed datasets` lists them.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.datasets.names()[0]
    'digits'
    """
    return tuple(DATASETS)


def load(
    name: str,
    *,
    agents: int | None = None,
    partition: str | None = None,
    seed: int = 0,
    target: Any = None,
    preprocessing: str | None = None,
) -> Federation:
    """Load a named data set and distribute its rows over agents.

    If the data set has classes, y = +1 for the target class and -1 for all others; a numeric response stays
    as it is.

    Parameters
    ----------
    name : str
        The name of a data set; `fedshed datasets` lists all, with their sources. "digits" needs no download.
    agents : int, optional
        The number of agents. Default: that of the data set.
    partition : str, optional
        How rows are distributed: "iid", "two-class", "one-label", "dirichlet" or "natural". Default: that of
        the data set.
    seed : int, default 0
        The seed of the distribution of rows.
    target : optional
        The class that is compared with all others. Default: that of the data set.
    preprocessing : str, optional
        How the images of "fashion-mnist", "mnist" and "emnist-digits" become 300 columns: "pca-uncentred" or
        "pca-rescaled" (docs/data.md). Default: "pca-uncentred". Other data sets have no choice.

    Returns
    -------
    Federation
        One table per agent. Its name says if the rows are a subset of the data set, and if the pre-processing
        is not the default.

    Raises
    ------
    ConfigError
        If a name, the number of agents, the target or the pre-processing is not possible.
    DataError
        If a data file is missing or altered; the message says where to get it.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.datasets.load("digits", agents=4)
    Federation('digits': 4 sites, 360 rows, 64 columns)
    """
    deal = _Deal.asked(name, agents, partition, seed, target)
    how = choose_preprocessing(name, preprocessing)
    content = deal.dataset.read() if how is None else deal.dataset.preprocessings[how]()
    y = np.where(content.y == deal.target, 1, -1) if deal.dataset.classes else content.y
    sites = {site: _table(content, y, rows) for site, rows in deal.rows(content).items()}
    return Federation.from_sites(sites, columns=content.columns, name=_title(deal.dataset, content, how))


def _title(dataset: Dataset, content: Content, preprocessing: str | None) -> str:
    """The name of a data set with what results on it must say."""
    is_default = preprocessing == next(iter(dataset.preprocessings), None)
    notes = [note for note in (content.note, None if is_default else preprocessing) if note]
    return f"{dataset.name} ({'; '.join(notes)})" if notes else dataset.name


def _table(content: Content, y: NDArray[Any], rows: Rows) -> Table:
    offset = None if content.offset is None else content.offset[rows]
    return Table(content.X[rows], y[rows], None, offset)


def labels(
    name: str, *, agents: int | None = None, partition: str | None = None, seed: int = 0, target: Any = None
) -> dict[str, NDArray[Any]]:
    """The original labels of the rows that `load` gives each agent, before they become +1 and -1.

    Parameters
    ----------
    name : str
        The name of a data set, as for `load`.
    agents : int, optional
        The number of agents. Default: that of the data set.
    partition : str, optional
        How rows are distributed. Default: that of the data set.
    seed : int, default 0
        The seed of the distribution of rows.
    target : optional
        The class that is compared with all others. Default: that of the data set.

    Returns
    -------
    dict
        For each agent, the labels of its rows in their order.

    Examples
    --------
    >>> import fedshed
    >>> sorted({int(label) for label in fedshed.datasets.labels("digits", agents=4)["agent-00"]})
    [0, 1]
    """
    deal = _Deal.asked(name, agents, partition, seed, target)
    content = deal.dataset.read()
    return {site: content.y[rows] for site, rows in deal.rows(content).items()}


@dataclass(frozen=True)
class _Deal:
    """A data set, and how its rows are distributed."""

    dataset: Dataset
    partition: str
    agents: int | None
    seed: int
    target: Any

    @classmethod
    def asked(cls, name: str, agents: int | None, partition: str | None, seed: int, target: Any) -> _Deal:
        """What was asked for, checked before anything is read."""
        dataset = DATASETS[_known("data set", name, DATASETS)]
        how = _known("partition", dataset.partition if partition is None else partition, PARTITIONS)
        count = dataset.agents if agents is None and how not in _COUNTS_AGENTS else agents
        if count is not None:
            check_whole("agents", count, 1)
        check_whole("seed", seed, 0)
        return cls(dataset, how, count, seed, _target(dataset, target))

    def rows(self, content: Content) -> dict[str, Rows]:
        """The rows of each agent by its name: that of the site, else `agent-07`."""
        used = self._used(len(content.y))
        sites = None if content.sites is None else content.sites[used]
        parts = PARTITIONS[self.partition](content.y[used], self.agents, self.seed, self.target, sites)
        if self.partition == "natural" and sites is not None:
            agents = np.unique(sites).tolist()
        else:
            agents = [_agent(i, len(parts)) for i in range(len(parts))]
        return {agent: used[part] for agent, part in zip(agents, parts, strict=True)}

    def _used(self, rows: int) -> Rows:
        """All rows, or random ones, just enough to give each agent as many as the paper does."""
        each = self.dataset.per_agent
        if each is None or self.agents is None or self.partition != "iid" or each * self.agents >= rows:
            return np.arange(rows)
        order = np.random.default_rng((self.seed, rows)).permutation(rows)
        return np.sort(order[: each * self.agents])


def _target(dataset: Dataset, target: Any) -> Any:
    """The class against the rest, refused where there is none."""
    if dataset.classes:
        chosen = dataset.target if target is None else target
        check_target(chosen, dataset.classes)
        return chosen
    if target is not None:
        raise ConfigError(f"data set {dataset.name!r} predicts a number, not a class; leave target out")
    return None


def choose_preprocessing(name: str, preprocessing: str | None) -> str | None:
    """The pre-processing of a data set, by default its own; None if it has no choice of one."""
    known = DATASETS[_known("data set", name, DATASETS)].preprocessings
    if preprocessing is not None and not known:
        raise ConfigError(f"data set {name!r} has no choice of pre-processing; leave preprocessing out")
    chosen = next(iter(known), None) if preprocessing is None else preprocessing
    return None if chosen is None else _known("preprocessing", chosen, known)


def _agent(i: int, agents: int) -> str:
    """`agent-07`: padded with zeros, so that the order of names is the order of numbers."""
    return f"agent-{i:0{max(2, len(str(agents - 1)))}d}"


def _known(kind: str, name: str, known: Iterable[str]) -> str:
    """The name, or an error that lists the known ones and guesses which was meant."""
    if name not in known:
        raise ConfigError(f"unknown {kind} {name!r}{closest(str(name), known)}")
    return name
