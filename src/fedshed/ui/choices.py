"""The choices in the form of the live page, and the check that a request asks for nothing else."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct

from fedshed._utils.errors import ConfigError, DataError
from fedshed._utils.names import closest
from fedshed.algorithms import ALGORITHMS
from fedshed.algorithms.channels import Rayleigh
from fedshed.algorithms.registry import Entry
from fedshed.datasets.loaders import DATASETS, Dataset
from fedshed.datasets.partitions import PARTITIONS
from fedshed.experiments import ComparisonSpec
from fedshed.experiments.compare import defaults
from fedshed.experiments.study import as_budget

MOST_ITERATIONS = 10_000_000
DEALT = {
    "iid": "every agent gets a random share of the rows",
    "two-class": "every agent has rows of the target class and of one other class",
    "one-label": "every agent has all rows of one label",
    "dirichlet": "the shares of the agents in each label are drawn from a Dirichlet distribution",
    "natural": "every agent is one of the sites at which the rows were collected",
}
NOT_OFFERED = ("target", "preprocessing", "loss", "intercept", "line_search", "repeats")  # by the form


class Choice(Struct, frozen=True):
    """A name in a list of the form, and its description."""

    name: str
    about: str


class DataChoice(Struct, frozen=True):
    """A data set with the partitions and algorithms that are possible on it, and the defaults."""

    name: str
    about: str
    partition: str
    partitions: tuple[str, ...]
    agents: int
    algorithms: tuple[str, ...]
    usual: tuple[str, ...]  # the algorithms that are compared by default
    missing: str = ""  # how to get its files, if they are missing


class Choices(Struct, frozen=True):
    """All choices of the form."""

    datasets: tuple[DataChoice, ...]
    partitions: tuple[Choice, ...]
    algorithms: tuple[Choice, ...]


class WrongFieldError(ConfigError):
    """A setting of the form that is not possible; `field` says which."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field = field


def choices() -> Choices:
    """The data sets, the partitions of the rows, and the algorithms."""
    return Choices(
        tuple(map(_data_choice, DATASETS.values())),
        tuple(Choice(name, DEALT[name]) for name in PARTITIONS),
        tuple(choice for entry in ALGORITHMS.values() for choice in _algorithm_choices(entry)),
    )


def read_settings(body: bytes) -> ComparisonSpec:
    """Read the settings that the form sent; an unknown setting or a wrong value is refused by name."""
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings are not JSON: {error}") from error
    for name in given:
        if name not in ComparisonSpec.__struct_fields__ or name in NOT_OFFERED:
            known = [field for field in ComparisonSpec.__struct_fields__ if field not in NOT_OFFERED]
            raise ConfigError(f"unknown setting {name!r}{closest(name, known)}")
    try:
        return msgspec.convert(given, ComparisonSpec)
    except msgspec.ValidationError as error:
        found = re.search(r"\$\.(\w+)", str(error))
        field = found.group(1) if found else ""
        raise WrongFieldError(field, f"{field}: write {_KINDS.get(field, 'another value')}") from error


_KINDS = {
    "agents": "a whole number", "l2": "a number", "tol": "a number", "max_iterations": "a whole number",
    "seed": "a whole number", "budget": "a whole number of eigenpairs, or rayleigh",
    "algorithms": "a list of names", "dataset": "a name", "partition": "a name",
}  # fmt: skip


def check(study: ComparisonSpec) -> None:
    """Refuse settings that the form does not offer for this data set, before anything is loaded."""
    if study.dataset not in DATASETS:
        raise WrongFieldError(
            "dataset", f"unknown data set {study.dataset!r}{closest(study.dataset, DATASETS)}"
        )
    data = _data_choice(DATASETS[study.dataset])
    if data.missing:
        raise WrongFieldError("dataset", data.missing)
    if study.partition is not None and study.partition not in data.partitions:
        raise WrongFieldError(
            "partition",
            f"data set {data.name!r} has no partition {study.partition!r}; choose one of "
            f"{', '.join(data.partitions)}",
        )
    for name in study.algorithms if study.algorithms is not None else data.usual:
        _check_algorithm(name, data, DATASETS[study.dataset].loss)
    if study.algorithms == ():
        raise WrongFieldError("algorithms", "choose at least one algorithm")
    try:
        as_budget(study.budget)
    except ConfigError as error:
        raise WrongFieldError("budget", str(error)) from None
    _check_numbers(study, data)


def _check_algorithm(name: str, data: DataChoice, loss: str) -> None:
    """Refuse all but the registered algorithms for this loss, so that a form cannot name files to execute."""
    if name not in data.algorithms and name in {one.name for one in choices().algorithms}:
        raise WrongFieldError(
            "algorithms",
            f"{name} cannot be used with the {loss} loss of data set {data.name!r}; choose another algorithm",
        )
    if name not in data.algorithms:
        raise WrongFieldError("algorithms", f"unknown algorithm {name!r}{closest(name, data.algorithms)}")


def _check_numbers(study: ComparisonSpec, data: DataChoice) -> None:
    own = study.partition or data.partition
    if study.agents is not None and own == "natural" and study.agents != data.agents:
        raise WrongFieldError(
            "agents", f"data set {data.name!r} has {data.agents} sites; leave the number of agents out"
        )
    wrong = {
        "agents": study.agents is not None and study.agents < 1 and "must be at least 1",
        "l2": not (isfinite(study.l2) and study.l2 >= 0) and "must be a number that is not negative",
        "tol": not (isfinite(study.tol) and study.tol >= 0) and "must be a number that is not negative",
        "max_iterations": not 1 <= study.max_iterations <= MOST_ITERATIONS
        and f"must be between 1 and {MOST_ITERATIONS:,}",
        "seed": study.seed < 0 and "must not be negative",
    }
    for field, why in wrong.items():
        if why:
            raise WrongFieldError(field, f"{field} {why}, not {getattr(study, field)}")


def _data_choice(data: Dataset) -> DataChoice:
    fitting = [
        entry for entry in ALGORITHMS.values() if data.loss in (entry.algorithm.losses or (data.loss,))
    ]
    names = tuple(choice.name for entry in fitting for choice in _algorithm_choices(entry))
    by_class = ("two-class", "one-label", "dirichlet") if data.classes else ()
    natural = ("natural",) if data.partition == "natural" else ()
    return DataChoice(
        data.name, data.description, data.partition, ("iid", *by_class, *natural),
        data.agents, names, defaults(data.loss), _missing(data),
    )  # fmt: skip


def _algorithm_choices(entry: Entry) -> tuple[Choice, ...]:
    """An algorithm and, if the size of its messages depends on the link, the same over fading links."""
    own = Choice(entry.name, entry.about)
    if not entry.takes_budget or isinstance(getattr(entry.algorithm, "channel", None), Rayleigh):
        return (own,)
    return own, Choice(
        f"{entry.name}+", f"{entry.name}, with as many pairs as a fading link carries (Rayleigh)"
    )


def _missing(data: Dataset) -> str:
    try:
        data.find_files()
    except DataError as sentence:
        return str(sentence)
    return ""
