"""One line of an audit file."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

TURNED_AWAY = "turned away"  # requests of studies that are not approved here, or have ended
APPROVED = "approved"
REVOKED = "revoked"
CARRIED = "carried over"
WITNESSED = "witnessed"  # how far a protected run has come, by which a state that was put back is found


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer: what was asked, what was answered, how large, and the SHA-256 of both.

    `rule` says why it was held back, if it was.
    """

    time: str
    study: str  # the beginning of its SHA-256
    what: str
    bytes: int = 0
    scalars: int = 0  # numbers that this answer adds to what has left
    curvature: int = 0  # those of them that are entries of Hessians or eigenvectors
    total: int = 0  # numbers released in this study, this answer included
    message: str = ""  # SHA-256 of the answer as sent
    kind: str = ""  # of a request that an approved study may make in one way only
    request: str = ""  # SHA-256 of what was asked
    points: tuple[str, ...] = ()  # SHA-256 of each theta that was asked about
    plan: str = ""  # SHA-256 of the plan of the design
    table: str = ""  # SHA-256 of the table
    columns: tuple[str, ...] = ()  # columns of the design that were not used before
    answer: str = ""  # SHA-256 of what the answer says, whatever exchange it belongs to
    model: str = ""  # the model of the study, in words
    run: str = ""  # of a protected study that is witnessed
    record: int = 0  # and the number of the last record that the site keeps of it
    leverage: float | None = None  # the largest share of one row in what has left
    rho: float = 0.0  # what a private study costs of the table's privacy, in zCDP
    rule: str = ""
    detail: str = ""  # stays at the site
    previous: str = ""
    hash: str = ""

    def sealed(self, previous: str) -> Entry:
        """The entry as it follows the one with that hash."""
        entry = replace(self, previous=previous, hash="")
        return replace(entry, hash=sha256(msgspec.json.encode(entry)).hexdigest())


def now() -> str:
    """The time of an entry."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
