"""`path` and `select`: the elastic net over a path of penalties, of which cross-validation chooses one."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.linesearch import Fused
from fedshed.algorithms.newton import Newton
from fedshed.exchange.sites import Connect
from fedshed.exchange.wire import Traffic
from fedshed.fitting.conduct import problem_of
from fedshed.fitting.fit import fit, where_tables_are
from fedshed.fitting.path_result import Path, Rule, Step
from fedshed.fitting.process_sites import ProcessSites
from fedshed.fitting.sites import TableSites
from fedshed.linalg.arrays import Vector
from fedshed.linalg.threads import one_thread
from fedshed.objectives import family_of
from fedshed.preparation import DesignPlan, Study, negotiate
from fedshed.solve.folds import MOST_FOLDS
from fedshed.solve.path import PathSettings, Walked
from fedshed.solve.stages import walk_path

if TYPE_CHECKING:
    pass

MOST_VALUES = 1000
PATIENCE = 20
DEFAULT = 0.0  # a ratio that the number of rows decides


def path(
    tables: Mapping[str, Any],
    study: Study,
    *,
    values: int = 100,
    ratio: float | None = None,
    l1_ratio: float = 1.0,
    penalties: tuple[float, ...] = (),
    folds: int = 10,
    seed: int = 0,
    rule: Rule = "min",
    tol: float = 1e-6,
    over: Connect | ProcessSites | None = None,
) -> Path:
    """The elastic net at each of many penalties, cross-validated in as many exchanges as one path takes.

    It minimises the mean loss + penalty * (l1_ratio |coef|_1 + (1 - l1_ratio) |coef|^2 / 2), as R's glmnet.

    Parameters
    ----------
    tables, over
        As in `fedshed.fit`.
    study : Study
        Which model of which columns; standardise columns of different units (`standardize=True`). Numbers by
        name in `l1` multiply the penalty of these columns, and leave the others free.
    values, ratio : int, float
        How many penalties, from the smallest at which all coefficients are 0 down to `ratio` times that.
        Default ratio: 1e-4, or 1e-2 with fewer rows than columns.
    l1_ratio : float
        1 is the lasso; smaller values keep columns that are correlated together.
    penalties : tuple of float
        The penalties themselves, in place of `values` and `ratio`.
    folds : int
        Folds of cross-validation, which each site draws from (seed, its name), clusters undivided; 0: none.
    seed : int
        Of the folds.
    rule : "min" or "1se"
        Which penalty is chosen: that of the smallest deviance of rows left out, or the largest within one
        standard error of it.
    tol : float
        The norm of the subgradient at which each fit ends.

    Returns
    -------
    Path
        With `chosen`, `selected`, `to_csv()` and `plot()`.

    Raises
    ------
    ConfigError
        For studies of several classes, of survival times, protected or private ones, which have no path.

    Examples
    --------
    >>> import fedshed
    >>> tables = {"north": {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}}
    >>> study = fedshed.Study(family="linear", target="y")
    >>> fedshed.path(tables, study, values=5, folds=3).steps[0].nonzero
    0
    """
    least = DEFAULT if ratio is None else ratio
    settings = PathSettings(np.zeros(0), values, least, l1_ratio, folds, seed, tol, tuple(penalties))
    _check(study, settings, rule)
    with one_thread(), where_tables_are(tables, over) as sites:
        return conduct_path(study, sites, settings, rule)


def conduct_path(study: Study, sites: TableSites, settings: PathSettings, rule: Rule = "min") -> Path:
    """The path over sites wherever they are; the factors of the settings follow from the study."""
    with sites.prepare() as transport:
        stateless = transport.stateless
        plan, ready, agreed = negotiate(study, transport, sites.names, PATIENCE)
    problem = replace(problem_of(plan, ready, stateless), l1=_factors(plan))
    rows = sum(each.rows for each in ready.values())
    if settings.folds > rows:
        raise ConfigError(f"{rows} rows cannot be split into {settings.folds} folds; take fewer")
    if settings.ratio == DEFAULT:
        settings = replace(settings, ratio=1e-4 if rows > problem.n else 1e-2)
    settings = replace(settings, factors=problem.l1)
    play = sites.play(plan, problem, Newton(line_search=Fused()))
    walked, traffic = walk_path(play, problem, settings, PATIENCE)
    return _assembled(plan, walked, settings, _together(traffic, agreed, sites.told()), rule, rows)


def select(
    tables: Mapping[str, Any], study: Study, *, rule: Rule = "min",
    over: Connect | ProcessSites | None = None, **settings: Any,
) -> Path:  # fmt: skip
    """The path, and the model of all rows at the penalty that cross-validation chooses.

    Parameters
    ----------
    tables, study, rule, over
        As in `fedshed.path`.
    settings
        The other parameters of `fedshed.path`, by name: `values`, `ratio`, `l1_ratio`, `penalties`, `folds`,
        `seed` and `tol`.

    Returns
    -------
    Path
        With `model`, the fit at `chosen`.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> x, z = rng.normal(size=(2, 60))
    >>> tables = {"north": {"x": x, "z": z, "y": 3 * x + rng.normal(size=60)}}
    >>> found = fedshed.select(tables, fedshed.Study(family="linear", target="y"), rule="1se", folds=5)
    >>> found.selected, sorted(found.model.coefficients)
    (('x',), ['intercept', 'x', 'z'])
    """
    found = path(tables, study, rule=rule, over=over, **settings)
    found.model = fit(tables, _at(study, found.chosen), over=over)
    return found


def _at(study: Study, step: Step) -> Study:
    """The study with the penalties of a step."""
    if not isinstance(study.l1, dict):
        return replace(study, l1=step.l1, l2=step.l2)
    factors = study.l1.items()
    return replace(
        study, l1={name: f * step.l1 for name, f in factors}, l2={name: f * step.l2 for name, f in factors}
    )


def _check(study: Study, settings: PathSettings, rule: str) -> None:
    """Refuse a path that there cannot be, before anything is sent."""
    family = family_of(study.loss)
    if family.classes in ("many", "ordered") or family.survival or not hasattr(family.objective, "without"):
        raise ConfigError(
            "a path is for one linear predictor with an intercept and rows with a loss each, not for the "
            f"{study.family} family; fit at penalties of your own choice (l1, --l1)"
        )
    if study.random_intercept:
        raise ConfigError("a path has no random intercept, whose tau is searched for; leave it out")
    if study.searched and family.parameter is not None:
        raise ConfigError(
            f"a path is at one value of {family.parameter.name}; give it, as in '{study.family}(0.8)', for "
            "example the value that a fit without a penalty finds"
        )
    if study.protected or study.privacy is not None:
        raise ConfigError(
            "a path asks about hundreds of points, which masked sums and noise do not allow; find the "
            "penalty on tables that may be used openly, and give it to the protected study (l1, l2)"
        )
    if isinstance(study.l2, dict) or study.l2:
        raise ConfigError("a path sets l2 itself; leave l2 out of the study, and give l1_ratio")
    if study.l1 and not isinstance(study.l1, dict):
        raise ConfigError("a path sets l1 itself; leave l1 out of the study, or give factors by name")
    if rule not in ("min", "1se"):
        raise ConfigError(f'rule must be "min" or "1se", not {rule!r}')
    _check_numbers(settings)


def _check_numbers(it: PathSettings) -> None:
    possible = {
        f"values must be from 2 to {MOST_VALUES}": 2 <= it.values <= MOST_VALUES,
        "ratio must lie between 0 and 1": it.ratio == DEFAULT or 0 < it.ratio < 1,
        "l1_ratio must be above 0 and at most 1": 0 < it.l1_ratio <= 1,
        "penalties must be positive numbers": all(isfinite(size) and size > 0 for size in it.penalties),
        f"folds must be 0, or from 2 to {MOST_FOLDS}": it.folds != 1 and 0 <= it.folds <= MOST_FOLDS,
        "seed must be a whole number from 0 to 2^31 - 1": 0 <= it.seed < 2**31,
        "tol must be above 0": it.tol > 0,
    }
    for message, is_so in possible.items():
        if not is_so:
            raise ConfigError(message)


def _together(*parts: Traffic) -> Traffic:
    """What the conversations took together, the preparation included."""
    return Traffic(**{name: sum(getattr(one, name) for one in parts) for name in Traffic.__struct_fields__})


def _factors(plan: DesignPlan) -> Vector:
    """What multiplies the penalty of each coefficient: 1, the intercept 0, or as the study's l1 says."""
    if isinstance(plan.study.l1, dict):
        given = plan.l1()
        if given is None:
            raise ConfigError("l1 names no column with a number above 0; there is nothing to penalise")
        return given
    factors = np.append(np.ones(len(plan.names)), np.zeros(int(plan.intercept)))
    if not factors.any():
        raise ConfigError("the study has no column to select from; name columns")
    return factors


def _assembled(
    plan: DesignPlan, walked: Walked, settings: PathSettings, traffic: Traffic, rule: Rule, rows: int
) -> Path:
    """The path as its reader knows it, on the scale of the tables."""
    A, names = plan.to_original()
    scaled = np.array([place.theta for place in walked.tracks[0]])
    means, errors = _validated(walked)
    null = walked.null.held
    steps = tuple(
        Step(
            float(size), float(size * settings.l1_ratio), float(size * (1 - settings.l1_ratio)),
            int(((place.theta != 0) & (settings.factors > 0)).sum()),
            1 - place.held / null if null > 0 else 0.0,
            None if means is None else float(means[k]), None if errors is None else float(errors[k]),
        )
        for k, (size, place) in enumerate(zip(walked.penalties, walked.tracks[0], strict=True))
    )  # fmt: skip
    return Path(plan.study, names, steps, scaled @ A.T, scaled, settings, traffic, rule, rows)


def _validated(walked: Walked) -> tuple[Vector, Vector] | tuple[None, None]:
    """The mean deviance of a row left out at each penalty, and its standard error over the folds.

    As R's cv.glmnet: with w_k the weight of fold k, the error is the root of sum_k w_k (d_k - d)^2 / (K - 1).
    """
    folds = walked.tracks[1:]
    if not folds:
        return None, None
    w = np.array([track[0].held_weight for track in folds])
    deviances = np.array([[place.held / place.held_weight for place in track] for track in folds])
    means = w @ deviances / w.sum()
    spread = w @ np.square(deviances - means) / w.sum()
    return means, np.sqrt(spread / (len(folds) - 1))
