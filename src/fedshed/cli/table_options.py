"""The options that say which columns of which tables are modelled, shared by `fit` and `compare`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast, get_args, get_type_hints

import typer
from msgspec import Struct
from msgspec.structs import fields

from fedshed._utils.errors import ConfigError
from fedshed.cli.app import notes_together
from fedshed.cli.panels import COLUMNS, MODEL, PENALTIES, READING, SURVIVAL
from fedshed.cli.show import flag, option, print_message, was_given

if TYPE_CHECKING:
    from fedshed.preparation import Study
    from fedshed.tables import CsvFormat

_NONE, _FOUND = False, "detected"  # that an option has no default value needs no words
_FILES = (
    "CSV (also compressed: .gz, .bz2, .xz, .zst), Parquet or Arrow files. Give one file per site, or one "
    "file with --site."
)
reading = partial(option, panel=READING)
model_column = partial(option, panel=MODEL, metavar="COLUMN")
column = partial(option, panel=COLUMNS, metavar="COLUMN")
names = partial(option, panel=COLUMNS, metavar="NAMES")
survival = partial(option, panel=SURVIVAL, metavar="COLUMN")
Tables = Annotated[list[Path], typer.Argument(help=_FILES, show_default=False)]
FittedModel = Annotated[Path, typer.Argument(help="A model that `fedshed fit` wrote.", show_default=False)]

Missing: TypeAlias = Literal["refuse", "empty"]
Incomplete = Annotated[
    str,
    option(
        "Rows with a missing value that the model does not fill in have no prediction. refuse: stop if there "
        "are any; empty: count them, leave them out of an evaluation, and leave their predictions empty."
    ),
]


def check_missing(value: str) -> Missing:
    """What is done with rows that have no prediction."""
    if value not in get_args(Missing):
        raise ConfigError(f"--missing {value} is not known; write refuse or empty")
    return cast(Missing, value)


class CsvOptions(Struct, frozen=True, kw_only=True):
    """The options that describe the format of CSV files."""

    na_values: Annotated[
        str,
        reading(
            "More marks that mean a missing value in CSV files, separated by commas (NA, NULL and similar "
            "ones always do).",
            _NONE,
        ),
    ] = ""
    header: Annotated[
        str | None,
        reading("The names of the columns, separated by commas, if the CSV files have no header.", _NONE),
    ] = None
    sep: Annotated[str | None, reading("The separator of the columns in CSV files, such as ';'.", _FOUND)] = (
        None
    )
    decimal: Annotated[str | None, reading("The decimal mark of CSV files: '.' or ','.", _FOUND)] = None
    encoding: Annotated[str | None, reading("The encoding of CSV files, such as latin-1.", _FOUND)] = None

    def format(self, text: tuple[str, ...] = ()) -> CsvFormat:
        """The format of the CSV files; `text` names the columns whose numbers are codes."""
        from fedshed.tables import CsvFormat

        sep = {"tab": "\t", r"\t": "\t"}.get(self.sep or "", self.sep)
        names = None if self.header is None else tuple(words(self.header) or ())
        return CsvFormat(sep, self.decimal, self.encoding, tuple(self.na_values.split(",")), names, text)


class TableOptions(CsvOptions, frozen=True, kw_only=True):
    """The options that describe a model and its columns."""

    target: Annotated[
        str, model_column("The column to be explained; a formula can name it instead.", _NONE)
    ] = ""
    family: Annotated[
        str,
        option(
            "The model: linear, logistic, poisson, cox, ... (`fedshed families` lists all of them).",
            panel=MODEL,
            metavar="NAME",
        ),
    ] = "logistic"
    site: Annotated[
        str | None, model_column("The column that names the site of each row.", "one file per site")
    ] = None
    columns: Annotated[
        str | None,
        option("The predictors, separated by commas.", "all other columns", panel=MODEL, metavar="NAMES"),
    ] = None
    formula: Annotated[
        str | None,
        option(
            "A formula in place of --target and --columns, such as 'y ~ age + C(region)'.", _NONE, panel=MODEL
        ),
    ] = None
    study: Annotated[
        Path | None,
        option(
            "A TOML file that describes the study, in place of these options.",
            _NONE,
            panel=MODEL,
            metavar="FILE",
        ),
    ] = None
    random_intercept: Annotated[
        bool,
        flag("--random-intercept", "Fit a normally distributed random intercept for each site.", MODEL),
    ] = False
    standardize: Annotated[
        bool,
        option(
            "Apply penalties to standardised columns; coefficients are in the original units.",
            "yes in `fedshed select`, otherwise no",
            panel=PENALTIES,
        ),
    ] = False
    firth: Annotated[
        bool,
        flag(
            "--firth",
            "Use Firth's penalty, which gives finite estimates even if the classes are separated.",
            PENALTIES,
        ),
    ] = False
    exclude: Annotated[str, names("Columns to leave out of the predictors, separated by commas.", _NONE)] = ""
    categories: Annotated[
        str, names("Numeric columns to be read as categories, separated by commas.", _NONE)
    ] = ""
    reference: Annotated[
        list[str] | None,
        option(
            "COLUMN=LEVEL: the level that the others are compared with, or TARGET=CLASS: the reference class "
            "of a multinomial target; can be repeated.",
            "first level",
            panel=COLUMNS,
        ),
    ] = None
    positive: Annotated[
        str,
        option(
            "Values of the target (for cox: of the event) that count as yes, separated by commas.",
            _NONE,
            panel=COLUMNS,
        ),
    ] = ""
    classes: Annotated[
        str,
        option(
            "The classes of the target, separated by commas; those of an ordinal target in their order.",
            _NONE,
            panel=COLUMNS,
        ),
    ] = ""
    missing: Annotated[
        str, option("What is done with missing values: refuse, drop, indicator or impute.", panel=COLUMNS)
    ] = "refuse"
    weight: Annotated[str | None, column("The column with the weight of each row.", _NONE)] = None
    weight_type: Annotated[
        str,
        option(
            "frequency: a row counts that many times; precision: the variance of a row is divided by its "
            "weight; auto: precision, but of whole numbers above 1 the type must be given.",
            panel=COLUMNS,
        ),
    ] = "auto"
    cluster: Annotated[
        str | None,
        column(
            "The column that identifies clusters, such as the patient; rows with the same value are not "
            "independent (see --errors cluster of `fedshed fit`). Random holdouts and folds keep each "
            "cluster whole.",
            _NONE,
        ),
    ] = None
    trials: Annotated[
        str | None,
        column("The column with the number of trials, if the target is the number of successes.", _NONE),
    ] = None
    offset: Annotated[str | None, column("The column that is added to the linear predictor.", _NONE)] = None
    exposure: Annotated[str | None, column("The column whose logarithm is the offset.", _NONE)] = None
    time: Annotated[str | None, survival("The column with the time until the event or censoring.", _NONE)] = (
        None
    )
    event: Annotated[
        str | None, survival("The column that is 1 if the event happened (see --positive).", _NONE)
    ] = None
    entry: Annotated[
        str | None, survival("The column with the time at which a row comes under observation.", _NONE)
    ] = None
    strata: Annotated[
        str,
        option(
            "Columns, separated by commas, whose values have separate baseline hazards.",
            _NONE,
            panel=SURVIVAL,
            metavar="NAMES",
        ),
    ] = ""
    ties: Annotated[
        str, option("The treatment of events at the same time: efron or breslow.", panel=SURVIVAL)
    ] = "efron"

    ph_transform: Annotated[
        str,
        option(
            "The scale of time in the test of proportional hazards: identity, log, rank or km.",
            panel=SURVIVAL,
        ),
    ] = "identity"

    def asked(self, context: typer.Context, l2: float, intercept: bool, l1: float = 0.0) -> Study:
        """The study that the options or their file describe."""
        from fedshed.preparation import read_study, study_of

        if self.study is not None:
            _check_said_once(context, self.study)
            return read_study(self.study)
        said = {
            "family": self.family, "target": self.target, "formula": self.formula,
            "columns": words(self.columns), "exclude": words(self.exclude) or [], "site": self.site,
            "categories": words(self.categories) or [], "references": _pairs(self.reference or []),
            "weight": self.weight, "weight_type": self.weight_type, "trials": self.trials,
            "cluster": self.cluster,
            "positive": [_number(text) for text in words(self.positive) or []], "offset": self.offset,
            "exposure": self.exposure, "l2": l2, "time": self.time, "event": self.event,
            "entry": self.entry, "strata": words(self.strata) or [], "ties": self.ties,
            "ph_transform": self.ph_transform,
            "standardize": self.standardize, "intercept": intercept, "missing": self.missing,
            "firth": self.firth, "random_intercept": self.random_intercept,
            "classes": [_number(text) for text in words(self.classes) or []],
        }  # fmt: skip
        said |= {"l1": l1} if l1 else {}  # 0.0 is left out, so that a study without it keeps its bytes
        return study_of(said)

    def tables(self, paths: list[Path], study: Study) -> dict[str, Any]:
        """The table of each site."""
        from fedshed.preparation.describe import text_columns
        from fedshed.tables import read_sites

        with notes_together():
            found = read_sites(paths, site=study.site, keep=True, csv=self.format(text_columns(study)))
        if study.site is None and len(paths) == 1:
            print_message(f"note: there is one table and no --site, so {paths[0]} is treated as one site")
        return found


def with_options(kind: type[CsvOptions]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a class: it receives them together, in its last argument `given`."""

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        hints, own = get_type_hints(kind, include_extras=True), inspect.signature(command, eval_str=True)
        added = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
            )
            for f in fields(kind)
        ]
        kept = [p.replace(kind=p.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "given"]

        @wraps(command)
        def wrapper(**arguments: Any) -> None:
            mine = {f.name: arguments.pop(f.name) for f in fields(kind)}
            command(**arguments, given=kind(**mine))

        wrapper.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in (*kept, *added)}
        return wrapper

    return extended


def option_names(kind: type[CsvOptions]) -> tuple[str, ...]:
    """The parameters that a class of options adds to a command."""
    return tuple(f.name for f in fields(kind))


def refuse_given(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options that would be ignored."""
    for name in names:
        if was_given(context, name):
            raise ConfigError(f"--{name.replace('_', '-')} {why}")


def words(text: str | None) -> list[str] | None:
    """The words of a text that are separated by commas."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str) -> int | float | str:
    """The number that a text stands for, or else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _pairs(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--reference {text}: write it as COLUMN=LEVEL, such as region=north")
    return {column: level for column, _, level in (text.partition("=") for text in texts)}


def _check_said_once(context: typer.Context, study: Path) -> None:
    """Refuse an option that is also a field of the study: it would be ignored."""
    from fedshed.preparation import Study

    said = (*Study.__struct_fields__, "reference")
    why = f"cannot be combined with --study {study}: write it in that file, or use options only"
    refuse_given(context, said, why)
