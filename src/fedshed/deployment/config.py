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
from fedshed.objectives.time_scale import POOLED
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
    """What a site's link carries: bytes per round, or bytes per second and how long per round."""

    bytes_per_round: float | None = None  # bytes that the site may send in a round
    bytes_per_second: float | None = None  # the rate of the link, instead of bytes_per_round
    seconds: float = 1.0  # with bytes_per_second: how many seconds per round the link may be used

    def __post_init__(self) -> None:
        if (self.bytes_per_round is None) == (self.bytes_per_second is None):
            raise ConfigError("[uplink] needs either bytes_per_round or bytes_per_second, and not both")
        self.channel()

    def channel(self) -> ByteRate:
        """The channel that computes d_t, the number of eigenpairs per round, from it."""
        if self.bytes_per_second is None:
            return ByteRate(self.bytes_per_round or 0.0)
        return ByteRate(self.bytes_per_second, self.seconds)


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a site's table is: a CSV or Parquet file, an Arrow IPC file that is mapped, or a query.

    A query goes to `url` through SQLAlchemy. $NAME in the URL is read from the environment, so that the file
    need not hold a password. Without `url` the query goes to DuckDB, which reads its own `database` and the
    files that the query names.
    """

    csv: str | None = None  # a CSV file
    parquet: str | None = None  # a Parquet file
    sql: str | None = None  # a query, such as "SELECT * FROM patients"
    url: str | None = None  # the URL to which SQLAlchemy sends the query; $NAME is read from the environment
    database: str | None = None  # the DuckDB file that the query reads
    na_values: tuple[str, ...] = ()  # marks of missing values in a CSV file, besides NA, NULL and similar
    sep: str | None = None  # the separator of the columns of a CSV file; detected if left out
    decimal: str | None = None  # the decimal mark of a CSV file, "." or ","; detected if left out
    encoding: str | None = None  # the encoding of a CSV file, such as "latin-1"; detected if left out
    arrow: str | None = None  # an Arrow IPC file, which is mapped and may be larger than memory

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.csv, self.parquet, self.arrow, self.sql)) != 1:
            raise ConfigError("[table] needs exactly one of csv, parquet, arrow and sql")
        if self.sql is None and (self.url or self.database):
            raise ConfigError("[table] url and database are for a query; add sql, or remove them")
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
    """A site: its name, its table, the columns it offers, its uplink, and what it releases.

    Parameters
    ----------
    columns : list or table
        The columns that the site offers: a list of names, or a table with lines of the form
        `name in the study = "name at the site"`. Default: all columns.
    """

    name: str  # the name that the site's key or certificate has
    table: Source  # where the site's table is
    columns: list[str] | dict[str, str] | None = None
    uplink: Uplink | None = None  # what the site's link carries; default: no limit
    disclosure: Policy = Policy()  # the rules for what the site releases (docs/privacy.md)
    state: str = "state"  # the folder of the files that must survive a restart
    audit: str = "audit.jsonl"  # the file that records everything that left the site
    any_study: bool = False  # whether the site also answers studies that it has not approved
    studies: tuple[Approval, ...] = ()  # approvals, as `fedshed site approve` writes them
    revoked: tuple[Revocation, ...] = ()  # revocations, as `fedshed site revoke` writes them
    peers: tuple[Peer, ...] = ()  # public keys of other sites, as `fedshed site approve` writes them
    identity: str = "protected.key"  # the file of the site's key for protected studies (`fedshed site join`)

    def __post_init__(self) -> None:
        check_name(self.name)


class StudyFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A study: the model that all sites agree on, the sites, and how it is fitted.

    Parameters
    ----------
    errors : str
        Which standard errors the summary shows (docs/statistics.md).
    points : int
        At how many points (sets of parameters) a site may be asked for sums. Default: 60 for newton, 120 for
        newton-seldom, 150 with Firth's penalty, and 400 for other algorithms; three times as many if a
        parameter of the family is searched for; 10 more if rows are held out (docs/deploy.md).
    """

    study: Study
    sites: tuple[str, ...]  # the names of the sites
    algorithm: str = "auto"  # a name that `fedshed algorithms` lists, or "auto"
    tolerance: float = 1e-9  # the fit ends when the norm of the global gradient is at most this
    max_iterations: int = 200  # the fit ends after this many iterations
    deadline: float = 60.0  # how many seconds the Master waits for the answers of an exchange
    quorum: int | None = None  # how many sites must answer an exchange; default: all
    patience: int = 5  # how many exchanges in a row a site may leave unanswered
    errors: RowRobust | Literal["model", "site"] = "model"
    points: int | None = None
    keys: dict[str, str] = {}  # of a protected study: each site's public key, as `fedshed site join` shows it

    def __post_init__(self) -> None:
        for site in self.sites:
            check_name(site)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise ConfigError(f"sites must name each site once, not {list(self.sites)}")
        if not (self.deadline > 0 and self.tolerance >= 0 and self.max_iterations >= 1):
            raise ConfigError(
                "deadline and max_iterations must be positive, and tolerance must not be negative"
            )
        check_points(self.points)
        if self.study.ph_transform in POOLED and not self.study.grid:
            raise ConfigError(
                f"ph_transform = {self.study.ph_transform!r} needs counts of the rows at times, which sites "
                "give on a grid only; give grid = [...], or use ph_transform = 'identity' or 'log'"
            )
        self.terms.check_study()
        _goal(self)
        if self.study.protected:
            _check_protected(self)
        elif self.keys:
            raise ConfigError("[keys] is for protected studies only; add protected = true, or remove [keys]")

    @property
    def terms(self) -> Terms:
        """What the sites are asked to approve: everything that decides what they are asked for."""
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
        """Which standard errors the summary shows: False for those of the model."""
        return False if self.errors == "model" else self.errors

    @property
    def row_errors(self) -> RowRobust | None:
        """The kind of standard errors that need one more exchange, if it is asked for."""
        return None if self.errors in ("model", "site") else cast(RowRobust, self.errors)

    @property
    def goal(self) -> Goal:
        """When the fit ends."""
        return _goal(self)


def _check_protected(file: StudyFile) -> None:
    """Refuse a protected study that lacks a key, a site, or what its tables are made of."""
    check_protected(file.study)
    check_sites(file.sites)
    if lacks := sorted(set(file.sites) - set(file.keys)):
        raise ConfigError(
            f"a protected study needs the key of each site in [keys], but site {lacks[0]!r} has none; "
            "`fedshed site join` shows it at the site, and `fedshed deploy new --protected` collects all keys"
        )
    if others := sorted(set(file.keys) - set(file.sites)):
        raise ConfigError(
            f"[keys] names {others[0]!r}, which is not among the sites; add it there, or remove it here"
        )
    if wrong := sorted(site for site, key in file.keys.items() if not _KEY.fullmatch(key)):
        raise ConfigError(
            f"the key of site {wrong[0]!r} in [keys] must have 64 digits from 0 to f; `fedshed site join` "
            "shows it at the site"
        )
    if len(set(file.keys.values())) < len(file.keys):
        raise ConfigError(
            "two sites have the same key in [keys]; each site must make its own (fedshed site join)"
        )
    if file.quorum is not None and file.quorum < FEWEST_SITES:
        raise ConfigError(f"quorum of a protected study must be at least {FEWEST_SITES}, not {file.quorum}")


def _goal(file: StudyFile) -> Goal:
    sites = len(file.sites)
    quorum = sites if file.quorum is None else file.quorum
    return checks.goal(file.tolerance, file.max_iterations, None, None, quorum, file.patience, sites)


def check_name(name: str) -> None:
    """Refuse a site's name that is not fit for a file, a certificate and a command line."""
    if not (1 <= len(name) <= 40 and name[0].isalnum() and all(c.isalnum() or c in "-_" for c in name)):
        raise ConfigError(
            f"{name!r} cannot be the name of a site: a name begins with a letter or a digit and has at most "
            "40 characters, which are letters, digits, - and _"
        )


def read_site(path: str | Path) -> SiteFile:
    """Read a site's file."""
    return load(path, SiteFile)


def read_study(path: str | Path) -> StudyFile:
    """Read a study's file: one flat table with the fields of `fedshed.preparation.Study` and of the fit."""
    given = load(path, dict[str, Any])
    ours = {name: given.pop(name) for name in StudyFile.__struct_fields__[1:] if name in given}
    try:
        return msgspec.convert(ours | {"study": study_of(given)}, StudyFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_said(str(error), StudyFile)}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<where>[^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<where>[^`]*)`)?")
_WRONG = re.compile(r"(?P<what>.*) - at `\$\.(?P<where>[^`]*)`", re.DOTALL)


def _said(error: str, kind: Any) -> str:
    """What is wrong with a field, in words: which field, where it is, and what was probably meant."""
    if found := _UNKNOWN.fullmatch(error):
        for name in filter(None, (found["where"] or "").split(".")):
            hint = get_type_hints(kind).get(name, kind)
            kind = next(
                (each for each in (hint, *get_args(hint)) if hasattr(each, "__struct_fields__")), kind
            )
        known = getattr(kind, "__struct_fields__", ())
        return f"unknown field {found['name']!r}{_within(found)}{closest(found['name'], known)}"
    if found := _MISSING.fullmatch(error):
        return f"the field {found['name']!r} is missing{_within(found)}; add it"
    if found := _WRONG.fullmatch(error):
        said = found["what"]
        if said.startswith(("Expected", "Invalid")):  # the words of msgspec
            said = said[0].lower() + said[1:].replace("`", "")
        return f"the field {found['where']} is wrong: {said}"
    return error


def _within(found: re.Match[str]) -> str:
    return f" in [{found['where']}]" if found["where"] else ""


def load(path: str | Path, kind: type[T]) -> T:
    """Read a TOML file as its type; an error names the file and the field."""
    try:
        return msgspec.toml.decode(Path(path).read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist; go to the folder that holds it, or give its path"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_said(str(error), kind)}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path} is not valid TOML (all text must be in quotes): {error}") from error
