"""A study: which model of which columns is fitted, as every site and the Master agree on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import in_words
from fedshed._utils.names import closest
from fedshed.objectives.families import at_sites, family_of, known_families, loss_named, parts_of
from fedshed.objectives.time_scale import Transform
from fedshed.preparation.r_formulas import all_columns
from fedshed.preparation.study_checks import MOST_COLUMNS as MOST_COLUMNS
from fedshed.preparation.study_checks import MOST_LEVELS as MOST_LEVELS
from fedshed.preparation.study_checks import check_study, left_side
from fedshed.preparation.study_fields import plain_fields
from fedshed.preparation.timing import complete_times
from fedshed.privacy.private import Privacy
from fedshed.tables.columns import level_text

Missing: TypeAlias = Literal["refuse", "drop", "indicator", "impute"]  # what is done with missing values
WeightType: TypeAlias = Literal["auto", "frequency", "precision"]
Ties: TypeAlias = Literal["efron", "breslow"]  # how events at the same time are counted
Level: TypeAlias = bool | int | float | str


class Study(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The description of a model and its columns.

    If neither `columns` nor `formula` is given, all columns are predictors, except target, site, weight,
    offset, exposure and those in `exclude`. Columns of text and booleans are categories.

    Parameters
    ----------
    family : str
        The model, such as "linear", "logistic" or "cox" (`fedshed families`, docs/families.md);
        "tweedie(1.6)" gives the parameter, too.
    target : str, default ""
        The column to be explained; a formula may name it instead.
    columns : tuple of str, optional
        The predictors; not together with `formula`.
    exclude : tuple of str, default ()
        Columns that are not predictors, if neither `columns` nor `formula` is given.
    formula : str, optional
        A formula such as "ill ~ age + C(ward)" (docs/preparation.md).
    site : str, optional
        The column that names the site of a row. If it is among the predictors, every site has its own
        intercept.
    categories : tuple of str, default ()
        Columns of numbers that are categories.
    references : dict, default {}
        For each category, the level that the others are compared with; for a multinomial target, the
        reference class. Default: the first level, and the first class.
    intercept : bool, default True
        Whether the model has an intercept.
    positive : tuple, default ()
        Values of a target of two classes, or of `event`, that count as yes; all others count as no.
    classes : tuple, default ()
        The classes of the target, if no others may occur; those of an ordinal target in their order. The
        first class of a multinomial target is the reference class, unless `references` names another.
    levels : dict, default {}
        For each category, its levels, if no others may occur; the reference first.
    max_levels : int, default 1000
        The largest number of levels of a column.
    weight : str, optional
        The column with the weight of each row.
    weight_type : "auto", "frequency" or "precision", default "auto"
        Whether a weight is the number of times that its row counts, or a precision, which divides the
        variance of its row (docs/statistics.md). "auto" means precisions, and asks for the type if weights
        are whole numbers above 1.
    cluster : str, optional
        A column whose equal values mark rows that are not independent, such as those of one patient.
    trials : str, optional
        The column with the number of trials; the target is then the number of successes.
    offset : str, optional
        The column that is added to the linear predictor.
    exposure : str, optional
        The column whose logarithm is the offset; not together with `offset`.
    missing : "refuse", "drop", "impute" or "indicator", default "refuse"
        What is done with missing values (docs/missing.md).
    standardize : bool, default False
        Whether penalties apply to standardised columns; coefficients are reported in the original units.
    l2 : float or dict, default 0.0
        The ridge on the mean loss: one number, which leaves the intercept free, or numbers by term or
        coefficient.
    l1 : float or dict, default 0.0
        The absolute penalty (lasso), in the same form, which sets coefficients to 0 (docs/selection.md).
    time : str, optional
        The column with the time until the event or the end of observation, in place of a target
        (docs/survival.md).
    event : str, optional
        The column that is 1 or True if the event happened at that time.
    entry : str, optional
        The column with the time at which a row came under observation. Default: 0.
    strata : tuple of str, default ()
        Columns whose combinations of values have separate baseline hazards.
    ties : "efron" or "breslow", default "efron"
        The treatment of events at the same time.
    ph_transform : "identity", "log", "rank" or "km", default "identity"
        The function of time in the test of proportional hazards, the same at all sites: the time, its
        logarithm, its rank among the times of all rows, or 1 minus the Kaplan-Meier curve of all rows. The
        last two need counts of all sites (docs/survival.md).
    grid : tuple of float, default ()
        The times at which sites count for the survival curves of a deployed study.
    by : str, optional
        The category whose levels have separate survival curves.
    holdout : float or str, optional
        A fraction of each site's rows, or a column of booleans: these rows are evaluated, not fitted
        (docs/evaluation.md).
    holdout_seed : int, default 0
        The seed from which each site draws that fraction.
    random_intercept : bool, default False
        Whether each site has a random intercept (docs/random.md).
    firth : bool, default False
        Whether Firth's penalty is used, which gives finite estimates for separated data (docs/firth.md).
    site_estimates : bool, default False
        Whether each site also sends an estimate from its own rows, for a meta-analysis
        (docs/sites_differ.md).
    protected : bool, default False
        Whether only sums over all sites leave them (docs/protected.md).
    privacy : Privacy, optional
        Differential privacy of a protected logistic study.

    Raises
    ------
    ConfigError
        If fields contradict each other or have impossible values.

    Examples
    --------
    >>> import fedshed
    >>> study = fedshed.Study(family="logistic", formula="ill ~ age + C(ward)", missing="drop")
    >>> study.target, study.loss
    ('ill', 'logistic')
    """

    family: str
    target: str = ""
    positive: tuple[Level, ...] = ()
    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    formula: str | None = None
    site: str | None = None
    weight: str | None = None
    weight_type: WeightType = "auto"
    cluster: str | None = None
    trials: str | None = None
    offset: str | None = None
    exposure: str | None = None
    categories: tuple[str, ...] = ()
    references: dict[str, Level] = {}
    missing: Missing = "refuse"
    standardize: bool = False
    intercept: bool = True
    l2: float | dict[str, float] = 0.0
    max_levels: int = 1000
    levels: dict[str, tuple[Level, ...]] = {}
    classes: tuple[Level, ...] = ()
    protected: bool = False
    privacy: Privacy | None = None
    time: str | None = None
    event: str | None = None
    entry: str | None = None
    strata: tuple[str, ...] = ()
    ties: Ties = "efron"
    l1: float | dict[str, float] = 0.0
    holdout: float | str | None = None
    holdout_seed: int = 0
    random_intercept: bool = False
    firth: bool = False
    site_estimates: bool = False
    ph_transform: Transform = "identity"
    grid: tuple[float, ...] = ()
    by: str | None = None

    def __post_init__(self) -> None:
        for name, value in plain_fields(self).items():
            force_setattr(self, name, value)
        if self.formula is not None and not self.target and (self.time is None or "~" in self.formula):
            force_setattr(self, "target", left_side(self.formula))
        _expand_dot(self)
        _known_words({name: getattr(self, name) for name in _WORDS})
        complete_times(self)
        check_study(self)

    @property
    def loss(self) -> str:
        """The name of the loss in `fedshed.optimize`."""
        return at_sites(loss_named(self.family, self.ties), self.random_intercept)

    @property
    def searched(self) -> bool:
        """Whether the family has a parameter that the study does not give, so that it is estimated."""
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
        """Whether sums of the design's columns are asked for; a private study does not release them."""
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
        """Whether its family can have an intercept; a survival model has a baseline hazard instead."""
        return family_of(self.loss).intercept

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are needed but are not predictors: target, weight, trials, offset and the like."""
        return tuple(c for c in (*self.numbers, *self.any_kind) if c)

    @property
    def any_kind(self) -> tuple[str | None, ...]:
        """The columns that may hold numbers at one site and text at another, because they are not sent."""
        return self.cluster, self.event, *self.strata

    @property
    def marked(self) -> str:
        """The column to which `positive` refers: the event, or else the target."""
        return self.target if self.event is None else self.event

    @property
    def numbers(self) -> tuple[str | None, ...]:
        """The columns beside the predictors that hold numbers; the target may hold classes."""
        return self.target, self.weight, self.trials, self.offset, self.exposure, self.entry


def read_study(path: str | Path) -> Study:
    r"""Read a study from a TOML file.

    Parameters
    ----------
    path : path
        The file; its keys are the attributes of `Study`.

    Returns
    -------
    Study
        The checked study.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a field is unknown or impossible.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from fedshed.preparation import read_study
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "study.toml"
    >>> _ = path.write_text('family = "linear"\ntarget = "pressure"')
    >>> read_study(path).target
    'pressure'
    """
    try:
        return study_of(msgspec.toml.decode(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigError(
            f"{in_words(error)}; a study is a TOML file with family, target and other fields"
        ) from None
    except (msgspec.DecodeError, ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def study_of(fields: Any) -> Study:
    """A study from plain data, as TOML or JSON give it.

    Parameters
    ----------
    said : dict
        The attributes of `Study` by name.

    Returns
    -------
    Study
        The checked study.

    Raises
    ------
    ConfigError
        If a field is unknown or impossible.

    Examples
    --------
    >>> from fedshed.preparation import study_of
    >>> study_of({"family": "linear", "target": "pressure"}).loss
    'least-squares'
    """
    if isinstance(fields, dict):
        _known_words(fields)
    try:
        return msgspec.convert(fields, Study)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the study is not valid: {error}") from error


def _expand_dot(study: Study) -> None:
    """Put all other columns, which are the default, in place of the formula `y ~ .`."""
    if study.formula is None or study.columns is not None:
        return
    right = study.formula.partition("~")[2] if "~" in study.formula else study.formula
    if (said := all_columns(right)) is not None:
        force_setattr(study, "formula", None)
        force_setattr(study, "exclude", tuple(dict.fromkeys((*study.exclude, *said.without))))
        force_setattr(study, "intercept", study.intercept and said.intercept)


_ELSEWHERE = {  # names of families in other programs
    "gaussian": "linear", "normal": "linear", "ols": "linear", "lm": "linear", "bernoulli": "logistic",
    "binary": "logistic", "coxph": "cox", "survival": "cox", "softmax": "multinomial",
    "multinom": "multinomial", "polr": "ordinal", "clm": "ordinal", "negbin": "negative-binomial",
    "nb": "negative-binomial", "quasi": "quasi-poisson", "count": "poisson",
}  # fmt: skip
_CHOICES = (("missing", Missing), ("weight_type", WeightType), ("ties", Ties), ("ph_transform", Transform))
_WORDS = ("family", *(name for name, _ in _CHOICES))


def _known_words(fields: dict[str, Any]) -> None:
    """Refuse unknown fields and unknown words, and list the known ones."""
    if unknown := sorted(set(map(str, fields)) - set(Study.__struct_fields__)):
        raise ConfigError(f"unknown field {unknown[0]!r}{closest(unknown[0], Study.__struct_fields__)}")
    for name, words in (("family", known_families()), *((name, get_args(of)) for name, of in _CHOICES)):
        if isinstance(said := fields.get(name, words[0]), str) and _plain(name, said) not in words:
            if name == "family" and (here := _ELSEWHERE.get(_plain(name, said).casefold())):
                raise ConfigError(f"family cannot be {said!r}; that family is called {here!r} here")
            raise ConfigError(f"{name} cannot be {said!r}{closest(_plain(name, said), words)}")


def _plain(name: str, said: str) -> str:
    """A word without the parameter that a family may have."""
    return parts_of(said)[0] if name == "family" else said
