"""`path` and `select`: the elastic net over a path of penalties, and the choice by cross-validation."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

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

MOST_VALUES = 1000
PATIENCE = 20
DEFAULT = 0.0  # the ratio then depends on the number of rows


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
    """Fit the elastic net at many penalties, and cross-validate it.

    At each penalty it minimises the mean loss + penalty * (l1_ratio |coef|_1 + (1 - l1_ratio) |coef|^2 / 2),
    as R's glmnet does. Cross-validation takes no more exchanges than the path alone.

    Parameters
    ----------
    tables : mapping
        The table of each site, as in `fedshed.fit`.
    study : Study
        The model and its columns. If the columns have different units, set `standardize=True`. If `l1` is a
        dict, its numbers multiply the penalty of the named columns, and all others are not penalised.
    values : int, default 100
        The number of penalties. The largest is the smallest penalty at which all coefficients are 0.
    ratio : float, optional
        The smallest penalty divided by the largest. Default: 1e-4 if there are more rows than coefficients,
        otherwise 1e-2.
    l1_ratio : float, default 1.0
        The share of the absolute penalty: 1 is the lasso; smaller values keep correlated columns together.
    penalties : tuple of float, default ()
        The penalties themselves, in place of `values` and `ratio`.
    folds : int, default 10
        The number of folds of cross-validation, or 0 for none. Each site draws them from the seed and its
        name; rows of the same cluster stay in the same fold.
    seed : int, default 0
        The seed of the folds.
    rule : "min" or "1se", default "min"
        The choice of the penalty: the one with the smallest cross-validated deviance, or the largest one
        within one standard error of it.
    tol : float, default 1e-6
        Each fit ends when the norm of the subgradient is below this number.
    over : ProcessSites or callable, optional
        Where the sites run, as in `fedshed.fit`.

    Returns
    -------
    Path
        The fits, with `chosen`, `selected`, `to_csv()` and `plot()`.

    Raises
    ------
    ConfigError
        If the study has several classes, survival times or a random intercept, or is protected or private,
        because such studies have no path; or if an option has an impossible value.

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
    """The path over sites, wherever they are; the study determines the factors of the settings."""
    with sites.prepare() as transport:
        stateless = transport.stateless
        plan, ready, agreed = negotiate(study, transport, sites.names, PATIENCE)
    problem = replace(problem_of(plan, ready, stateless), l1=_factors(plan))
    rows = sum(each.rows for each in ready.values())
    if settings.folds > rows:
        raise ConfigError(f"{rows} rows cannot be split into {settings.folds} folds; choose fewer folds")
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
    """Fit a path of penalties, and the model of all rows at the penalty that cross-validation chooses.

    Parameters
    ----------
    tables, study, rule, over
        The same as in `fedshed.path`.
    settings
        The other parameters of `fedshed.path`, by name: `values`, `ratio`, `l1_ratio`, `penalties`, `folds`,
        `seed` and `tol`.

    Returns
    -------
    Path
        The path, whose attribute `model` is the fit at the penalty `chosen`.

    Raises
    ------
    ConfigError
        As in `fedshed.path`, and if `folds` is 0, because nothing is then chosen.

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
    """Refuse a study or settings that cannot have a path, before anything is sent."""
    family = family_of(study.loss)
    if family.classes in ("many", "ordered") or family.survival or not hasattr(family.objective, "without"):
        raise ConfigError(
            "a path needs one linear predictor with an intercept and a separate loss for each row, which "
            f"the {study.family} family does not have; fit it at penalties that you choose (l1, --l1)"
        )
    if study.random_intercept:
        raise ConfigError(
            "a path cannot have a random intercept, whose tau must be estimated; leave out random_intercept"
        )
    if study.searched and family.parameter is not None:
        raise ConfigError(
            f"a path needs one value of {family.parameter.name}; give it, as in '{study.family}(0.8)', for "
            "example the estimate of a fit without a penalty"
        )
    if study.protected or study.privacy is not None:
        raise ConfigError(
            "a path needs answers at hundreds of points, which protected and private studies do not allow; "
            "choose the penalty on tables that may be used openly, and give it to the study (l1, l2)"
        )
    if isinstance(study.l2, dict) or study.l2:
        raise ConfigError("a path sets l2 itself; leave l2 out of the study, and use l1_ratio")
    if study.l1 and not isinstance(study.l1, dict):
        raise ConfigError(
            "a path sets l1 itself; leave l1 out of the study, or give a dict of factors by name"
        )
    if rule not in ("min", "1se"):
        raise ConfigError(f'rule must be "min" or "1se", not {rule!r}')
    _check_numbers(settings)


def _check_numbers(it: PathSettings) -> None:
    possible = {
        f"values must be from 2 to {MOST_VALUES}": 2 <= it.values <= MOST_VALUES,
        "ratio must be between 0 and 1": it.ratio == DEFAULT or 0 < it.ratio < 1,
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
    """The total traffic of the conversations, including the preparation."""
    return Traffic(**{name: sum(getattr(one, name) for one in parts) for name in Traffic.__struct_fields__})


def _factors(plan: DesignPlan) -> Vector:
    """The factor of each coefficient's penalty: as in the study's l1, or 1, and 0 for the intercept."""
    if isinstance(plan.study.l1, dict):
        given = plan.l1()
        if given is None:
            raise ConfigError(
                "l1 gives no column a factor above 0, so that nothing is penalised; give at least one"
            )
        return given
    factors = np.append(np.ones(len(plan.names)), np.zeros(int(plan.intercept)))
    if not factors.any():
        raise ConfigError("the study has no column to select from; name at least one in columns or formula")
    return factors


def _assembled(
    plan: DesignPlan, walked: Walked, settings: PathSettings, traffic: Traffic, rule: Rule, rows: int
) -> Path:
    """The path with coefficients on the scale of the tables."""
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
    """The cross-validated deviance per row at each penalty, and its standard error over the folds.

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
