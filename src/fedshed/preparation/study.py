"""A study: which model of which columns is fitted, as every site and the Master agree on it."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import in_words
from fedshed._utils.names import closest
from fedshed.objectives.families import at_sites, family_of, known_families, loss_named, parts_of
from fedshed.preparation import combinations
from fedshed.preparation.holdout import check_holdout
from fedshed.preparation.private import check_private
from fedshed.preparation.timing import check_times, complete_times
from fedshed.privacy.private import Privacy
from fedshed.tables.columns import level_text

Missing: TypeAlias = Literal["refuse", "drop", "indicator", "impute"]  # what is done with missing values
WeightType: TypeAlias = Literal["auto", "frequency", "precision"]
Ties: TypeAlias = Literal["efron", "breslow"]  # how events at the same time are counted
Level: TypeAlias = bool | int | float | str
MOST_COLUMNS = 10_000  # of a table, and of a design
MOST_LEVELS = 100_000  # that `max_levels` may allow


class Study(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model and its columns; `columns` and `formula` exclude each other, and so do `offset` and `exposure`.

    Without either, every column is a predictor but target, site, weight, offset, exposure and those that
    `exclude` names.  Text and booleans are categories; `categories` names columns of numbers that are to be
    read as such.  `site` may be named among columns or in the formula: every site then has its own intercept.
    `l2` is one number (the intercept is then not penalised) or one by term or coefficient, 0 elsewhere; with
    `standardize` it applies to the standardised coefficients, and so does `l1`, the absolute penalty.

    Attributes
    ----------
    family : str
        The model (`fedshed families`, docs/families.md); "tweedie(1.6)" gives the parameter, too.
    target, columns, exclude, formula, site, categories, references, intercept
        The response and the predictors (docs/preparation.md).
    positive, classes, levels, max_levels
        Values of the target that count as yes; the classes of the target and the levels of categories, if no
        others may occur (the reference first; of an ordinal target in their order); most levels of a column.
    weight, weight_type, cluster, trials, offset, exposure
        Columns with a number for each row, and what a weight is (docs/statistics.md).
    missing : "refuse", "drop", "impute" or "indicator"
        What is done where a value is missing (docs/missing.md).
    standardize, l2, l1
        Penalties, and whether they apply to standardised columns (docs/selection.md).
    time, event, entry, strata, ties, grid, by
        A survival model, in place of a target, and the curves of a deployed one (docs/survival.md).
    holdout, holdout_seed
        Rows that are evaluated and not fitted (docs/evaluation.md).
    random_intercept, firth, site_estimates
        A random intercept per site (docs/random.md); Firth's penalty (docs/firth.md); the estimate of each
        single site (docs/sites_differ.md).
    protected, privacy
        Only sums over all sites leave them; differential privacy (docs/protected.md).

    Examples
    --------
    >>> import fedshed
    >>> study = fedshed.Study(family="logistic", formula="ill ~ age + C(ward)", missing="drop")
    >>> study.target, study.loss
    ('ill', 'logistic')
    """

    family: str  # linear, logistic, poisson, ... (docs/families.md); "tweedie(1.6)" gives its parameter
    target: str = ""  # may be left to the formula
    positive: tuple[Level, ...] = ()  # values of a logistic target that count as True, all others as False
    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()  # columns that are no predictors, where neither columns nor formula says
    formula: str | None = None
    site: str | None = None
    weight: str | None = None
    weight_type: WeightType = "auto"  # what a weight is: how often its row counts, or its precision
    cluster: str | None = (
        None  # rows with the same value at a site, such as of one patient, are not independent
    )
    trials: str | None = None  # of a binomial target, which then is the number of successes
    offset: str | None = None
    exposure: str | None = None  # the offset is its logarithm
    categories: tuple[str, ...] = ()
    references: dict[str, Level] = {}
    missing: Missing = "refuse"
    standardize: bool = False
    intercept: bool = True
    l2: float | dict[str, float] = 0.0
    max_levels: int = 1000
    levels: dict[str, tuple[Level, ...]] = {}  # of each category: no other may occur; the reference first
    classes: tuple[Level, ...] = ()  # of a target of classes: no other may occur; of ordinal, in order
    protected: bool = False  # only sums over all sites leave them; levels and classes are those listed here
    privacy: Privacy | None = None  # differential privacy: epsilon, delta and the norm of rows
    time: str | None = None  # until the event or the end of observation; the target of a survival model
    event: str | None = None  # 1 or True where the event happened at that time; `positive` says so of text
    entry: str | None = None  # when a row came under observation, where that is later than time 0
    strata: tuple[str, ...] = ()  # rows that differ in these columns have different baseline hazards
    ties: Ties = "efron"
    l1: float | dict[str, float] = 0.0  # the absolute penalty, given as l2 is: it sets coefficients to 0
    holdout: float | str | None = None  # a fraction of rows, or a column of booleans: evaluated, not fitted
    holdout_seed: int = 0  # by which a site draws the fraction, with its name
    random_intercept: bool = False  # of each site, normal about 0; its standard deviation is estimated
    firth: bool = False  # Firth's penalised likelihood, of a logit link: finite where the data are separated
    site_estimates: bool = False  # each site's own estimate and covariance leave it too, for a meta-analysis
    grid: tuple[float, ...] = ()  # times at which sites count, for survival curves of a deployed study
    by: str | None = None  # the category of the model whose levels these curves are of

    def __post_init__(self) -> None:
        if self.formula is not None and not self.target and (self.time is None or "~" in self.formula):
            force_setattr(self, "target", _left_side(self.formula))
        _known_words({name: getattr(self, name) for name in _WORDS})
        complete_times(self)
        for check in (
            _not_too_many,
            _one_way_to_say_it,
            _no_column_twice,
            _possible_numbers,
            _possible_lists,
            combinations.check_lasso,
            check_private,
            check_times,
            check_holdout,
            combinations.check_parameter,
            combinations.check_firth,
            combinations.check_estimates,
        ):
            check(self)

    @property
    def loss(self) -> str:
        """The loss of `fedshed.optimize`."""
        return at_sites(loss_named(self.family, self.ties), self.random_intercept)

    @property
    def searched(self) -> bool:
        """Whether the family has a parameter that the study leaves to be found."""
        parameter = family_of(self.loss).parameter
        return parameter is not None and parameter.searched and parts_of(self.loss)[1] is None

    def levels_of(self, column: str) -> tuple[str, ...]:
        """The levels that the study lists for a column, as text."""
        return tuple(map(level_text, self.levels[column]))

    @property
    def selects(self) -> bool:
        """Whether there is an absolute penalty, which sets coefficients to 0."""
        return any(self.l1.values()) if isinstance(self.l1, dict) else self.l1 > 0

    @property
    def needs_moments(self) -> bool:
        """Whether sums of the design's columns are asked for: of a private study they would need noise."""
        return self.privacy is None and (self.standardize or self.protected)

    @property
    def fills_in(self) -> bool:
        """Whether missing predictors are filled in; rows that miss the target or a weight are dropped."""
        return self.missing in ("indicator", "impute")

    @property
    def classified(self) -> bool:
        """Whether the target is a class."""
        return family_of(self.loss).classified

    @property
    def has_intercept(self) -> bool:
        """Whether its family has one: a baseline hazard takes its place."""
        return family_of(self.loss).intercept

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are no predictors but are needed: target, weight, trials, offset, ..."""
        return tuple(c for c in (*self.numbers, *self.any_kind) if c)

    @property
    def any_kind(self) -> tuple[str | None, ...]:
        """Those of them that may hold numbers at one site and text at another: each site reads its own."""
        return self.cluster, self.event, *self.strata

    @property
    def marked(self) -> str:
        """The column of which `positive` says which values count as yes."""
        return self.target if self.event is None else self.event

    @property
    def numbers(self) -> tuple[str | None, ...]:
        """Those of them that hold numbers, but for a target of classes."""
        return self.target, self.weight, self.trials, self.offset, self.exposure, self.entry


def read_study(path: str | Path) -> Study:
    """The study in a TOML file."""
    try:
        return study_of(msgspec.toml.decode(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigError(f"{in_words(error)}; a study is a TOML file with family, target, ...") from None
    except (msgspec.DecodeError, ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def study_of(fields: Any) -> Study:
    """A study from plain data, as TOML or JSON give it."""
    if isinstance(fields, dict):
        _known_words(fields)
    try:
        return msgspec.convert(fields, Study)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the study is not valid: {error}") from error


_CHOICES = (("missing", Missing), ("weight_type", WeightType), ("ties", Ties))
_WORDS = ("family", *(name for name, _ in _CHOICES))


def _known_words(fields: dict[str, Any]) -> None:
    """Refuse fields that there are not, and words that a field does not know, with those that it does."""
    if unknown := sorted(set(map(str, fields)) - set(Study.__struct_fields__)):
        raise ConfigError(f"unknown field {unknown[0]!r}{closest(unknown[0], Study.__struct_fields__)}")
    for name, words in (("family", known_families()), *((name, get_args(of)) for name, of in _CHOICES)):
        if isinstance(said := fields.get(name, words[0]), str) and _plain(name, said) not in words:
            raise ConfigError(f"{name} cannot be {said!r}{closest(_plain(name, said), words)}")


def _plain(name: str, said: str) -> str:
    """A word without the parameter that a family may have."""
    return parts_of(said)[0] if name == "family" else said


def _left_side(formula: str) -> str:
    left, tilde, _ = formula.partition("~")
    if not tilde or not left.strip():
        raise ConfigError(f"formula {formula!r} has no target; write 'target ~ terms', or give target")
    if left.strip().startswith("Surv("):
        raise ConfigError(
            f"formula {formula!r}: name the columns of a survival model apart (time = ..., event = ..., or "
            "--time, --event), and write the terms alone, as in 'age + sex'"
        )
    return left.strip().strip("`")


def _one_way_to_say_it(study: Study) -> None:
    if not study.target:
        what = "time" if family_of(study.loss).survival else "target"
        raise ConfigError(f"the study names no {what}; give {what} = 'column' (--{what})")
    if study.columns is not None and study.formula is not None:
        raise ConfigError("give columns or a formula, not both")
    if study.exclude and (study.columns is not None or study.formula is not None):
        raise ConfigError(
            "exclude is for when all other columns are predictors; columns or formula say which"
        )
    if study.formula is not None and "~" in study.formula and _left_side(study.formula) != study.target:
        raise ConfigError(
            f"target is {study.target!r} but the formula's is {_left_side(study.formula)!r}; give it once"
        )
    if study.offset is not None and study.exposure is not None:
        raise ConfigError("give offset or exposure, not both: the offset of an exposure is its logarithm")
    if study.positive and family_of(study.loss).classes != "two" and study.event is None:
        raise ConfigError(f"positive is for a family of two classes, not for {study.family}")
    _weights_said_once(study)
    if family_of(study.loss).classes == "ordered" and not study.intercept:
        raise ConfigError(
            f"the {study.family} family has thresholds in place of an intercept; leave intercept = false out"
        )
    if family_of(study.loss).classes in ("many", "ordered") and (study.offset or study.exposure):
        raise ConfigError(
            f"the {study.family} family has no offset: one number would shift every class alike"
        )


def _weights_said_once(study: Study) -> None:
    if study.trials is not None and not family_of(study.loss).grouped:
        raise ConfigError(f"trials are for the binomial family, not for {study.family}")
    if study.trials is not None and study.weight is not None:
        raise ConfigError("give trials or weight, not both: the trials of a row are its weight")
    if study.weight_type != "auto" and study.weight is None:
        raise ConfigError(f"weight_type is {study.weight_type!r}, but the study names no weight")


def _no_column_twice(study: Study) -> None:
    predictors = [c for c in study.columns or () if c != study.site]  # a site may have its own intercept
    marks = [study.holdout] if isinstance(study.holdout, str) else []
    named = [*(c for c in (*study.beside, study.site) if c), *marks, *predictors, *study.exclude]
    twice = sorted(c for c, count in Counter(named).items() if count > 1)
    if twice:
        raise ConfigError(f"column {twice[0]!r} has two roles; a column is target, weight, ... or predictor")
    curves = family_of(study.loss).survival  # which need no columns
    if study.columns is not None and not study.columns and not (study.intercept or curves):
        raise ConfigError("a model needs columns or an intercept; name at least one column")


def _not_too_many(study: Study) -> None:
    for name in ("columns", "exclude", "positive", "categories", "references", "levels", "classes", "strata"):
        if len(getattr(study, name) or ()) > MOST_COLUMNS:
            raise ConfigError(f"{name} has more than {MOST_COLUMNS} entries; name fewer")


def _possible_lists(study: Study) -> None:
    """Levels and classes are two at least, each once, and the reference is one of them."""
    for column in study.levels:
        listed = study.levels_of(column)
        if len(listed) < 2 or len(set(listed)) < len(listed):
            raise ConfigError(f"levels of {column!r}: list two or more, each once")
        reference = level_text(study.references.get(column, listed[0]))
        if reference not in listed:
            raise ConfigError(f"references: {reference!r} is not among the levels listed for {column!r}")
    if not study.classes:
        return
    if not study.classified:
        raise ConfigError(f"classes are for a target of classes, and the {study.family} family has numbers")
    if study.positive:
        raise ConfigError("give positive or classes, not both: with positive the classes are True and False")
    kinds = {bool if isinstance(c, bool) else str if isinstance(c, str) else float for c in study.classes}
    if len(kinds) > 1 or len(set(study.classes)) < max(2, len(study.classes)):
        raise ConfigError("classes: list two or more, each once, all of them text or all of them numbers")
    if family_of(study.loss).classes == "two" and len(study.classes) > 2:
        raise ConfigError(f"the {study.family} family has two classes, not {len(study.classes)}")


def _possible_numbers(study: Study) -> None:
    for name, penalty in (("l2", study.l2), ("l1", study.l1)):
        given = penalty.values() if isinstance(penalty, dict) else [penalty]
        if not all(isfinite(value) and value >= 0 for value in given):
            raise ConfigError(f"{name} must be finite and at least 0, not {penalty!r}")
    if not 2 <= study.max_levels <= MOST_LEVELS:
        raise ConfigError(f"max_levels must be from 2 to {MOST_LEVELS}, not {study.max_levels}")
