"""`evaluate` and `leave_one_site_out`: how well a model predicts tables that stay at their sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, DataError
from fedshed.exchange.sites import LocalSites
from fedshed.fitting.fit import fit
from fedshed.fitting.held_out import EXACT, KINDS, cut_of
from fedshed.fitting.model import Model
from fedshed.inference.classes import class_coefficients
from fedshed.inference.evaluation import Evaluation, evaluation_of
from fedshed.linalg.arrays import Vector
from fedshed.linalg.threads import one_thread
from fedshed.objectives import LinearModel, family_of
from fedshed.objectives.build import held_objective
from fedshed.objectives.multinomial import contrasts
from fedshed.preparation import DesignPlan, Study
from fedshed.preparation.counts import RowCount, dropped_in_words
from fedshed.preparation.holdout import NOT_EVALUATED
from fedshed.preparation.notices import say_without_positive
from fedshed.preparation.responses import positive_rows
from fedshed.protocol.conversation import Problem
from fedshed.solve.evaluating import MOST_BINS, Told
from fedshed.solve.stages import evaluate as ask
from fedshed.tables.frames import Frame


def evaluate(
    model: Model,
    tables: Mapping[str, Any],
    *,
    threshold: float = 0.5,
    bins: int = EXACT,
    least: int = 1,
    missing: Literal["refuse", "empty"] = "refuse",
) -> Evaluation:
    """Evaluate how well a model predicts the rows of each table, by site and pooled.

    Parameters
    ----------
    model : Model
        A model from `fedshed.fit` or `Model.load`.
    tables : mapping
        The table of each site, with the columns of the model and its target.
    threshold : float, default 0.5
        The probability above which the modelled class is predicted for a row.
    bins : int, default 0
        With 0, the scores of different sites are compared exactly. With a larger number, sites count their
        rows in this many bins of scores, as in a deployed study; the AUC, the ROC curve and the confusion
        matrix then have an error bound.
    least : int, default 1
        The smallest number of rows in a cell, as the policy of a site may demand; smaller cells are merged.
        It applies only with bins.
    missing : "refuse" or "empty", default "refuse"
        A row without a value that the model needs and does not fill in has no prediction: it is an error, or
        it is left out and counted in a note. `fedshed predict` has the same option.

    Returns
    -------
    Evaluation
        The measures as plain data, with `summary()`, `to_csv()` and `plot()`.

    Raises
    ------
    ConfigError
        If the family has no evaluation of this kind, or an option has an impossible value.
    DataError
        If a table lacks a column or has a level or a class that the model does not know.

    Examples
    --------
    >>> import fedshed
    >>> tables = {"north": {"x": [0.1, 0.9, 1.7, 2.0], "ill": [0, 1, 0, 1]}}
    >>> model = fedshed.fit(tables, fedshed.Study(family="logistic", target="ill"))
    >>> fedshed.evaluate(model, {"south": {"x": [0.2, 0.3, 1.1], "ill": [0, 1, 1]}}).pooled["auc"].value
    1.0
    """
    family = family_of(model.plan.study.loss)
    _check(model.plan, tables, threshold, bins, least)
    plan = on_original_scale(model.plan)
    cut = cut_of(family, threshold)
    counts = {str(site): _row_count(plan, str(site), tables[site], missing) for site in tables}
    plan = _without_incomplete(plan)
    with one_thread():
        told, exchanges = _told(model, plan, tables, bins, cut, least)
    names = ", ".join(sorted(map(str, tables)))
    return evaluation_of(
        told, KINDS[family.classes], classes=plan.shown_classes, about=f"all rows of {names}",
        threshold=threshold, exchanges=exchanges,
        notes=(*_left_out_note(counts), *_notes_on_positive(plan.study, tables)),
    )  # fmt: skip


def on_original_scale(plan: DesignPlan) -> DesignPlan:
    """The plan without scaling and holdout: rows in the units of the tables, all of them used."""
    study = replace(plan.study, holdout=None)
    return replace(plan, study=study, centres=None, scales=None)


def _row_count(plan: DesignPlan, site: str, table: Any, missing: str) -> RowCount:
    """How many rows of a site are complete; an error if not all are, unless that is allowed."""
    if missing not in ("refuse", "empty"):
        raise ConfigError(f"missing must be 'refuse' or 'empty', not {missing!r}")
    with _named(site):
        frame = table if isinstance(table, Frame) else Frame(table)
        kept = plan.rows_used(frame)
        dropped = int((~kept).sum())
        lost = plan.missing_values(frame, to_evaluate=True) if dropped else {}
        if dropped and missing == "refuse":
            named = ", ".join(f"{name!r} in {count}" for name, count in lost.items())
            raise DataError(
                f"{dropped} of {len(kept)} rows miss a value ({named}) and cannot be evaluated; fill them "
                "in, or leave out those rows (missing='empty', --missing empty)"
            )
    return RowCount(len(kept) - dropped, dropped, lost)


def _left_out_note(counts: Mapping[str, RowCount]) -> tuple[str, ...]:
    """A sentence on the rows that are left out, if there are any."""
    said = dropped_in_words(counts)
    return () if said is None else (said,)


def _notes_on_positive(study: Study, tables: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each table whose target has none of the positive values."""
    frames = {
        str(site): table if isinstance(table, Frame) else Frame(table)
        for site, table in (tables if study.positive else {}).items()
    }
    return tuple(
        say_without_positive(study, site)
        for site in sorted(frames)
        if not positive_rows(study, frames[site].column(study.marked))
    )


def _without_incomplete(plan: DesignPlan) -> DesignPlan:
    """The plan that leaves out incomplete rows, which were counted before."""
    if plan.study.missing != "refuse":
        return plan
    return replace(plan, study=replace(plan.study, missing="drop"))


def theta_of(model: Model) -> Vector:
    """The parameters of an objective on the original scale: for several classes, contrasts."""
    if family_of(model.plan.study.loss).classes != "many":
        return model.inference.coef
    coef = class_coefficients(model.inference)
    return np.ascontiguousarray((contrasts(len(coef)).T @ coef).ravel())


def _check(plan: DesignPlan, tables: Mapping[str, Any], threshold: float, bins: int, least: int) -> None:
    if not tables:
        raise ConfigError("evaluate needs at least one table; give the table of each site")
    if plan.study.family in NOT_EVALUATED:
        raise ConfigError(
            f"the {plan.study.family} family has no such evaluation; its summary shows the concordance"
        )
    if not 0 < threshold < 1:
        raise ConfigError(f"threshold must be a probability between 0 and 1, not {threshold!r}")
    if not (bins == 0 or 2 <= bins <= MOST_BINS) or least < 1 or (bins == 0 and least > 1):
        raise ConfigError(
            f"bins must be 0 (all scores may leave a site) or from 2 to {MOST_BINS}; least must be 1 if bins "
            "is 0, and otherwise at least 1"
        )


def _told(
    model: Model, plan: DesignPlan, tables: Mapping[str, Any], bins: int, cut: float, least: int
) -> tuple[Told, int]:
    """The answers of the sites, and the number of exchanges."""
    objectives = {str(site): _objective(plan, str(site), tables[site], least) for site in tables}
    objectives = {site: objectives[site] for site in sorted(objectives)}
    theta = theta_of(model)
    weights = {site: one.weight for site, one in objectives.items()}
    problem = Problem(np.zeros(len(theta)), weights, plan.loss, tuple(model.inference.names), False, {})
    told, traffic = ask(LocalSites({}, held=objectives), problem, theta, bins, cut)
    return told, traffic.exchanges


def _objective(plan: DesignPlan, site: str, table: Any, least: int) -> LinearModel:
    with _named(site):
        return held_objective(site, plan.table(table), plan.loss, plan.classes, plan.intercept, least)


@contextmanager
def _named(site: str) -> Iterator[None]:
    """Errors of a table name its site."""
    try:
        yield
    except DataError as error:
        raise DataError(f"site {site!r}: {error}") from error


class LeaveOneSiteOut(Struct, frozen=True):
    """The evaluation of each site by a model that was fitted to all other sites.

    Attributes
    ----------
    evaluation : Evaluation
        The measures of each site, by the model that was fitted without it, and pooled.
    models : dict
        For each site, the model that was fitted without it.

    Examples
    --------
    >>> import fedshed
    >>> rows = {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}
    >>> tables, study = {"a": rows, "b": rows, "c": rows}, fedshed.Study(family="linear", target="y")
    >>> fedshed.leave_one_site_out(tables, study).evaluation.sites["b"].rows
    3
    """

    evaluation: Evaluation
    models: dict[str, Model]

    def __str__(self) -> str:
        return self.evaluation.summary()


def leave_one_site_out(
    tables: Mapping[str, Any], study: Study, *, threshold: float = 0.5, **options: Any
) -> LeaveOneSiteOut:
    """Fit the model without each site in turn, and evaluate it on the rows of that site.

    Parameters
    ----------
    tables : mapping
        The table of each site; at least three sites.
    study : Study
        The model and its columns, without `holdout`, `protected` and `privacy`.
    threshold : float, default 0.5
        The probability above which the modelled class is predicted for a row.
    options
        Options for `fedshed.fit`, such as `algorithm` or `over`.

    Returns
    -------
    LeaveOneSiteOut
        The evaluation, by site and pooled, and the models.

    Raises
    ------
    ConfigError
        If there are fewer than three sites, or a model without one of the sites did not converge.

    Examples
    --------
    >>> import fedshed
    >>> rows = {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}
    >>> study = fedshed.Study(family="linear", target="y")
    >>> found = fedshed.leave_one_site_out({"a": rows, "b": rows, "c": rows}, study)
    >>> sorted(found.models), found.evaluation.rows
    (['a', 'b', 'c'], 9)
    """
    _check_left_out(tables, study)
    cut = cut_of(family_of(study.loss), threshold)
    models, said, counts = {}, {}, {}
    for left in sorted(map(str, tables)):
        others = {str(site): table for site, table in tables.items() if str(site) != left}
        models[left] = _converged(left, fit(others, study, **options))
        _check(models[left].plan, tables, threshold, EXACT, 1)
        plan, table = on_original_scale(models[left].plan), {str(site): tables[site] for site in tables}[left]
        counts[left] = _row_count(plan, left, table, "empty")
        with one_thread():
            said[left] = _told(models[left], plan, {left: table}, EXACT, cut, 1)[0]
    plan = next(iter(models.values())).plan
    evaluation = evaluation_of(
        _joined(said), KINDS[family_of(study.loss).classes], classes=plan.shown_classes,
        about="each site by a model of the others", threshold=threshold,
        notes=("Each site has a model of its own, so pooled measures mix models.", *_left_out_note(counts)),
    )  # fmt: skip
    return LeaveOneSiteOut(evaluation, models)


def _joined(said: Mapping[str, Told]) -> Told:
    """The answers of all sites, each for its own model; no single line recalibrates all models."""
    sums = {site: told.sums[site] for site, told in said.items()}
    tables = {site: told.tables[site] for site, told in said.items()}
    return Told(sums, tables, next(iter(said.values())).grid, EXACT, None)


def _converged(left: str, model: Model) -> Model:
    if not model.converged:
        raise ConfigError(f"the model without site {left!r} did not converge: {model.run.reason}")
    return model


def _check_left_out(tables: Mapping[str, Any], study: Study) -> None:
    if len(tables) < 3:
        raise ConfigError(f"leave_one_site_out needs at least three sites, not {len(tables)}")
    if study.holdout is not None or study.protected or study.privacy is not None:
        raise ConfigError(
            "leave_one_site_out fits the model again without each site; leave holdout, protected and privacy "
            "out of the study"
        )
