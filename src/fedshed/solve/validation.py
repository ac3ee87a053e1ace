"""The checks of `optimize`: every mistake is named, with what to do, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from scipy.sparse import issparse

from fedshed._utils.errors import ConfigError, SingularError
from fedshed.algorithms import Budget, as_channel, build
from fedshed.algorithms.auto import choose, choose_composite, choose_summable
from fedshed.algorithms.base import Algorithm, AnyAlgorithm
from fedshed.algorithms.costs import ELSEWHERE, Network, Shape
from fedshed.algorithms.firth import choose_firth
from fedshed.algorithms.linesearch import LineSearch
from fedshed.algorithms.linked import Linked
from fedshed.algorithms.registry import check_composite, configured
from fedshed.exchange import Transport
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.rows import Rows, centred_gram, chosen_columns, gram
from fedshed.linalg.solve import collinear, off_centre, plain_name, unit_diagonal
from fedshed.objectives import LinearModel
from fedshed.objectives.families import family_of, parts_of, with_value
from fedshed.protocol.conversation import Problem
from fedshed.protocol.precision import Bits, Differences, EntropyCoded, Exact
from fedshed.solve.goal import Goal
from fedshed.tables import Federation


def absolute(l1: Any, n: int, intercept: bool, loss: str) -> Vector | None:
    """l1 as one number for each coefficient, as l2; None where all are 0, and the cost is smooth."""
    values = ridge(l1, n, intercept, "l1")
    if values.any() and family_of(loss).classes == "many":
        raise ConfigError(SEVERAL_CLASSES)
    return values if values.any() else None


SEVERAL_CLASSES = (
    "l1 is for one linear predictor: with several classes the zeros would depend on the choice of contrasts; "
    "fit each class against the others, or use l2"
)


def ridge(l2: Any, n: int, intercept: bool, name: str = "l2") -> Vector:
    """l2 as one number for each coefficient; where none is given for the intercept, it is unpenalised."""
    values = _numbers(l2, name, "a number or one for each coefficient")
    if values.ndim == 0:
        values = np.full(n, float(values))
        values[n - intercept :] = 0.0
    if intercept and values.shape == (n - 1,):
        values = np.append(values, 0.0)
    if values.shape != (n,):
        raise ConfigError(
            f"{name} has shape {values.shape}; give one number or {n}, one for each coefficient"
        )
    if not np.isfinite(values).all() or values.min() < 0:
        raise ConfigError(f"{name} must be finite and at least 0, not {l2!r}")
    return values


def checked_algorithm(
    algorithm: str | AnyAlgorithm,
    budget: Budget,
    line_search: LineSearch | None,
    seed: int,
    problem: Problem,
) -> AnyAlgorithm:
    """The algorithm as configured, if it is for this loss and its channel knows every site."""
    if isinstance(algorithm, str):
        name, chosen = algorithm, build(algorithm, budget, line_search, whole(seed, "seed"))
    elif isinstance(algorithm, Algorithm):
        name, chosen = (
            type(algorithm).__name__,
            configured(algorithm, budget, line_search, whole(seed, "seed")),
        )
    else:
        raise ConfigError(f"algorithm must be a name or an Algorithm, not {algorithm!r}")
    if problem.l1 is not None:
        check_composite(chosen)
    if chosen.losses is not None and problem.loss not in chosen.losses:
        raise ConfigError(f"{name} is for {', '.join(chosen.losses)} only, not for {problem.loss}")
    if (channel := getattr(chosen, "channel", None)) is not None:
        for site in problem.agents:
            whole(channel.eigenpairs(1, site, 8), f"the eigenpairs that {channel!r} gives site {site!r}")
    return chosen


def new_file(path: str | Path) -> None:
    """Refuse to overwrite another run."""
    if Path(path).exists():
        raise ConfigError(
            f"{path} exists; continue with fedshed.resume(path, federation), or remove it first"
        )


def reachable(transport: Transport, agents: Sequence[str]) -> None:
    """Every site must be on the transport, by the same name."""
    missing = sorted(set(agents) - set(transport.agents()))
    if missing:
        raise ConfigError(
            f"the transport does not reach {missing}; it reaches {sorted(transport.agents())}, so use these "
            "names"
        )


def choose_algorithm(
    algorithm: str | AnyAlgorithm, budget: Budget, line_search: LineSearch | None, seed: int,
    problem: Problem, stateless: bool = False, network: Network | None = None, *, firth: bool = False,
    protected: bool = False, entries: float | None = None,
) -> tuple[AnyAlgorithm, str]:  # fmt: skip
    """The algorithm to run, and one line that says which it is and, for "auto", why.

    Firth's penalty has an algorithm of its own; in a protected study only sums leave the sites.  `network` is
    what lies between the Master and the sites, and `entries` how many numbers sparse tables store.
    """
    if network is not None and not isinstance(network, Network):
        raise ConfigError(f"network must be a Network(latency=..., rate=...), not {network!r}")
    if firth:
        return choose_firth()
    if protected and algorithm == "auto" and problem.l1 is None:
        return choose_summable(problem.n)
    if algorithm == "auto" and problem.l1 is not None:
        algorithm, why = choose_composite(problem.n, as_channel(budget))
        budget = None
    elif algorithm == "auto":
        shape = _shape(problem, entries)
        algorithm, why = choose(shape, as_channel(budget), network or ELSEWHERE, stateless)
        budget = None
    else:
        why = algorithm if isinstance(algorithm, str) else type(algorithm).__name__
    return checked_algorithm(algorithm, budget, line_search, seed, problem), why


def _shape(problem: Problem, entries: float | None) -> Shape:
    """The size of a problem; where agents did not say how many rows they have, their weights stand for it."""
    rows: float = sum(size.rows for size in problem.sizes.values())
    rows = rows or sum(problem.weights.values())
    names = {plain_name(column) for column in problem.columns} or {""}
    contrasts = problem.n // len(names) if family_of(problem.loss).classes == "many" else 1
    quadratic = family_of(problem.loss).quadratic
    return Shape(problem.n, len(problem.agents), rows, entries, quadratic, contrasts)


def stored_entries(objectives: Mapping[str, LinearModel]) -> float | None:
    """How many numbers sparse tables store; None where they are dense."""
    tables = [objective.X for objective in objectives.values()]
    return float(sum(X.nnz for X in tables)) if all(issparse(X) for X in tables) else None


def with_precision(algorithm: AnyAlgorithm, precision: Any) -> AnyAlgorithm:
    """The algorithm with this precision in place of its own."""
    if precision is None:
        return algorithm
    if not isinstance(precision, Exact | Bits | EntropyCoded):
        raise ConfigError(f"precision must be Exact(), Bits(bits=8) or EntropyCoded(), not {precision!r}")
    if isinstance(precision, Differences) and not isinstance(algorithm, Linked):
        raise ConfigError(
            f"precision = Differences() is for lbfgs and qn-shed, not for {type(algorithm).__name__}; "
            "use EntropyCoded() or Bits()"
        )
    return replace(algorithm, precision=precision)


def federation_of(value: Any) -> Federation:
    """A federation."""
    if not isinstance(value, Federation):
        raise ConfigError(
            f"optimize needs a Federation, not {type(value).__name__}; build one with Federation.from_arrays"
        )
    return value


def flag(value: Any, name: str) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def parameter_given(loss: str) -> None:
    """Refuse a loss whose parameter has to be searched for, which takes several fits."""
    parameter = family_of(loss).parameter
    if parameter is not None and parameter.searched and parts_of(loss)[1] is None:
        raise ConfigError(
            f"the {loss} loss needs its {parameter.name}: write '{with_value(loss, parameter.start)}', or "
            "use fedshed.fit, which searches for it"
        )


def start(theta0: Any, n: int) -> Vector:
    """The start theta^1: zeros unless given."""
    theta = np.zeros(n) if theta0 is None else _numbers(theta0, "theta0", f"{n} numbers")
    if theta.shape != (n,) or not np.isfinite(theta).all():
        raise ConfigError(f"theta0 must hold {n} finite numbers, not shape {theta.shape}")
    return theta


def null_start(theta0: str, intercept: bool) -> None:
    """A start at the null model needs an intercept."""
    if theta0 != "null" or not intercept:
        raise ConfigError(f'theta0 = {theta0!r}: give numbers, or "null" with intercept=True')


def tolerance(value: Any, name: str = "tol") -> float:
    """A finite number, at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < np.inf:
        raise ConfigError(f"{name} must be a finite number >= 0, not {value!r}")
    return float(value)


def known_optimum(f_star: Any) -> float | None:
    """f*, if it is known."""
    if f_star is not None and not np.isfinite(_numbers(f_star, "f_star", "a number")).all():
        raise ConfigError(f"f_star must be finite or None, not {f_star!r}")
    return None if f_star is None else float(f_star)


def gap_tolerance(gap_tol: Any, f_star: Any) -> float | None:
    """A number to stop at, where f* is known."""
    if gap_tol is not None and f_star is None:
        raise ConfigError("gap_tol needs f_star, because the gap is f - f_star; give f_star")
    return None if gap_tol is None else tolerance(gap_tol, "gap_tol")


def whole(value: Any, name: str) -> int:
    """A whole number, at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ConfigError(f"{name} must be a whole number >= 0, not {value!r}")
    return int(value)


def goal(
    tol: Any, max_iterations: Any, f_star: Any, gap_tol: Any, quorum: Any, patience: Any, sites: int
) -> Goal:
    """When a run over so many sites ends."""
    if not 1 <= whole(quorum, "quorum") <= sites:
        raise ConfigError(f"quorum must be 1 to {sites}, the number of sites, not {quorum}")
    if whole(patience, "patience") < 1:
        raise ConfigError(f"patience must be at least 1 exchange, not {patience}")
    return Goal(
        tolerance(tol), whole(max_iterations, "max_iterations"), known_optimum(f_star),
        gap_tolerance(gap_tol, f_star), int(quorum), int(patience),
    )  # fmt: skip


Explain: TypeAlias = Callable[[Sequence[str]], str | None]  # why columns are collinear, if that is known


def unknown_cause(columns: Sequence[str]) -> str | None:
    """No reason beyond the numbers themselves."""
    return None


def unique_optimum(
    objectives: Mapping[str, LinearModel], l2: Vector, columns: tuple[str, ...],
    explain: Explain = unknown_cause,
) -> None:  # fmt: skip
    """Refuse unpenalised columns that are collinear over all sites, where the optimum is not unique."""
    width = next(iter(objectives.values())).X.shape[1]
    free = np.flatnonzero(l2[:width] == 0)  # with classes: the same columns in each contrast
    if len(free) == 0:
        return
    tables = [chosen_columns(objective.varied, free) for objective in objectives.values()]
    names = [plain_name(columns[j]) for j in free]
    G = np.asarray(sum(map(gram, tables)))
    if why := collinear_columns(G, names, lambda: _centred(tables, names), explain=explain):
        raise SingularError(why)


def collinear_columns(
    G: Matrix, columns: Sequence[str], centred: Callable[[], Matrix] | None = None, separable: bool = False,
    explain: Explain = unknown_cause,
) -> str | None:  # fmt: skip
    """Which columns depend on each other, where a Gram matrix or a Hessian of them is singular.

    Rounding alone may make it so: `centred` gives that of columns less their means, where rows are at hand.
    The Hessian of a loss that is flat far out (`separable`) is so too where the data are separated.
    """
    found = _dependent(G)
    if not found:
        return None
    far = off_centre(G, columns, found)
    if far and centred is not None and (still := _dependent(centred())):
        found, far = still if len(still) > 1 else found, None
    names = list(dict.fromkeys(plain_name(columns[j]) for j in found))
    if why := explain(names):
        return why
    shown = ", ".join(names[:10]) + f" and {len(names) - 10} more" * (len(names) > 10)
    separated = ", or the data are separated there" * separable
    if far and separable:
        return f"{far}; if the data are separated there instead, set l2 > 0"
    return (
        far
        or f"these are collinear over all sites and not penalised: {shown}{separated}; drop one or set l2 > 0"
    )


def _dependent(G: Matrix) -> list[int]:
    """The columns that depend on each other; none where a Gram matrix is regular."""
    _, unit = unit_diagonal(G)
    regular = np.linalg.eigvalsh(unit)[0] > len(G) * np.finfo(float).eps
    return [] if regular else collinear(unit).tolist()


def _centred(tables: Sequence[Rows], columns: Sequence[str]) -> Matrix:
    """The Gram matrix of all rows, each column but an intercept less its mean."""
    rows = sum(X.shape[0] for X in tables)
    centres = sum(X.T @ np.ones(X.shape[0]) for X in tables) / rows
    centres = np.where(np.array(columns) == "intercept", 0.0, centres)
    return np.asarray(sum(centred_gram(X, centres) for X in tables))


def _numbers(value: Any, name: str, expected: str) -> Vector:
    try:
        return np.array(value, dtype=float)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be {expected}, not {value!r}") from None
