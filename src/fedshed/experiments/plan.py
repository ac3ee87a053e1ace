"""An experiment is data: a TOML file says which algorithms run on which problems, and what is drawn."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import in_words
from fedshed._utils.names import closest
from fedshed.algorithms.linesearch import LineSearch
from fedshed.algorithms.renewal import Renewal


class Problem(Struct, frozen=True, forbid_unknown_fields=True):
    """The data and the cost; None is the data set's own."""

    dataset: str
    l2: float
    loss: str = "logistic"
    partition: str | None = None
    agents: int | None = None
    target: int | None = None
    seed: int = 0
    preprocessing: str | None = None  # of images, by name


Part: TypeAlias = Renewal | LineSearch  # a parameter that is a table, such as {type = "Fibonacci", start = 0}


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """One algorithm: its budget, and its step size or that the grid chooses it."""

    algorithm: str
    budget: int | str | None = None
    step_size: float | None = None
    rate: float | None = None  # FedNL's learning rate
    renewal_period: int | None = None
    label: str | None = None
    line_search: str | None = None
    precision: str | None = None  # "exact", or a number of bits
    options: tuple[tuple[str, float | int | bool | Part], ...] = ()  # parameters of the algorithm by name
    tuned: bool = False
    max_iterations: int = 500

    @property
    def name(self) -> str:
        """How the run is called in a legend."""
        return self.label or self.algorithm


class Panel(Struct, frozen=True, forbid_unknown_fields=True):
    """One problem of a figure and the runs on it."""

    title: str
    problem: Problem
    runs: tuple[Run, ...]
    renewals: str | None = None  # the run whose last three renewals are marked


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """A figure of the paper, or of the user's own."""

    name: str
    title: str
    paper: str
    kind: str
    panels: tuple[Panel, ...]
    x: tuple[str, ...] = ("rounds",)
    x_max: tuple[float, ...] = ()
    y: str = "gap"
    gap: float = 1e-12  # runs stop here
    seeds: int = 1  # how often each run is made, with the seeds of its problem that follow
    note: str = ""
    beside: bool = False  # not a figure of the paper, but beside them

    @property
    def heading(self) -> str:
        """The title, with the figure of the paper that it is."""
        return f"{self.title} ({self.paper})" if self.paper else self.title


OWN_KINDS = ("curves", "table", "hessian-counts")  # figures of any problems
OWN_X = ("rounds", "iteration", "exchanges", "uplink_vectors", "uplink_bytes", "downlink_bytes", "hessians")
OWN_Y = ("gap", "error")
GAP_OF_A_COUNT = 1e-11  # "converged", where a table counts what it took


@cache
def names() -> tuple[str, ...]:
    """All experiments, in the order of the paper."""
    return tuple(tomllib.loads(read("order.toml"))["order"])


def select(wanted: str) -> tuple[str, ...]:
    """The experiments of a name, of a family of names (`mnist` is `mnist-1e-5` and `mnist-1e-6`), or all."""
    chosen = tuple(n for n in names() if wanted in ("all", n) or n.startswith(f"{wanted}-"))
    if not chosen:
        raise ConfigError(f"unknown experiment {wanted!r}{closest(wanted, (*names(), 'all'))}")
    return chosen


def load(name: str, quick: bool = False) -> Figure:
    """One experiment; its quick form runs on small embedded data, with few iterations."""
    return _figure(name, tomllib.loads(read(f"{name}.toml")), quick)


def load_file(path: str | Path, quick: bool = False) -> Figure:
    """An experiment of the user's own, from a TOML file (docs/tutorials/compare.md shows one)."""
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(in_words(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    if quick and "quick" not in raw:
        raise ConfigError(f"{path} has no table [quick]; leave --quick out, or say there what it changes")
    tables = {"problem", "runs", "panels", "quick"}
    if unknown := sorted(set(raw) - tables - set(Figure.__struct_fields__)):
        hint = closest(unknown[0], (tables | set(Figure.__struct_fields__)) - {"name"})
        raise ConfigError(f"{path}: unknown field {unknown[0]!r}{hint}")
    if not raw.get("panels"):
        raise ConfigError(f"{path} has no [[panels]]; give each a title and the problem it is about")
    try:
        plan = _figure(Path(path).stem, {"title": Path(path).stem, "paper": "", **raw}, quick)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path}: {what}; docs/tutorials/compare.md shows one") from None
    _check(path, plan)
    return plan


def _check(path: str | Path, plan: Figure) -> None:
    """Refuse an experiment that cannot be run or drawn, before anything runs."""
    from fedshed.datasets import names as datasets

    if plan.seeds < 1:
        raise ConfigError(f"{path}: seeds must be at least 1, not {plan.seeds}")
    titles = [panel.title for panel in plan.panels]
    if len(set(titles)) < len(titles):
        raise ConfigError(f"{path}: two panels have the same title; give each its own")
    for what, said, known in (
        ("kind", [plan.kind], OWN_KINDS),
        ("x", plan.x, OWN_X),
        ("y", [plan.y], OWN_Y),
    ):
        if unknown := [word for word in said if word not in known]:
            raise ConfigError(f"{path}: {what} cannot be {unknown[0]!r}{closest(unknown[0], known)}")
    for panel in plan.panels:
        if panel.problem.dataset not in (*datasets(), "digits-least-squares"):
            hint = closest(panel.problem.dataset, datasets())
            raise ConfigError(f"{path}: unknown data set {panel.problem.dataset!r}{hint}")
        _check_preprocessing(path, panel.problem)
        labels = [run.name for run in panel.runs]
        if panel.renewals not in (None, *labels):
            raise ConfigError(f"{path}: renewals must be the label of a run, not {panel.renewals!r}")
        if not labels or len(set(labels)) < len(labels):
            raise ConfigError(f"{path}: panel {panel.title!r} needs runs with different labels")


def _check_preprocessing(path: str | Path, problem: Problem) -> None:
    from fedshed.datasets.loaders import choose_preprocessing

    if problem.preprocessing is None:
        return
    try:
        choose_preprocessing(problem.dataset.removesuffix("-least-squares"), problem.preprocessing)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _figure(name: str, raw: dict[str, Any], quick: bool) -> Figure:
    small = raw.pop("quick", {})
    problem, runs, panels = raw.pop("problem", {}), raw.pop("runs", []), raw.pop("panels", [])
    whole = [{"runs": runs, **problem, **panel} for panel in panels]
    filled = [_nested(_small(panel, small) if quick else panel) for panel in whole]
    if quick:
        quick_title = f"QUICK FORM, on scikit-learn's digits: {raw['title']}"
        raw |= {"title": quick_title, "seeds": 1, "x_max": []}  # costs on digits have axes of their own
    return msgspec.convert({"name": name, "kind": "curves", **raw, "panels": filled}, Figure)


def _small(panel: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """The panel on embedded data, with few iterations."""
    changes = dict(small)
    most = changes.pop("max_iterations", 10**9)
    if panel.get("loss") == "least-squares":
        changes["dataset"] = "digits-least-squares"
    if "dataset" in changes:  # the embedded data have no choice of pre-processing
        panel = {name: value for name, value in panel.items() if name != "preprocessing"}
    runs = [{**run, "max_iterations": min(run.get("max_iterations", 500), most)} for run in panel["runs"]]
    return {**panel, **changes, "runs": runs}


_OF_A_PANEL = ("title", "runs", "renewals")


def _nested(panel: dict[str, Any]) -> dict[str, Any]:
    problem = dict(panel)
    own: dict[str, Any] = {name: problem.pop(name) for name in _OF_A_PANEL if name in problem}
    return {**own, "problem": problem}


def read(name: str) -> str:
    """The text of a file of the experiments' folder."""
    return files("fedshed.experiments").joinpath("figures", name).read_text()
