"""The border of `optimize`: every mistake is named, with what to do, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedshed.algorithm import Algorithm
from fedshed.algorithms import Budget, as_channel, build, with_line_search
from fedshed.arrays import Vector
from fedshed.datasets import Federation
from fedshed.errors import ConfigError, SingularError
from fedshed.linalg.solve import collinear
from fedshed.linesearch import LineSearch
from fedshed.objectives import LinearModel
from fedshed.objectives.base import gram


def ridge(l2: Any, n: int, intercept: bool) -> Vector:
    """l2 as one number for each coefficient; a single number leaves the intercept unpenalised."""
    values = _numbers(l2, "l2", "a number or one for each coefficient")
    if values.ndim == 0:
        values = np.full(n, float(values))
        values[n - intercept :] = 0.0
    if values.shape != (n,):
        raise ConfigError(f"l2 has shape {values.shape}; give one number or {n}, one for each coefficient")
    if not np.isfinite(values).all() or values.min() < 0:
        raise ConfigError(f"l2 must be finite and at least 0, not {l2!r}")
    return values


def suited(
    algorithm: str | Algorithm[Any],
    budget: Budget,
    line_search: LineSearch | None,
    seed: int,
    loss: str,
    federation: Federation,
) -> Algorithm[Any]:
    """The algorithm as configured, if it is for this loss and its channel knows every site."""
    seed = whole(seed, "seed")
    if isinstance(algorithm, str):
        name, chosen = algorithm, build(algorithm, budget, line_search, seed)
    else:
        name, chosen = type(algorithm).__name__, with_line_search(algorithm, line_search)
        if (channel := as_channel(budget)) is not None:
            chosen = replace(chosen, channel=channel)
    if chosen.losses is not None and loss not in chosen.losses:
        raise ConfigError(f"{name} is for {', '.join(chosen.losses)} only, not for {loss}")
    if (channel := getattr(chosen, "channel", None)) is not None:
        for site in federation.sites:
            channel.eigenpairs(1, site, 8)
    return chosen


def start(theta0: Any, n: int) -> Vector:
    """The start theta^1: zeros unless given."""
    theta = np.zeros(n) if theta0 is None else _numbers(theta0, "theta0", f"{n} numbers")
    if theta.shape != (n,) or not np.isfinite(theta).all():
        raise ConfigError(f"theta0 must hold {n} finite numbers, not shape {theta.shape}")
    return theta


def tolerance(tol: Any) -> float:
    """A finite number, at least 0."""
    if isinstance(tol, bool) or not isinstance(tol, int | float) or not 0 <= tol < np.inf:
        raise ConfigError(f"tol must be a finite number >= 0, not {tol!r}")
    return float(tol)


def known_optimum(f_star: Any) -> float | None:
    """f*, if it is known."""
    if f_star is not None and not np.isfinite(_numbers(f_star, "f_star", "a number")).all():
        raise ConfigError(f"f_star must be finite or None, not {f_star!r}")
    return None if f_star is None else float(f_star)


def gap_tolerance(gap_tol: Any, f_star: Any) -> float | None:
    """A number to stop at, where f* is known."""
    if gap_tol is not None and f_star is None:
        raise ConfigError("gap_tol needs f_star: the gap is f - f_star")
    return None if gap_tol is None else tolerance(gap_tol)


def whole(value: Any, name: str) -> int:
    """A whole number, at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ConfigError(f"{name} must be a whole number >= 0, not {value!r}")
    return int(value)


def unique_optimum(objectives: Mapping[str, LinearModel], l2: Vector, columns: tuple[str, ...]) -> None:
    """Refuse unpenalised columns that are collinear over all sites: the optimum would not be unique."""
    free = np.flatnonzero(l2 == 0)
    if len(free) == 0:
        return
    G = np.sum([gram(objective.X[:, free]) for objective in objectives.values()], axis=0)
    values = np.linalg.eigvalsh(G)
    if values[0] <= len(free) * np.finfo(float).eps * values[-1]:
        names = ", ".join(columns[j] for j in free[collinear(G)])
        raise SingularError(f"collinear over all sites and not penalised: {names}; drop one or set l2 > 0")


def _numbers(value: Any, name: str, expected: str) -> Vector:
    try:
        return np.array(value, dtype=float)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be {expected}, not {value!r}") from None
