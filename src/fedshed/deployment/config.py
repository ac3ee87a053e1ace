"""The two files of a deployment: a site's TOML, which stays at the site, and the study's, at the Master."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_type_hints

import msgspec
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.algorithms.channels import ByteRate
from fedshed.deployment.approval import Approval, Peer, Revocation
from fedshed.fitting.protected_study import check_sites
from fedshed.fitting.stages import PROTOCOL
from fedshed.fitting.terms import Terms, check_points
from fedshed.inference.result import Robust, RowRobust
from fedshed.preparation.approved import check_protected
from fedshed.preparation.study import Study, study_of
from fedshed.privacy.fixed_point import FEWEST_SITES
from fedshed.privacy.policy import Policy
from fedshed.solve import validation as checks
from fedshed.solve.goal import Goal
from fedshed.tables.csv_files import CsvFormat

T = TypeVar("T")
_KEY = re.compile(r"[0-9a-f]{64}")


class Uplink(Struct, frozen=True, forbid_unknown_fields=True):
    """What a site's link carries: bytes per round, or bytes per second for so many seconds a round."""

    bytes_per_round: float | None = None
    bytes_per_second: float | None = None
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if (self.bytes_per_round is None) == (self.bytes_per_second is None):
            raise ConfigError("[uplink] needs either bytes_per_round or bytes_per_second")
        self.channel()

    def channel(self) -> ByteRate:
        """The channel that turns it into d_t, the eigenpairs of a round."""
        if self.bytes_per_second is None:
            return ByteRate(self.bytes_per_round or 0.0)
        return ByteRate(self.bytes_per_second, self.seconds)


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a site's table is: a CSV or Parquet file, an Arrow IPC file that is mapped, or a query.

    A query goes to `url` through SQLAlchemy ($NAME in it is read from the environment, so that no password
    need be in the file), or else to DuckDB, which reads its own `database` and files named in the query.
    """

    csv: str | None = None
    parquet: str | None = None
    sql: str | None = None
    url: str | None = None
    database: str | None = None
    na_values: tuple[str, ...] = ()  # marks for missing values in a CSV file, besides NA, NULL and the like
    sep: str | None = None  # what separates the columns of a CSV file; without it, it is found out
    decimal: str | None = None  # "." or ","
    encoding: str | None = None  # such as "latin-1"
    arrow: str | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.csv, self.parquet, self.arrow, self.sql)) != 1:
            raise ConfigError("[table] needs exactly one of csv, parquet, arrow and sql")
        if self.sql is None and (self.url or self.database):
            raise ConfigError("[table] url and database go with sql")
        if self.url and self.database:
            raise ConfigError("[table] needs url (SQLAlchemy) or database (a DuckDB file), not both")
        self.csv_format()

    @property
    def file(self) -> str | None:
        """The name of the file, where it is one."""
        return self.csv or self.parquet or self.arrow

    def csv_format(self, text: tuple[str, ...] = ()) -> CsvFormat:
        """How the CSV file is written; `text` are the columns whose numbers are codes."""
        return CsvFormat(self.sep, self.decimal, self.encoding, self.na_values, text=text)


class SiteFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A site: its name, its table, the columns it offers, its uplink, and what it lets out."""

    name: str
    table: Source
    columns: list[str] | dict[str, str] | None = None  # offered; as a table, the study's name = the site's
    uplink: Uplink | None = None
    disclosure: Policy = Policy()  # what the site lets out (docs/privacy.md)
    state: str = "state"  # folder for what must outlive a process
    audit: str = "audit.jsonl"  # the record of all that left
    any_study: bool = False  # answer studies that nobody has approved
    studies: tuple[Approval, ...] = ()  # as `fedshed site approve` writes them
    revoked: tuple[Revocation, ...] = ()  # as `fedshed site revoke` writes them
    peers: tuple[Peer, ...] = ()  # keys of other sites, as `fedshed site approve` has pinned them
    identity: str = "protected.key"  # the site's own key for protected studies, made by `fedshed site join`

    def __post_init__(self) -> None:
        check_name(self.name)


class StudyFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A study: the model that all sites agree on, the sites, and how it is fitted."""

    study: Study
    sites: tuple[str, ...]
    algorithm: str = "auto"
    tolerance: float = 1e-9
    max_iterations: int = 200
    deadline: float = 60.0  # seconds a round may take
    quorum: int | None = None  # sites that must answer in a round; None: all
    patience: int = 5  # rounds that a site may stay silent
    errors: RowRobust | Literal["model", "site"] = "model"  # which the summary shows (docs/statistics.md)
    points: int | None = None  # parameters that sites may be asked about; None: 60 for newton, 400 for others
    keys: dict[str, str] = {}  # of a protected study: each site's public key, as `fedshed site join` shows it

    def __post_init__(self) -> None:
        for site in self.sites:
            check_name(site)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise ConfigError(f"sites must name each site once, not {list(self.sites)}")
        if not (self.deadline > 0 and self.tolerance >= 0 and self.max_iterations >= 1):
            raise ConfigError("deadline and max_iterations must be positive, and tolerance not negative")
        check_points(self.points)
        self.terms.check_study()
        _goal(self)
        if self.study.protected:
            _check_protected(self)
        elif self.keys:
            raise ConfigError("keys of sites are for protected studies; add protected = true, or remove them")

    @property
    def terms(self) -> Terms:
        """What the sites are asked to approve: all that decides what is asked of them."""
        return Terms(
            protocol=PROTOCOL,
            study=self.study,
            sites=tuple(sorted(self.sites)),
            algorithm=self.algorithm,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            errors=self.row_errors,
            points=self.points,
            keys=dict(sorted(self.keys.items())),
            least=self.quorum if self.study.protected else None,
        )

    @property
    def shown_errors(self) -> Robust:
        """Which errors the summary shows: False for the model's."""
        return False if self.errors == "model" else self.errors

    @property
    def row_errors(self) -> RowRobust | None:
        """Errors that need an exchange of their own."""
        return None if self.errors in ("model", "site") else cast(RowRobust, self.errors)

    @property
    def goal(self) -> Goal:
        """When the fit ends."""
        return _goal(self)


def _check_protected(file: StudyFile) -> None:
    """ConfigError for a protected study that lacks a key, a site, or what its tables are made of."""
    check_protected(file.study)
    check_sites(file.sites)
    if lacks := sorted(set(file.sites) - set(file.keys)):
        raise ConfigError(
            f"a protected study needs the key of each site ([keys]); {lacks[0]} has none: "
            "`fedshed site join` shows it there, and `fedshed deploy new --protected` collects them all"
        )
    if others := sorted(set(file.keys) - set(file.sites)):
        raise ConfigError(f"[keys] names {others[0]}, which is not among the sites; add or remove it")
    if wrong := sorted(site for site, key in file.keys.items() if not _KEY.fullmatch(key)):
        raise ConfigError(f"the key of {wrong[0]} has 64 digits from 0 to f; `fedshed site join` shows it")
    if len(set(file.keys.values())) < len(file.keys):
        raise ConfigError("two sites have the same key; each site makes its own (fedshed site join)")
    if file.quorum is not None and file.quorum < FEWEST_SITES:
        raise ConfigError(f"quorum of a protected study is at least {FEWEST_SITES} sites, not {file.quorum}")


def _goal(file: StudyFile) -> Goal:
    sites = len(file.sites)
    quorum = sites if file.quorum is None else file.quorum
    return checks.goal(file.tolerance, file.max_iterations, None, None, quorum, file.patience, sites)


def check_name(name: str) -> None:
    """A site's name: short, and fit for a file, a certificate and a command line."""
    if not (1 <= len(name) <= 40 and name[0].isalnum() and all(c.isalnum() or c in "-_" for c in name)):
        raise ConfigError(f"a site's name has letters, digits, - and _, 40 at most, not {name!r}")


def read_site(path: str | Path) -> SiteFile:
    """A site's file."""
    return load(path, SiteFile)


def read_study(path: str | Path) -> StudyFile:
    """A study's file: one flat table, the fields of `fedshed.preparation.Study` beside those of its fit."""
    given = load(path, dict[str, Any])
    ours = {name: given.pop(name) for name in StudyFile.__struct_fields__[1:] if name in given}
    try:
        return msgspec.convert(ours | {"study": study_of(given)}, StudyFile)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<where>[^`]*)`)?")
_WRONG = re.compile(r"(?P<what>.*) - at `\$\.(?P<where>[^`]*)`")


def _said(error: str, kind: Any) -> str:
    """What is wrong with a field, in words: which, where, and what it may be."""
    if found := _UNKNOWN.fullmatch(error):
        for name in filter(None, (found["where"] or "").split(".")):
            hint = get_type_hints(kind).get(name, kind)
            kind = next(
                (each for each in (hint, *get_args(hint)) if hasattr(each, "__struct_fields__")), kind
            )
        known = getattr(kind, "__struct_fields__", ())
        where = f" in [{found['where']}]" if found["where"] else ""
        return f"unknown field {found['name']!r}{where}{closest(found['name'], known)}"
    if found := _WRONG.fullmatch(error):
        return f"{found['where']}: {found['what'].replace('`', '')}"
    return error.replace("`", "'")


def load(path: str | Path, kind: type[T]) -> T:
    """A TOML file as its type, or an error that names the file and the field."""
    try:
        return msgspec.toml.decode(Path(path).read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; go to the folder that holds it, or name it") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_said(str(error), kind)}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path} is not valid TOML; is all text in quotes? {error}") from error
